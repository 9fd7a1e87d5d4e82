"""benchdnn as a process: its cores and its end, its output read back, and the real program."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from common.errors import InputError
from profiling.onednn_log.log import Calls, read_logs
from profiling.onednn_log.work import Problem
from profiling.replay.benchdnn import (
    KINDS,
    Ended,
    find_benchdnn,
    probe_benchdnn,
    read_timed,
    run_benchdnn,
    typical,
)
from profiling.replay.benchdnn_fields import Dialect
from profiling.replay.benchdnn_problems import write_problem_files
from profiling.replay.replay import Conditions, Replay, ReplayOptions, Work
from profiling.replay.run import run_again
from tests.profiling.onednn_log.logs import FIXTURES
from tests.profiling.replay.problems import BENCHDNN, by_kind, needs_benchdnn
from tests.support.commands import write_program
from tests.support.processes import processes_with, wait_until_gone

CPU = min(os.sched_getaffinity(0))
LONG = f"61.{os.getpid()}"  # Seconds; no other process sleeps as long
PRINT_ENVIRONMENT = """\
import json, os
names = ("OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND", "KMP_AFFINITY", "ONEDNN_VERBOSE")
environment = {name: os.environ.get(name) for name in names}
print(json.dumps({"cpus": sorted(os.sched_getaffinity(0)), **environment}))
"""


def run(path: Path, *, timeout: float = 60.0, conditions: Conditions = Conditions(1)) -> Ended:  # noqa: B008
    return run_benchdnn(path, [], path.with_name("output"), conditions=conditions, timeout=timeout)


def test_program_has_the_cores_and_threads_of_the_conditions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KMP_AFFINITY", "compact")
    before = os.sched_getaffinity(0)
    program = write_program(tmp_path / "program", PRINT_ENVIRONMENT, interpreter=sys.executable)
    assert run(program, conditions=Conditions(threads=1, cpus=(CPU,))) == Ended(0, "")
    assert json.loads((tmp_path / "output").read_text()) == {
        "cpus": [CPU],
        "OMP_NUM_THREADS": "1",
        "OMP_PLACES": f"{{{CPU}}}",
        "OMP_PROC_BIND": "close",
        "KMP_AFFINITY": None,
        "ONEDNN_VERBOSE": "1",
    }
    assert os.sched_getaffinity(0) == before


def test_timeout_kills_the_program_and_its_children(tmp_path: Path) -> None:
    program = write_program(tmp_path / "program", f"sleep {LONG} & touch {tmp_path}/begun; wait")
    ended = run(program, timeout=1)
    assert ended.status is None and "killed" in ended.why
    assert (tmp_path / "begun").exists()
    wait_until_gone(f"sleep {LONG}")


def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    program = write_program(tmp_path / "program", f"exec sleep {LONG}")

    def interrupt() -> None:
        while not processes_with(f"sleep {LONG}"):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        run(program)
    interrupting.join()
    wait_until_gone(f"sleep {LONG}")


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        ("kill -SEGV $$", Ended(-signal.SIGSEGV, "ended by SIGSEGV")),
        ("kill -KILL $$", Ended(-signal.SIGKILL, "ended by SIGKILL (out of memory?)")),
        ("exit 3", Ended(3, "ended with status 3")),
        ("echo a; echo 'ERROR: no tag'; echo Error; exit 2", Ended(2, "ERROR: no tag")),
        ("echo 'err: unknown driver' >&2", Ended(0, "err: unknown driver")),
    ],
)
def test_end_is_described(text: str, ended: Ended, tmp_path: Path) -> None:
    assert run(write_program(tmp_path / "program", text)) == ended


@pytest.mark.parametrize(
    ("text", "reason"), [("exit 3", "ended with status 3"), ("echo hello", "is not benchdnn")]
)
def test_other_program_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    program = write_program(tmp_path / "program", text)
    with pytest.raises(InputError, match=reason):
        probe_benchdnn(program, Conditions(1))
    program.rename(tmp_path / "benchdnn").chmod(0o644)
    with pytest.raises(InputError, match=r"--benchdnn: .*benchdnn is not an executable"):
        find_benchdnn(tmp_path)
    with pytest.raises(InputError, match=r"--benchdnn: .*nowhere does not exist"):
        find_benchdnn(tmp_path / "nowhere")


FILL = (
    "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:abcd::f0 "
    "dst:bf16::blocked:acdb::f0,,,4x64x24x32,4.36011\n"
)
RUN = (
    "onednn_verbose,v1,primitive,exec,cpu,convolution,brg_conv_fwd:avx512_core_bf16,"
    "forward_training,src:bf16::blocked:acdb::f0 wei:bf16:a:blocked:AcdB64a2b::f0 "
    "bia:bf16:a:blocked:a::f0 dst:bf16::blocked:acdb::f0,attr-scratchpad:user,"
    "alg:convolution_direct,mb4_ic64oc128_ih24oh12kh3sh2dh0ph1_iw32ow16kw3sw2dw0pw1,{}\n"
)
MEASURED = (
    "profilednn,{},{},--mode=P --fix-times-per-prb=3 --conv --allow-enum-tags-only=false "
    "--dt=bf16:bf16:bf16 --stag=acdb --dtag=acdb --attr-scratchpad=user "
    "mb4ic64ih24iw32oc128oh12ow16kh3kw3sh2sw2ph1pw1\n"
)
TEMPLATE = "Output template: profilednn,%-time%,%0time%,%prb%\n"
SKIPPED = (
    "0:SKIPPED (Invalid case) __REPRO: --mode=P --fix-times-per-prb=3 --matmul "
    "--runtime_dims_masks=1:0 16x32:32x64\n"
)
ZEROS = "profilednn,0,0,--mode=P --fix-times-per-prb=3 --matmul 16x32:32x64\n"
HOT = [RUN.format(time) for time in ("8.01709", "7.93701", "7.90991", "11.9241")]
COLD = [RUN.format(time) for time in ("7.99219", "4.83984", "11.907", "7.9502")]
HOT_RUNS, COLD_RUNS = [7.93701, 7.90991, 11.9241], [4.83984, 11.907, 7.9502]
ONE, TWO = MEASURED.format(1, 1), MEASURED.format(4.9, 8.3)
REFUSED = "benchdnn: SKIPPED (Invalid case)"


def read_output(
    folder: Path, parts: list[str], driver: str
) -> tuple[list[tuple[Problem, list[float]]], str]:
    """Read what benchdnn printed; return the measured problems and a refusal."""
    output = folder / "output"
    output.write_text("".join(parts))
    return read_timed(output, driver=driver, runs=3)


@pytest.mark.parametrize(
    ("parts", "driver", "expected", "refused"),
    [
        # the runs before each line of the template count, and the warm-up does not
        ([FILL, *HOT, TEMPLATE, ONE, FILL, *COLD, TWO], "conv", [HOT_RUNS, COLD_RUNS], ""),
        ([SKIPPED, TEMPLATE, ZEROS], "matmul", [], REFUSED),
        ([*HOT, TEMPLATE, ONE, SKIPPED, ZEROS], "conv", [HOT_RUNS], REFUSED),
        ([*HOT, ONE, RUN.format(1)[:60]], "conv", [HOT_RUNS], ""),  # the output was truncated
    ],
)
def test_output_is_read(
    parts: list[str], driver: str, expected: list[Any], refused: str, tmp_path: Path
) -> None:
    timed, reason = read_output(tmp_path, parts, driver)
    assert ([milliseconds for _, milliseconds in timed], reason) == (expected, refused)
    assert {problem.implementation for problem, _ in timed} <= {"brg_conv_fwd:avx512_core_bf16"}


@pytest.mark.parametrize(
    ("parts", "driver", "reason"),
    [
        ([FILL, RUN.format(1), RUN.format(1), ONE], "conv", "3 runs"),
        ([*HOT, ONE], "matmul", "convolution instead of matmul"),
    ],
)
def test_unexpected_output_is_an_error(
    parts: list[str], driver: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=reason):
        read_output(tmp_path, parts, driver)


def test_typical_is_the_median_unless_times_are_near_the_clocks_resolution() -> None:
    assert typical((5.0, 1.0, 100.0)) == 5.0
    # a microsecond a step: the mean of 1, 1, 2, 2 of the middle half
    steps = (0.0, 0.0, 0.001, 0.001, 0.002, 0.002, 0.003, 0.009)
    assert typical(steps) == pytest.approx(0.0015)


DRIVERS = sorted(log.stem.rpartition("-")[2] for log in FIXTURES.glob("benchdnn-*.log"))


def read_calls(driver: str, log: Path | None = None) -> dict[Problem, Calls]:
    """Return a log's problems of the driver's kind; all others only filled tensors."""
    calls = read_logs([log or FIXTURES / f"benchdnn-3.7.2-{driver}.log"]).calls()
    return {problem: calls[problem] for problem in by_kind(calls, KINDS.get(driver, driver))}


def requested(problem: Problem) -> tuple[object, ...]:
    """Return what a log requests, without what the library chooses on this machine."""
    memories = tuple(
        (memory.role, memory.type, "" if "a" in memory.properties else memory.layout)
        for memory in problem.memories
    )
    fields = (problem.kind, problem.direction, memories)
    return (*fields, problem.attributes, problem.auxiliary, problem.shape)


def run_real(mode: str, driver: str, file: Path) -> str:
    """Return what benchdnn prints for a problem file."""
    command = [str(BENCHDNN), mode, f"--{driver}", f"--batch={file}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ONEDNN_VERBOSE": "1"}
    finished = subprocess.run(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        check=False, timeout=120,
    )  # fmt: skip
    return finished.stdout


def test_every_problem_of_every_driver_has_a_line(tmp_path: Path) -> None:
    assert len(DRIVERS) == 20
    for driver in DRIVERS:
        calls = read_calls(driver)
        files = write_problem_files(calls, tmp_path / driver, dialect=Dialect())
        assert (set(files.lines), files.not_expressible) == (set(calls), {})
        assert list(files.files) == [driver]


@needs_benchdnn
@pytest.mark.slow
@pytest.mark.parametrize("driver", DRIVERS)
def test_benchdnn_runs_what_the_log_requests(driver: str, tmp_path: Path) -> None:
    calls = read_calls(driver)
    for layouts in ("log", "any"):
        dialect = Dialect(3, layouts)
        files = write_problem_files(calls, tmp_path / layouts, dialect=dialect)
        printed = run_real("--mode=L", driver, files.files[driver])
        different = {line.text for line in files.lines.values()}
        assert printed.count(":LISTED __REPRO") == len(different), printed
    printed = run_real("--mode=C", driver, tmp_path / "log" / f"{driver}.txt")
    if "SKIPPED (Data type not supported)" in printed:
        pytest.skip("this machine has no arithmetic for some types of the log")
    output = tmp_path / "output"
    output.write_text(printed)
    executed = {requested(problem) for problem in read_calls(driver, output)}
    assert {requested(problem) for problem in calls} <= executed


def replay_calls(calls: dict[Problem, Calls], *, repeats: int, cold: bool) -> Replay:
    """Run a log's problems again with the real program."""
    conditions = Conditions(1, (CPU,))
    program = probe_benchdnn(BENCHDNN, conditions)
    options = ReplayOptions(repeats=repeats, cold=cold, threads=None)
    work = Work(calls=calls, conditions=conditions, options=options, file=None)
    return run_again(work, program, Console(quiet=True))


