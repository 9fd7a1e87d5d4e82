"""`bench step --threads`: with fake workers on 16 CPUs of 8 cores, and for real on two cores."""

import getpass
import json
import platform
import re
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from common.machine import processor_name
from profiling.__main__ import main
from profiling.bench import results, threads
from profiling.bench.physical_cores import Cores
from profiling.bench.shared import MOST_BUSY, read_shared
from profiling.bench.variant import Run, Variant, Workload
from profiling.bench.worker_pool import WorkerPool
from retinanet.engine.tile_convolution import Tiles, best_tiles
from tests.launch.topologies import cores_in_a_row
from tests.profiling.bench.test_shared import SAMPLE
from tests.support.commands import RunHere

PAIRED = Cores(
    topology=cores_in_a_row((0, 16, 0, 0)),
    cores=tuple((cpu, cpu + 1) for cpu in range(0, 16, 2)),
    kept={(cpu, cpu + 1): 0.53 for cpu in range(0, 16, 2)},
)
NUMBERS = (1, 2, 4, 8, 16)


class FakeWorker:
    """Convolves as fast as the cores are many, and adds on one thread whatever their number."""

    rss_mb = 100.0

    def __init__(self, variant: Variant, workload: Workload) -> None:
        assert variant.share is not None
        self.cpus, self.recipe = variant.share.cpus, variant.recipe.rpartition(".")[2]
        self.cores = len({cpu // 2 for cpu in self.cpus})
        assert variant.name.endswith("thread" if len(self.cpus) == 1 else "threads")
        self.facts: dict[str, Any] = {"step_gflop": 800.0} if self.recipe == "machine" else {}

    @property
    def convolving(self) -> float:
        return 2.0 / self.cores

    def run(self) -> Run:
        fast = {"float32": 100.0 * self.cores, "bf16": 400.0 * self.cores, "copy": 2e10}
        details = fast if self.recipe == "machine" else {"loss": 1.5}
        seconds = self.convolving + 0.25 + 0.05
        return Run(seconds=seconds, page_faults=0, rss_mb=100, peak_rss_mb=200, details=details)

    def ask(self, question: str) -> dict[str, Any]:
        assert self.recipe == "step_torch"
        if question == "operators":
            return {"operators": {"aten::mm x1": 0.5}}
        assert question == "primitives"
        kinds = {"convolution forward": self.convolving}
        if len(self.cpus) == 1:
            kinds["reorder"] = 0.0125  # none with more threads
        kernels = {"masked_sum": 0.25 - kinds.get("reorder", 0.0)}
        return {"seconds": 3.0, "by_kind": kinds, "kernel_seconds": kernels}

    def close(self) -> None:
        pass


@pytest.fixture
def fake_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "WorkerPool", partial(WorkerPool, start=FakeWorker))
    monkeypatch.setattr(threads, "find_cores", lambda **_: PAIRED)


@pytest.mark.usefixtures("fake_machine")
def test_kernels_that_do_not_scale_are_seen(run_here: RunHere, tmp_path: Path) -> None:
    file = tmp_path / "threads.json"
    options = ("--rounds=2", "--warm-up=1", "--where", f"--json={file}")
    done = run_here(main, "bench", "step", "--threads=16,1,2,4,8", *options)
    assert done.returncode == 0, done.stderr
    for text in (
        f"{processor_name()}: 16 virtual cores, 8 physical (measured; /sys says 16)",
        "0+1, 2+3",
        "time of torch, 16 threads by operator",
    ):
        assert text in done.stdout
    by_kernel = done.stdout.partition("torch: a step by kernel")[2].partition(" by operator")[0]
    rows = {row[0]: row[1:] for row in map(cells, by_kernel.splitlines()) if row}
    # Milliseconds by threads, then the speed-up over that of the cores, 8 with 16 threads.
    by_threads = ["2,000", "1,000", "500", "250", "250"]
    assert rows["convolution forward"] == [*by_threads, "100%", "100%", "100%", "100%"]
    assert rows["masked_sum (ours)"][5:] == ["48%", "24%", "12%", "12%"]
    assert rows["reorder"] == ["12.5", *[""] * 8]
    assert rows["outside kernels"][:5] == ["50"] * 5
    assert rows["machine: product in BF16"][5:] == ["100%"] * 4
    assert rows["machine: copy in memory"][5:] == ["50%", "25%", "12%", "12%"]
    require_json(json.loads(file.read_text()))


@pytest.mark.usefixtures("fake_machine")
def test_time_outside_kernels_is_unknown_where_they_took_longer_than_the_step(
    run_here: RunHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(worker: FakeWorker, question: str) -> dict[str, Any]:
        assert question == "primitives"
        kernels = {"masked_sum": 9.0 if worker.cores == 1 else 0.0}
        return {"seconds": 9.0, "by_kind": {}, "kernel_seconds": kernels}

    monkeypatch.setattr(FakeWorker, "ask", ask)
    file = tmp_path / "threads.json"
    done = run_here(main, "bench", "step", "--threads=1,2", "--rounds=1", f"--json={file}")
    content = json.loads(file.read_text())
    assert [step["outside_kernels_ms"] for step in content["threads"]] == [None, 1300.0]
    rows = [cells(line) for line in done.stdout.splitlines()]
    assert ["outside kernels", "", "1,300", ""] in rows


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("│").split("│")] if line.startswith("│") else []


def require_json(content: dict[str, Any]) -> None:
    """Assert the steps, kernels and cores of the fake machine."""
    assert content["environment"]["cpu"] == processor_name() and content["environment"]["torch"]
    assert content["cores"]["physical"] == 8 and content["cores"]["physical_by_sys"] == 16
    assert content["cores"]["cpus_in_order"] == [*range(0, 16, 2), *range(1, 16, 2)]
    steps = content["threads"]
    assert [step["threads"] for step in steps] == list(NUMBERS)
    assert [step["physical_cores"] for step in steps] == [1, 2, 4, 8, 8]
    last = steps[-1]
    assert last["median_s"] == 0.55 and last["speed_up"] == pytest.approx(2.3 / 0.55)
    assert last["gflop_per_s"] == pytest.approx(800 / 0.55)
    assert last["gflop_per_s_and_core"] == pytest.approx(100 / 0.55)
    assert last["outside_kernels_ms"] == pytest.approx(50)
    rates = [last[f"{name}_per_s"] for name in ("float32_gflop", "bf16_gflop", "copy_gb")]
    assert rates == [800, 3200, 20]
    kernels = {row["kernel"]: row for row in content["kernels"]["torch"]}
    assert kernels["convolution forward"]["ms_16"] == 250
    assert kernels["masked_sum (ours)"]["scaling_16"] == pytest.approx(0.2375 / 0.25 / 8)
    assert content["contestants"]["torch, 16 threads"]["runs_s"] == [0.55, 0.55]


@pytest.mark.slow
@pytest.mark.whole_machine
def test_real_steps_on_one_and_two_cores(
    run_here: RunHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "PROFILED_RUNS", 1)
    # A single run and another one of its kernels, on a machine that may be busy.
    monkeypatch.setattr("profiling.bench.shared.KERNELS_OF_STEP", (0.02, 12.0))
    file, shared = tmp_path / "threads.json", tmp_path / "shared.json"
    sizes = ("--images=1", "--image-size=64", "--classes=6", "--rounds=1", "--warm-up=1")
    files = (f"--json={file}", f"--share={shared}")
    done = run_here(main, "bench", "step", "--threads=1,2", *sizes, *files)
    assert done.returncode == 0, done.stderr
    is_busy = json.loads(shared.read_text("utf-8"))["cores_busy_otherwise"] > MOST_BUSY
    assert f"{shared}: {'not for the leaderboard' if is_busy else 'look at it'}" in done.stderr
    require_shared(shared)
    content = json.loads(file.read_text())
    one, two = content["threads"]
    assert (one["threads"], two["threads"], one["physical_cores"]) == (1, 2, 1)
    contestants = content["contestants"]
    facts = [contestants[f"machine, {name}"]["facts"] for name in ("1 thread", "2 threads")]
    assert [each["threads"] for each in facts] == [1, 2]
    for step in (one, two):
        assert (
            step["median_s"] > 0 and step["float32_gflop_per_s"] > 1 and step["copy_gb_per_s"] > 0
        )
        assert step["gflop_per_s"] == pytest.approx(6.6 / step["median_s"], rel=0.5)
    kernels = {row["kernel"]: row for row in content["kernels"]["torch"]}
    assert kernels["masked_sum (ours)"]["ms_1"] > 0
    # For maps this small ours may leave only frozen layers to oneDNN.
    few = best_tiles() is Tiles.VECTORS
    assert kernels[f"convolution {'forward_inference' if few else 'backward_weights'}"]["ms_2"] > 0
    # The same weights and images, whatever the number of threads.
    losses = [
        contestants[f"torch, {name}"]["details"]["loss"] for name in ("1 thread", "2 threads")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def require_shared(file: Path) -> None:
    """Assert that a shared file names the processor and nobody, and is one of the leaderboard."""
    text = json.dumps(json.loads(file.read_text("utf-8")) | {"cores_busy_otherwise": 0.0})
    file.write_text(text)
    shared = read_shared(file)
    assert shared.processor.name == processor_name()
    assert [step.threads for step in shared.steps] == [1, 2]
    private = (platform.node(), getpass.getuser(), platform.release())
    assert [word for word in private if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text)] == []
    assert "/" not in text
    # What may be in it: everything else is a change of this list.
    found, sample = json.loads(text), json.loads(SAMPLE.read_text("utf-8"))
    for part in (lambda c: c, itemgetter("processor"), itemgetter("versions")):
        assert part(found).keys() == part(sample).keys()
