"""Measure ablations: in real worker processes, as jobs, and with compared oneDNN logs."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from common.console import make_console
from common.errors import InputError, WorkerDiedError
from common.files import write_json
from profiling.ablate import measure as measure_module
from profiling.ablate.definition import Ablation, read_all
from profiling.ablate.measure import (
    JobRunner,
    Photos,
    begun_result,
    compare_calls,
    measure,
    measured_on,
    summarize_job,
)
from profiling.ablate.result import Plan, Result, read_result, resolve_plan
from profiling.bench.variant import Variant, Workload
from profiling.bench.worker import answer, load_recipe
from profiling.bench.worker_pool import WorkerPool
from tests.profiling.ablate.samples import ablation
from tests.support.rank_steps import rank_steps

COMMAND = "retinanet profile ablate run made --quick"
FROZEN_CONVOLUTIONS = 11
"""conv1, and in layer1 three in each of three blocks and one beside the first."""


def make_plan(*, rounds: int = 3, definition: Ablation | None = None) -> Plan:
    definition = definition or ablation(quick={"warm_up": 1})
    return resolve_plan("made", definition, size="quick", rounds=rounds)


def begun(plan: Plan, file: Path, *, overwrite: bool = False) -> Result:
    return begun_result(plan, file, command=COMMAND, on=measured_on(), overwrite=overwrite)


def measured(plan: Plan, file: Path) -> Result:
    console = make_console(quiet=True)
    photos = Photos(None, file.parent, console)
    return measure(plan, begun(plan, file), file, photos=photos, console=console)


@pytest.mark.slow
def test_complete_result_is_kept_extended_or_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    result = measured(make_plan(), file)
    assert result.is_complete and len(result.rounds) == 3
    # The warm-up was the first.
    assert result.values("slow", "runs") == result.values("quick", "runs") == [2, 3, 4]
    assert result.environment["cores"] >= 1 and result.environment["torch"]
    assert result.command == COMMAND and result.began <= result.ended
    assert result == read_result(file) == measured(make_plan(), file)
    assert begun(make_plan(rounds=4), file) == replace(result, rounds_wanted=4)
    assert begun(make_plan(rounds=2), file) == result
    assert not begun(make_plan(), file, overwrite=True).rounds


@pytest.mark.slow
def test_stopped_measurement_continues_with_the_missing_rounds(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    variants = {"slow": {"about": ""}, "quick": {"about": "", "options": {"fails_at": 4}}}
    failing = make_plan(definition=ablation(variants=variants, quick={"warm_up": 1}))
    with pytest.raises(WorkerDiedError, match="quick: ArithmeticError: loss nan"):
        measured(failing, file)
    partial = read_result(file)
    assert len(partial.rounds) == 2 and not partial.is_complete
    result = measured(failing, file)
    assert result.rounds[:2] == partial.rounds
    assert len(result.rounds) == 3 and result.is_complete
    assert result.began == partial.began
    # Random numbers go on too: they are not those of the first round again.
    assert result.values("slow", "seed") == [0, 0, 2]


def test_result_of_other_conditions_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    write_json(file, asdict(begun(make_plan(), file)))
    original = file.read_text()
    changes: dict[str, tuple[str, dict[str, Any]]] = {
        r"torch 1\.0, now 2": ("environment", {"torch": "1.0"}),
        r"another definition \(warm_up\)": ("definition", {"warm_up": 9}),
        r"another definition \(photos\)": ("definition", {"photos": "others"}),
    }
    for error, (field, values) in changes.items():
        content = json.loads(original)
        content[field] |= values
        file.write_text(json.dumps(content))
        with pytest.raises(InputError, match=rf"was measured with {error}.*--overwrite"):
            begun(make_plan(), file)
    content = json.loads(original)
    content["environment"]["code"] = "an earlier commit"  # may differ
    file.write_text(json.dumps(content))
    assert begun(make_plan(), file).rounds_wanted == 3


def test_result_without_variants_has_the_reasons(tmp_path: Path) -> None:
    too_many = {"about": "", "options": {"ranks": 10**6}}
    variants = {"slow": too_many, "quick": too_many}
    result = measured(make_plan(definition=ablation(variants=variants)), tmp_path / "result.json")
    assert result.is_complete and not result.rounds
    assert "requires more than" in result.left_out["slow"]


@pytest.mark.slow
def test_logs_show_the_backward_calls_of_frozen_layers(tmp_path: Path) -> None:
    plan = resolve_plan("frozen-layers", read_all()["frozen-layers"], size="quick")
    workload, threads = Workload(images=2, image_size=64, classes=5), torch.get_num_threads()

    def here(variant: Variant) -> SimpleNamespace:
        # In BF16, torch's own backward pass of maps as small has infinite gradients at times.
        options = {**variant.options, "precision": "float32"}
        prepared = load_recipe(variant.recipe)(workload, **options)
        return SimpleNamespace(ask=lambda question: answer(question, prepared))

    pool: Any = SimpleNamespace(worker=here)
    # On one thread torch has kernels of its own for small convolutions.
    torch.set_num_threads(2)
    try:
        calls = compare_calls(("gradients-of-all", "frozen"), pool, plan.variants, folder=tmp_path)
    finally:
        torch.set_num_threads(threads)
    assert calls is not None
    kinds = {kind["kind"]: kind for kind in calls["kinds"]}
    extra = {
        kind: kinds[f"convolution {kind}"]["first_calls"]
        - kinds[f"convolution {kind}"]["second_calls"]
        for kind in ("forward", "backward data", "backward weights")
    }
    # The gradient of the image is never needed; the two first convolutions of layer2 compute that
    # of their input only if something before them trains.
    assert extra == {
        "forward": 0,
        "backward weights": FROZEN_CONVOLUTIONS,
        "backward data": FROZEN_CONVOLUTIONS - 1 + 2,
    }
    assert all(call["extra_calls"] > 0 for call in calls["only_one"])
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(calls["logs"])


@pytest.mark.exhaustive
@pytest.mark.whole_machine
def test_stopped_measurement_has_its_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = resolve_plan("frozen-layers", read_all()["frozen-layers"], size="quick", rounds=1)
    plan = replace(plan, workload=Workload(images=1, image_size=128, classes=5), warm_up=1)

    def stopped(file: Path, content: object) -> None:
        write_json(file, content)
        raise KeyboardInterrupt

    monkeypatch.setattr(measure_module, "write_json", stopped)
    file = tmp_path / "result.json"
    with pytest.raises(KeyboardInterrupt):
        measured(plan, file)
    stored = read_result(file)
    assert stored.is_complete and stored.calls is not None
    assert all((tmp_path / log).stat().st_size for log in stored.calls["logs"])


def test_calls_need_both_variants(tmp_path: Path) -> None:
    with WorkerPool(Workload(), warm_up=1, print_line=print) as pool:
        assert compare_calls(("one", "other"), pool, {}, folder=tmp_path) is None


def test_job_is_summarized_by_its_slowest_rank() -> None:
    data = [0.1] * 3
    first = rank_steps(0, [2.0, 2.2, 4.0], data=data, exchange=[0.3, 0.1, 0.5])
    second = rank_steps(1, [1.9, 2.4, 2.1], data=data, exchange=[0.2, 0.4, 0.6])
    run = summarize_job([first, second], images=3)
    rate = pytest.approx(2 * 3 / 2.4)
    parts = {"waiting for data": 0.1, "waiting for gradients": 0.2}
    assert run.seconds == 2.4
    assert run.details == {"images a second": rate, **parts}


@pytest.mark.exhaustive
@pytest.mark.whole_machine
def test_two_real_ranks_train(tmp_path: Path) -> None:
    sizes = {"ranks": 2, "threads": 1, "steps": 2, "warm_up_steps": 1}
    variant = Variant("some", "", "mpirun", options={**sizes, "precision": "float32"})
    workload, scenes = Workload(images=1, image_size=64), tmp_path / "scenes"
    run = JobRunner(variant, workload, scenes=scenes, print_line=lambda line: None).run()
    assert run.details["images a second"] == pytest.approx(2 / run.seconds)
    assert 0 < run.details["waiting for gradients"] < run.seconds
