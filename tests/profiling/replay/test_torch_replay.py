"""Real problems, run again through the installed torch by the real worker."""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from launch.shares import Share
from profiling.onednn_log.log import Calls, read_logs
from profiling.onednn_log.work import Problem
from profiling.replay.replay import Conditions, Replay, ReplayOptions, Work
from profiling.replay.torch_replay import TorchWorker, run_with_torch
from tests.profiling.onednn_log.logs import shared_logs
from tests.profiling.replay.problems import by_kind, parse_v3
from tests.support.commands import run_program
from tests.support.fast_precision import needs_bf16

WRITER = "tests.profiling.replay.training_log"
ONCE = Calls(count=1, total_ms=1.0)
COMPUTING = ("convolution", "matmul")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def training_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("log") / "training.log"
    run_program(sys.executable, "-m", WRITER, file, check=True, OMP_NUM_THREADS="1")
    return file


def replay(
    problems: list[Problem],
    *,
    cold: bool = False,
    threads: int = 1,
    make_worker: Callable[[Share], TorchWorker] = TorchWorker,
) -> Replay:
    options = ReplayOptions(repeats=3, cold=cold, threads=None)
    calls, conditions = dict.fromkeys(problems, ONCE), Conditions(threads)
    work = Work(calls=calls, conditions=conditions, options=options, file=None)
    return run_with_torch(work, Console(quiet=True), make_worker=make_worker)


class LogKeepingWorker(TorchWorker):
    """The worker, which also copies oneDNN's log of each problem into a folder."""

    def __init__(self, share: Share, folder: Path) -> None:
        super().__init__(share)
        self.folder = folder

    def run(self, problem: Problem, log: Path, *, repeats: int, cold: bool) -> dict[str, Any]:
        answer = super().run(problem, log, repeats=repeats, cold=cold)
        shutil.copy(log, self.folder)
        return answer


def raw_facts(problem: Problem) -> tuple[str, str, str, tuple[str, ...]]:
    """Return kind, direction, shape, and types of source, weights and result."""
    types = tuple(
        memory.type for memory in problem.memories if memory.role in ("src", "wei", "dst")
    )
    return problem.kind, problem.direction, problem.shape, types


def raw_facts_of_lines(text: str) -> set[tuple[str, str, str, tuple[str, ...]]]:
    """Return the facts of each executed line, parsed independently."""
    facts = set()
    for line in text.splitlines():
        if ",exec,cpu," in line:
            kind, _, direction, memories, _, _, shape, _ = line.split(",exec,cpu,")[1].split(",")
            roles = (memory.split(":") for memory in memories.split())
            types = tuple(role[1] for role in roles if role[0] in ("src", "wei", "dst"))
            facts.add((kind, direction, shape, types))
    return facts


@needs_bf16
def test_every_problem_of_a_training_runs_again_with_its_shape_and_types(
    training_log: Path, tmp_path: Path
) -> None:
    calls = read_logs([training_log]).calls()
    requested = {raw_facts(problem) for problem in by_kind(calls, *COMPUTING)}
    assert {(kind, direction) for kind, direction, _, _ in requested} == {
        ("convolution", "forward_training"),
        ("convolution", "backward_data"),
        ("convolution", "backward_weights"),
        ("matmul", "undef"),
    }
    assert {types[0] for _, _, _, types in requested} == {"f32", "bf16"}
    result = replay(
        list(calls), cold=True, make_worker=lambda share: LogKeepingWorker(share, tmp_path)
    )
    # Reorders of weights are not run by themselves: they run with the convolutions that need them.
    assert result.not_replayed == []
    logs = [log.read_text() for log in tmp_path.glob("*.log")]
    assert requested <= raw_facts_of_lines("\n".join(logs))
    assert [time.problem for time in result.times] == list(calls)
    for time in result.times:
        assert time.cold_ms is not None and time.cold_ms >= 0
        assert time.hot_ms > 0 or time.problem.kind == "reorder"  # of a few numbers
        assert time.runs >= 3 and time.implementation
    assert result.runner == "torch" and result.conditions == Conditions(threads=1)
    header = training_log.read_text()
    assert f"oneDNN v{result.version} " in header and result.instruction_set in header


