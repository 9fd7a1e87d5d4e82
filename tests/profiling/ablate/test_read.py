"""The files of configs/ablations, and what is said of one that is wrong."""

from pathlib import Path

import pytest

from common.errors import InputError
from profiling.ablate.definition import (
    FOLDER,
    Ablation,
    SizeName,
    chosen,
    measured_by,
    read_ablation,
    read_all,
)
from profiling.ablate.result import JOBS, resolve_plan
from profiling.bench.worker import RECIPE_MODULES

ALL = read_all()


def test_places_are_unlike_and_in_order() -> None:
    places = [one.place for one in ALL.values()]
    assert places == sorted(set(places))


@pytest.mark.parametrize("name", ALL)
def test_each_file_opens_with_what_it_is_and_its_command(name: str) -> None:
    comment = (FOLDER / f"{name}.yaml").read_text().split("\n\n", 1)[0]
    assert f"python -m profiling ablate run {name} " in comment
    assert all(line.startswith("#") for line in comment.splitlines())


@pytest.mark.parametrize("name", ALL)
def test_each_asks_a_question_and_has_one_to_compare(name: str) -> None:
    one = ALL[name]
    assert one.question.endswith("?") and one.source and one.says
    assert one.comparisons
    for comparison in one.comparisons:
        sentences = (comparison.more, comparison.alike, comparison.less)
        # Where there is a figure to differ from, there is a sentence for however it comes out.
        assert all(sentences) == any(sentences) == (comparison.paper is not None)


def source_of(module: str) -> str:
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
            assert f"def prepare_{variant.recipe.split('.')[-1]}(" in source_of(module)


def test_the_papers_figures_are_all_there() -> None:
    figures = {one.paper for ablation in ALL.values() for one in ablation.comparisons}
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


def written(folder: Path, text: str) -> Path:
    file = folder / "wrong.yaml"
    file.write_text(text)
    return file


def test_a_good_file_is_read(tmp_path: Path) -> None:
    assert isinstance(read_ablation(written(tmp_path, GOOD)), Ablation)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("place: 1", "place: first", "place: input should be a valid integer, found 'first'"),
        ("baseline: slow", "baseline: slower", "comparisons.0.baseline: slower is not a variant"),
        ("question:", "questions:", "question: field required"),
        ("says: 30 %", "says: 30 %\nsize: 1", "size: unexpected"),
        ("{about: as it is}", "{about: x, allocator: mine}", "variants.quick.allocator: input"),
        ("place: 1", "place: 1\nquick: {image_size: 100}", "quick.image_size: input should be a"),
        ("place: 1", "place: 1\ncalls: [slow, fast]", "calls: fast is not a variant"),
        ("place: 1", "place: [", "not valid YAML"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_field(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    file = written(tmp_path, GOOD.replace(old, new))
    with pytest.raises(InputError) as caught:
        read_ablation(file)
    assert str(caught.value).startswith(str(file))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_that_is_not_known_is_told_with_the_nearest() -> None:
    with pytest.raises(InputError, match="frozen-layer: no such ablation; did you mean frozen-la"):
        chosen(["frozen-layer"], ALL)


def test_what_is_answered_by_the_runs_of_another_is_measured_by_it() -> None:
    asked = chosen(["weak-scaling", "onednn"], ALL)
    assert list(measured_by(asked, ALL)) == ["workers-and-threads", "onednn"]
    for one in ALL.values():
        if one.runs_of is not None:
            theirs = ALL[one.runs_of].variants
            assert one.variants.keys() <= theirs.keys()
            assert all(variant == theirs[name] for name, variant in one.variants.items())


def test_named_ablations_come_in_their_own_order() -> None:
    assert list(chosen(["onednn", "classes"], ALL)) == ["classes", "onednn"]
    assert list(chosen([], ALL)) == list(ALL)
