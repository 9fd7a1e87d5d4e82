"""Real problems, run again by the real worker through the installed torch."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launch.shares import Share
from profiling.onednn_log.log import Calls, read_logs
from profiling.onednn_log.work import Problem
from profiling.replay.replay import Conditions, Replay
from profiling.replay.torch_replay import TorchWorker, replay_with_torch
from tests.profiling.onednn_log.logs import shared_logs
from tests.profiling.replay.problems import v3
from tests.support.fast_precision import needs_bf16

REPOSITORY = Path(__file__).resolve().parents[3]
WRITER = "tests.profiling.replay.training_log"
ONCE = Calls(count=1, total_ms=1.0)
COMPUTING = ("convolution", "matmul")


@pytest.fixture(scope="module")
def training_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("log") / "training.log"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", WRITER, str(file)]
    subprocess.run(command, cwd=REPOSITORY, env=environment, check=True)
    return file


def replay(
    problems: list[Problem],
    *,
    cold: bool = False,
    threads: int = 1,
    worker_of: Callable[[Share], TorchWorker] = TorchWorker,
) -> Replay:
    return replay_with_torch(
        dict.fromkeys(problems, ONCE),
        conditions=Conditions(threads),
        repeats=3,
        cold=cold,
        progress=lambda done, of: None,
        worker_of=worker_of,
    )


class KeepsLogs(TorchWorker):
    """The worker, with what oneDNN logged of each problem kept."""

    def __init__(self, share: Share, folder: Path) -> None:
        super().__init__(share)
        self.folder = folder

    def run(self, problem: Problem, log: Path, *, repeats: int, cold: bool) -> dict[str, Any]:
        answer = super().run(problem, log, repeats=repeats, cold=cold)
        shutil.copy(log, self.folder)
        return answer


def raw_facts(problem: Problem) -> tuple[str, str, str, tuple[str, ...]]:
    """Kind, direction, shape, and types of source, weights and result, as the log spells them."""
    types = tuple(one.type for one in problem.memories if one.role in ("src", "wei", "dst"))
    return problem.kind, problem.direction, problem.shape, types


def raw_facts_of_lines(text: str) -> set[tuple[str, str, str, tuple[str, ...]]]:
    """The same of each executed line, taken apart by hand."""
    found = set()
    for line in text.splitlines():
        if ",exec,cpu," in line:
            kind, _, direction, memories, _, _, shape, _ = line.split(",exec,cpu,")[1].split(",")
            roles = (memory.split(":") for memory in memories.split())
            types = tuple(role[1] for role in roles if role[0] in ("src", "wei", "dst"))
            found.add((kind, direction, shape, types))
    return found


@needs_bf16
def test_every_problem_of_a_training_runs_again_with_its_shape_and_types(
    training_log: Path, tmp_path: Path
) -> None:
    calls = read_logs([training_log]).calls()
    asked = {raw_facts(one) for one in calls if one.kind in COMPUTING}
    directions = {(kind, direction) for kind, direction, _, _ in asked}
    assert directions == {
        ("convolution", "forward_training"),
        ("convolution", "backward_data"),
        ("convolution", "backward_weights"),
        ("matmul", "undef"),
    }
    assert {types[0] for _, _, _, types in asked} == {"f32", "bf16"}
    found = replay(list(calls), cold=True, worker_of=lambda share: KeepsLogs(share, tmp_path))
    assert {one: why for one, why in found.not_replayed.items() if one.kind in COMPUTING} == {}
    written = "\n".join(log.read_text() for log in tmp_path.glob("*.log"))
    assert asked <= raw_facts_of_lines(written)
    # Reorders of weights are never asked for: they come back with the convolutions they serve.
    assert found.not_replayed == {}
    for problem in calls:
        time = found.times[problem]
        assert time.cold_ms is not None and time.cold_ms >= 0
        assert time.hot_ms > 0 or problem.kind == "reorder"  # a few numbers take no time
        assert time.runs >= 3 and time.implementation
    assert found.runner == "torch" and found.conditions == Conditions(threads=1)
    assert f"oneDNN v{found.version} " in training_log.read_text()
    assert found.instruction_set in training_log.read_text()


def test_a_time_is_the_median_of_what_onednn_logged(training_log: Path, tmp_path: Path) -> None:
    calls = read_logs([training_log]).calls()
    problem = next(one for one in calls if one.direction == "backward_weights")
    found = replay([problem], worker_of=lambda share: KeepsLogs(share, tmp_path))
    (log,) = tmp_path.glob("*.log")
    lines = [line for line in log.read_text().splitlines() if ",backward_weights," in line]
    milliseconds = sorted(float(line.rsplit(",", 1)[1]) for line in lines)
    assert len(milliseconds) == 3
    assert found.times[problem].hot_ms == milliseconds[1]
    assert found.times[problem].cold_ms is None


@needs_bf16
@pytest.mark.whole_machine
def test_real_logs_of_other_versions_run_again() -> None:
    for file in shared_logs():
        calls = read_logs([file]).calls()
        computing = [one for one in calls if one.kind in COMPUTING]
        found = replay(computing, threads=2)  # as in the logs: on one torch has other choices
        assert len(computing) >= 20 and set(found.times) == set(computing), found.not_replayed


def test_what_torch_does_not_run_is_named_with_the_reason() -> None:
    image = "src:{0}::blocked:acdb::f0 wei:{0}:a:blocked:any::f0 dst:{0}::blocked:acdb::f0"
    shape = "mb1_ic8oc8_ih6oh6kh1sh1dh0ph0_iw6ow6kw1sw1dw0pw0"
    rows = "src:f32::blocked:ab::f0 wei:f32::blocked:ab::f0 dst:f32::blocked:ab::f0"
    asked = {
        v3(f"cpu,convolution,x,forward_training,{image.format('s8')},,alg:x,{shape}"): (
            "torch's operators do not give oneDNN s8"
        ),
        v3(f"cpu,matmul,x,undef,{rows},,,64x64:64x64"): (
            "torch gives float32 products to another library"
        ),
        v3(f"gpu:0,matmul,x,undef,{rows},,,64x64:64x64"): "it ran on gpu:0",
        v3("cpu,shuffle,x,undef,src:f32::blocked:ab::f0,,axis:1 group:2,4x4"): (
            "torch does not call oneDNN's shuffle"
        ),
        v3(f"cpu,matmul,x,undef,{rows.replace('f32', 'bf16')},,,2x2:2x2"): (
            "torch does not reach oneDNN's matmul with it"  # it gives it as little work itself
        ),
        v3(f"cpu,convolution,x,forward_training,{image.format('f32')},,alg:x,ic8_ih6oh6"): (
            "its shape ic8_ih6oh6 is not understood"
        ),
    }
    found = replay(list(asked))
    assert found.times == {} and found.not_replayed == asked


class DiesOnce(TorchWorker):
    """The worker, killed while it has a certain problem before it."""

    def __init__(self, share: Share, victim: Problem) -> None:
        super().__init__(share)
        self.victim = victim

    def run(self, problem: Problem, log: Path, *, repeats: int, cold: bool) -> dict[str, Any]:
        if problem == self.victim:
            process = self.process or self._start()
            os.kill(process.pid, signal.SIGKILL)
        return super().run(problem, log, repeats=repeats, cold=cold)


def test_a_worker_that_dies_costs_one_problem(training_log: Path) -> None:
    calls = read_logs([training_log]).calls()
    problems = [one for one in calls if one.kind == "convolution"][:4]
    victim = problems[1]
    found = replay(problems, worker_of=lambda share: DiesOnce(share, victim))
    assert found.not_replayed == {victim: "its process was ended by SIGKILL (out of memory?)"}
    assert set(found.times) == {*problems} - {victim}