def test_time_is_the_median_of_the_log(training_log: Path, tmp_path: Path) -> None:
    calls = read_logs([training_log]).calls()
    problem = next(problem for problem in calls if problem.direction == "backward_weights")
    result = replay([problem], make_worker=lambda share: LogKeepingWorker(share, tmp_path))
    (log,) = tmp_path.glob("*.log")
    lines = [line for line in log.read_text().splitlines() if ",backward_weights," in line]
    milliseconds = sorted(float(line.rsplit(",", 1)[1]) for line in lines)
    assert len(milliseconds) == 3
    [time] = result.times
    assert (time.problem, time.hot_ms, time.cold_ms) == (problem, milliseconds[1], None)


@needs_bf16
@pytest.mark.exhaustive
@pytest.mark.whole_machine
def test_real_logs_of_other_versions_run_again() -> None:
    for file in shared_logs():
        computing = by_kind(read_logs([file]).calls(), *COMPUTING)
        result = replay(computing, threads=2)  # the log's number: torch chooses by it
        assert len(computing) >= 20 and result.not_replayed == []
        assert [time.problem for time in result.times] == computing


def test_problems_that_torch_cannot_run_have_a_reason() -> None:
    image = "src:{0}::blocked:acdb::f0 wei:{0}:a:blocked:any::f0 dst:{0}::blocked:acdb::f0"
    shape = "mb1_ic8oc8_ih6oh6kh1sh1dh0ph0_iw6ow6kw1sw1dw0pw0"
    rows = "src:f32::blocked:ab::f0 wei:f32::blocked:ab::f0 dst:f32::blocked:ab::f0"
    reasons = {
        f"cpu,convolution,x,forward_training,{image.format('s8')},,alg:x,{shape}": "s8",
        f"cpu,matmul,x,undef,{rows},,,64x64:64x64": "another library",
        f"gpu:0,matmul,x,undef,{rows},,,64x64:64x64": "gpu:0",
        "cpu,shuffle,x,undef,src:f32::blocked:ab::f0,,axis:1 group:2,4x4": "oneDNN's shuffle",
        # torch computes so small a product itself
        f"cpu,matmul,x,undef,{rows.replace('f32', 'bf16')},,,2x2:2x2": "oneDNN's matmul",
        f"cpu,convolution,x,forward_training,{image.format('f32')},,alg:x,ic8_ih6oh6": "shape",
    }
    result = replay([parse_v3(line) for line in reasons])
    whys = {item.problem: item.why for item in result.not_replayed}
    assert result.times == [] and len(whys) == len(reasons)
    for line, reason in reasons.items():
        assert reason in whys[parse_v3(line)]


class DyingWorker(TorchWorker):
    """The worker, killed when it gets a certain problem."""

    def __init__(self, share: Share, victim: Problem) -> None:
        super().__init__(share)
        self.victim = victim

    def run(self, problem: Problem, log: Path, *, repeats: int, cold: bool) -> dict[str, Any]:
        if problem == self.victim:
            process = self.process or self._start()
            os.kill(process.pid, signal.SIGKILL)
        return super().run(problem, log, repeats=repeats, cold=cold)


def test_dead_worker_costs_one_problem(training_log: Path) -> None:
    problems = by_kind(read_logs([training_log]).calls(), "convolution")[:4]
    victim = problems[1]
    result = replay(problems, make_worker=lambda share: DyingWorker(share, victim))
    [missing] = result.not_replayed
    assert missing.problem == victim and "SIGKILL" in missing.why
    assert {time.problem for time in result.times} == {*problems} - {victim}
