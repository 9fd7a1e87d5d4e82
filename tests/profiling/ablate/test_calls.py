from dataclasses import replace
from pathlib import Path

import pytest

from common.console import make_console
from profiling.ablate import measure
from profiling.ablate.definition import read_all
from profiling.ablate.measure import Photos, compare_calls
from profiling.ablate.result import Result, read_result, resolve_plan, write_result
from profiling.bench.variant import Workload
from profiling.bench.worker_pool import WorkerPool

FROZEN_CONVOLUTIONS = 11
"""conv1, and of layer1 three in each of three blocks and one beside the first."""


# On one thread torch has kernels of its own for small convolutions.
@pytest.mark.whole_machine
def test_comparing_logs_finds_the_backward_calls_of_frozen_layers(tmp_path: Path) -> None:
    plan = resolve_plan("frozen-layers", read_all()["frozen-layers"], size="quick")
    workload = Workload(images=2, image_size=128, classes=5)
    with WorkerPool(workload, warm_up=1, print_line=print) as pool:
        found = compare_calls(("gradients-of-all", "frozen"), pool, plan.variants, folder=tmp_path)
    assert found is not None
    kinds = {one["kind"]: one for one in found["kinds"]}
    extra = {
        kind: kinds[f"convolution {kind}"]["first_calls"]
        - kinds[f"convolution {kind}"]["second_calls"]
        for kind in ("forward", "backward data", "backward weights")
    }
    # Nobody wants the gradient of the image; the two convolutions that layer2 begins with are asked
    # for that of their input only where something before them wants it.
    assert extra == {
        "forward": 0,
        "backward weights": FROZEN_CONVOLUTIONS,
        "backward data": FROZEN_CONVOLUTIONS - 1 + 2,
    }
    assert all(one["extra_calls"] > 0 for one in found["only_one"])
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(found["logs"])


@pytest.mark.whole_machine
def test_what_is_stopped_after_any_round_has_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = resolve_plan("frozen-layers", read_all()["frozen-layers"], size="quick", rounds=1)
    plan = replace(plan, workload=Workload(images=1, image_size=128, classes=5), warm_up=1)
    console = make_console(quiet=True)

    def stopped(file: Path, result: Result) -> None:
        write_result(file, result)
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "write_result", stopped)
    file = tmp_path / "result.json"
    with pytest.raises(KeyboardInterrupt):
        measure.measure(
            plan,
            measure.fresh_result(plan, command="made", on={}),
            file,
            photos=Photos(None, tmp_path, console),
            console=console,
        )
    kept = read_result(file)
    assert kept.is_complete and kept.calls is not None
    assert all((tmp_path / log).stat().st_size for log in kept.calls["logs"])


def test_nothing_is_compared_where_a_side_cannot_run(tmp_path: Path) -> None:
    with WorkerPool(Workload(), warm_up=1, print_line=print) as pool:
        assert compare_calls(("one", "other"), pool, {}, folder=tmp_path) is None