@needs_benchdnn
@pytest.mark.slow
def test_problems_are_timed_hot_and_cold() -> None:
    calls = dict(list(read_calls("pool").items())[:2])
    replay = replay_calls(calls, repeats=7, cold=True)
    assert ([time.problem for time in replay.times], replay.not_replayed) == ([*calls], [])
    for measured in replay.times:
        assert measured.runs == 7 and measured.implementation
        assert 0 < measured.hot_ms < 1000
        assert measured.cold_ms is None or 0 < measured.cold_ms < 1000
    assert replay.version == probe_benchdnn(BENCHDNN, Conditions(1)).version


@needs_benchdnn
@pytest.mark.slow
def test_refused_problem_has_a_reason_and_the_others_run(tmp_path: Path) -> None:
    log = tmp_path / "onednn.log"
    matrices = "src:f32::blocked:ab::f0 wei:f32::blocked:ab::f0 dst:f32::blocked:ab::f0"
    log.write_text(
        "onednn_verbose,v1,info,oneDNN v3.7.2 (commit N/A)\n"
        # benchdnn has no batch normalization with a fused addition on CPUs
        "onednn_verbose,v1,primitive,exec,cpu,batch_normalization,ref:any,forward_training,"
        "data:f32::blocked:acdb::f0,,flags:CHA,mb2ic16ih7iw7,30\n"
        # sizes that do not fit
        f"onednn_verbose,v1,primitive,exec,cpu,matmul,ref:any,undef,{matrices},,,4x6:60x5,20\n"
        f"onednn_verbose,v1,primitive,exec,cpu,matmul,ref:any,undef,{matrices},,,4x6:6x5,10\n"
    )
    replay = replay_calls(read_logs([log]).calls(), repeats=3, cold=False)
    assert [time.problem.shape for time in replay.times] == ["4x6:6x5"]
    reasons = {item.problem.shape: item.why for item in replay.not_replayed}
    assert reasons["mb2ic16ih7iw7"] == "benchdnn: SKIPPED (Case not supported)"
    assert reasons["4x6:60x5"].startswith("benchdnn: ")
