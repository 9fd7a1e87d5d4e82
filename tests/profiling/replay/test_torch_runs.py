"""Runs of the worker, in this process: their number, their marks, and cleared caches."""

from pathlib import Path

import pytest
import torch

from profiling.onednn_log.log import read_logs
from profiling.replay import torch_runs
from profiling.replay.torch_runs import (
    FEWEST_RUNS,
    WARM_UP,
    WITHOUT_KNOWN_CACHES,
    flusher,
    measure,
)


class CountedConvolution:
    """A convolution that records the order of its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.images, self.weight = torch.randn(1, 8, 6, 6), torch.randn(4, 8, 1, 1)

    def run(self) -> None:
        self.calls.append("run")
        torch.ops.aten.mkldnn_convolution(self.images, self.weight, None, [0, 0], [1, 1], [1, 1], 1)

    def flush(self) -> None:
        self.calls.append("flush")


def test_each_run_is_a_step_of_the_log_and_warm_up_is_not(tmp_path: Path) -> None:
    counted = CountedConvolution()
    runs = measure(counted.run, tmp_path / "log", repeats=5, flush=counted.flush)
    assert runs == {"hot": 5, "cold": 5}
    assert counted.calls == ["run"] * (WARM_UP + 5) + ["flush", "run"] * 5
    log = read_logs([tmp_path / "log"])
    assert log.steps == list(range(10))
    convolutions = [
        calls.count
        for problems in log.executions.values()
        for problem, calls in problems.items()
        if problem.kind == "convolution"
    ]
    assert convolutions == [1] * 10


def test_slow_problem_runs_three_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_runs, "LONGEST_SECONDS", 0.0)
    runs = measure(CountedConvolution().run, tmp_path / "log", repeats=50, flush=None)
    assert runs == {"hot": FEWEST_RUNS, "cold": 0}


@pytest.mark.parametrize(
    ("caches", "size"), [(4096 * 1024, 2 * 4096 * 1024), (0, WITHOUT_KNOWN_CACHES)]
)
def test_flusher_overwrites_the_caches_twice(
    caches: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_runs, "last_level_bytes", lambda: caches)
    buffer = flusher()()
    assert isinstance(buffer, torch.Tensor)
    assert buffer.numel() * buffer.element_size() == size
