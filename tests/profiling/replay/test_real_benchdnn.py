"""The real benchdnn accepts every line, and what it then runs is what the log tells."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from profiling.onednn_log.log import Calls, read_logs
from profiling.onednn_log.work import Problem
from profiling.replay.benchdnn import probe_benchdnn, replay_with_benchdnn
from profiling.replay.benchdnn_fields import Dialect, Layouts
from profiling.replay.benchdnn_problems import write_problem_files
from profiling.replay.replay import Conditions

FIXTURES = Path(__file__).parents[2] / "fixtures" / "onednn"
LOGS = sorted(FIXTURES.glob("benchdnn-*.log"))
KINDS = {
    "bnorm": "batch_normalization",
    "conv": "convolution",
    "deconv": "deconvolution",
    "gnorm": "group_normalization",
    "ip": "inner_product",
    "lnorm": "layer_normalization",
    "pool": "pooling",
}

benchdnn = shutil.which("benchdnn")
needs_benchdnn = pytest.mark.skipif(
    benchdnn is None, reason="no benchdnn on PATH; docs/profiling.md tells how to build one"
)


def driver_of(log: Path) -> str:
    """`conv` of `benchdnn-3.7.2-conv.log`."""
    return log.stem.rpartition("-")[2]


def problems_of(log: Path, driver: str) -> dict[Problem, Calls]:
    """A log's problems of the driver's kind; the others only filled tensors."""
    kind = KINDS.get(driver, driver)
    return {
        problem: calls
        for problem, calls in read_logs([log]).calls().items()
        if problem.kind == kind
    }


def told(problem: Problem) -> tuple[object, ...]:
    """What a log asks for, whatever the library makes of it on this machine."""
    memories = tuple(
        (one.role, one.type, "" if "a" in one.properties else one.layout)
        for one in problem.memories
    )
    return (
        problem.kind,
        problem.direction,
        memories,
        problem.attributes,
        problem.auxiliary,
        problem.shape,
    )


def test_there_is_a_log_of_every_driver() -> None:
    assert len(LOGS) == 20


@pytest.mark.parametrize("log", LOGS, ids=driver_of)
def test_every_problem_has_a_line(log: Path, tmp_path: Path) -> None:
    driver = driver_of(log)
    calls = problems_of(log, driver)
    written = write_problem_files(calls, tmp_path, dialect=Dialect())
    assert (set(written.lines), written.not_expressible) == (set(calls), {})
    assert list(written.files) == [driver]


@needs_benchdnn
@pytest.mark.parametrize("layouts", ["log", "any"])
@pytest.mark.parametrize("log", LOGS, ids=driver_of)
def test_benchdnn_accepts_every_line(log: Path, layouts: Layouts, tmp_path: Path) -> None:
    driver = driver_of(log)
    written = write_problem_files(problems_of(log, driver), tmp_path, dialect=Dialect(3, layouts))
    printed = run("--mode=L", driver, written.files[driver])
    different = {line.text for line in written.lines.values()}
    assert printed.count(":LISTED __REPRO") == len(different), printed


@needs_benchdnn
@pytest.mark.parametrize("log", LOGS, ids=driver_of)
def test_what_benchdnn_runs_is_what_the_log_tells(log: Path, tmp_path: Path) -> None:
    driver = driver_of(log)
    calls = problems_of(log, driver)
    written = write_problem_files(calls, tmp_path, dialect=Dialect())
    output = tmp_path / "output"
    printed = run("--mode=C", driver, written.files[driver])
    if "SKIPPED (Data type not supported)" in printed:
        pytest.skip("this machine has no arithmetic of some types of the log")
    output.write_text(printed)
    ran = {told(problem) for problem in problems_of(output, driver)}
    assert {told(problem) for problem in calls} <= ran


@needs_benchdnn
def test_problems_are_timed_hot_and_cold(tmp_path: Path) -> None:
    assert benchdnn is not None
    calls = problems_of(FIXTURES / "benchdnn-3.7.2-pool.log", "pool")
    first = dict(list(calls.items())[:2])
    seen: list[tuple[int, int]] = []
    replay = replay_with_benchdnn(
        first,
        benchdnn=Path(benchdnn),
        conditions=Conditions(1, (min(os.sched_getaffinity(0)),)),
        repeats=7,
        cold=True,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert (set(replay.times), replay.not_replayed) == (set(first), {})
    for time in replay.times.values():
        assert time.runs == 7
        assert 0 < time.hot_ms < 1000
        assert time.cold_ms is None or 0 < time.cold_ms < 1000
        assert time.implementation
    assert seen == [(0, 2), (1, 2), (2, 2)]
    assert replay.version == probe_benchdnn(Path(benchdnn), Conditions(1)).version


@needs_benchdnn
def test_what_benchdnn_refuses_is_told_in_its_words_and_the_rest_goes_on(tmp_path: Path) -> None:
    assert benchdnn is not None
    log = tmp_path / "onednn.log"
    log.write_text(
        "onednn_verbose,v1,info,oneDNN v3.7.2 (commit N/A)\n"
        # benchdnn has no batch normalization fused with an addition on CPUs
        "onednn_verbose,v1,primitive,exec,cpu,batch_normalization,ref:any,forward_training,"
        "data:f32::blocked:acdb::f0,,flags:CHA,mb2ic16ih7iw7,30\n"
        # 60x5: sizes that do not fit
        "onednn_verbose,v1,primitive,exec,cpu,matmul,ref:any,undef,src:f32::blocked:ab::f0 "
        "wei:f32::blocked:ab::f0 dst:f32::blocked:ab::f0,,,4x6:60x5,20\n"
        "onednn_verbose,v1,primitive,exec,cpu,matmul,ref:any,undef,src:f32::blocked:ab::f0 "
        "wei:f32::blocked:ab::f0 dst:f32::blocked:ab::f0,,,4x6:6x5,10\n"
    )
    calls = read_logs([log]).calls()
    replay = replay_with_benchdnn(
        calls,
        benchdnn=Path(benchdnn),
        conditions=Conditions(1),
        repeats=3,
        cold=False,
        progress=lambda done, total: None,
    )
    assert [problem.shape for problem in replay.times] == ["4x6:6x5"]
    why = {problem.shape: why for problem, why in replay.not_replayed.items()}
    assert why["mb2ic16ih7iw7"] == "benchdnn: SKIPPED (Case not supported)"
    assert why["4x6:60x5"].startswith("benchdnn: ")


def run(mode: str, driver: str, file: Path) -> str:
    """What benchdnn prints of a problem file."""
    assert benchdnn is not None
    finished = subprocess.run(
        [benchdnn, mode, f"--{driver}", f"--batch={file}"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "ONEDNN_VERBOSE": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=120,
    )
    return finished.stdout
