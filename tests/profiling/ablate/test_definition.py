"""The files of configs/ablations, and errors in such files."""

from pathlib import Path

import pytest

from profiling.ablate.definition import (
    FOLDER,
    SizeName,
    chosen,
    measured_by,
    read_ablation,
    read_all,
)
from profiling.ablate.result import JOBS, resolve_plan
from profiling.bench.worker import RECIPE_MODULES
from tests.support.commands import error_message

ALL = read_all()


def test_places_are_unique_and_ordered() -> None:
    places = [ablation.place for ablation in ALL.values()]
    assert places == sorted(set(places))


@pytest.mark.parametrize("name", ALL)
def test_each_has_its_command_a_question_and_comparisons(name: str) -> None:
    comment = (FOLDER / f"{name}.yaml").read_text().split("\n\n", 1)[0]
    assert f"retinanet profile ablate run {name} " in comment
    assert all(line.startswith("#") for line in comment.splitlines())
    ablation = ALL[name]
    assert ablation.question.endswith("?") and ablation.source and ablation.says
    assert ablation.comparisons
    for comparison in ablation.comparisons:
        sentences = (comparison.more, comparison.alike, comparison.less)
        # If there is a figure to differ from, there is a sentence for however it comes out.
        assert all(sentences) == any(sentences) == (comparison.paper is not None)


def read_source(module: str) -> str:
    return Path(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")


@pytest.mark.parametrize("size", ["quick", "full"])
@pytest.mark.parametrize("name", ALL)
def test_each_can_be_planned(name: str, size: SizeName) -> None:
    plan = resolve_plan(name, ALL[name], size=size)
    assert set(plan.variants) | set(plan.left_out) == set(ALL[name].variants)
    assert not set(plan.variants) & set(plan.left_out)
    for variant in plan.variants.values():
        assert variant.options.get("precision") != "auto"
        if variant.recipe != JOBS:
            module = RECIPE_MODULES[variant.recipe]
            assert f"def prepare_{variant.recipe.split('.')[-1]}(" in read_source(module)


def test_figures_of_the_papers_are_complete() -> None:
    figures = {each.paper for ablation in ALL.values() for each in ablation.comparisons}
    assert {1.16, 1.298, 1.3, 2.0, 2.6, 1.45, 5.5, 3.2, 1.32, 0.33} <= figures
    # Table 3: its first column and its first row.
    assert {1.86, 3.27, 2.0, 3.82, 7.04, 11.87} <= figures


GOOD = """
place: 1
question: Is it faster?
source: a paper
says: 30 %
recipe: some.recipe
variants: {slow: {about: as it was}, quick: {about: as it is}}
comparisons: [{change: quick, baseline: slow}]
"""


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("place: 1", "place: first", "place: input should be a valid integer, found 'first'"),
        ("baseline: slow", "baseline: slower", "comparisons.0.baseline: slower is not a variant"),
        ("question:", "questions:", "questions: unexpected keyword argument"),
        ("says: 30 %", "says: 30 %\nsize: 1", "size: unexpected"),
        ("{about: as it is}", "{about: x, allocator: mine}", "variants.quick.allocator: input"),
        ("place: 1", "place: 1\nquick: {image_size: 100}", "quick.image_size: input should be a"),
        ("place: 1", "place: 1\ncalls: [slow, fast]", "calls: fast is not a variant"),
        ("place: 1", "place: [", "not valid YAML"),
    ],
)
def test_error_names_file_and_field(tmp_path: Path, old: str, new: str, error: str) -> None:
    file = tmp_path / "some.yaml"
    file.write_text(GOOD)
    read_ablation(file)
    file.write_text(GOOD.replace(old, new))
    message = error_message(read_ablation, file)
    assert message.startswith(str(file)) and error in message


def test_selected_ablations_keep_their_order() -> None:
    assert list(chosen(["onednn", "classes"], ALL)) == ["classes", "onednn"]
    assert list(chosen([], ALL)) == list(ALL)


def test_shared_runs_are_measured_once() -> None:
    selected = chosen(["weak-scaling", "onednn"], ALL)
    assert list(measured_by(selected, ALL)) == ["workers-and-threads", "onednn"]
    for ablation in ALL.values():
        if ablation.runs_of is not None:
            shared = ALL[ablation.runs_of].variants
            assert all(shared[name] == each for name, each in ablation.variants.items())
