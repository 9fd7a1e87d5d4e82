"""The suite in two parts: tests side by side that one core is enough for, then the others.

`make test` runs the first part with pytest-xdist: each of its workers keeps to a core of its own,
and so does all that it starts, as on a machine with one core. A test that needs more cores, or
would disturb others, is marked `whole_machine`; the second part runs those one after another.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from common.cli import run_command
from tests.support.commands import RunHere

LONG_FILES = (
    "docs/test_commands.py",
    "profiling/studies/tune/test_interrupted.py",
    "test_train_overlap.py",
    "launch/test_process_group.py",
    "test_train.py",
    "retinanet/engine/test_ipex_engine.py",
    "retinanet/engine/test_precision.py",
    "test_train_mlperf.py",
    "profiling/ablate/test_recipes.py",
    "profiling/ablate/test_ipex_recipes.py",
    "test_train_bad_images.py",
    "retinanet/export/test_export_command.py",
    "test_train_memory.py",
    "profiling/capture/test_captured_training.py",
    "profiling/bench/test_command.py",
)
"""Of half a minute to two minutes each: they begin first, or one worker ends long after the other.
pytest-xdist by itself begins with the files of many tests, which are short ones."""

NOT_AS_WRITTEN = "not run as written"
"""Property of tests of the pages' commands: the reason, and the command (tests/docs)."""

TOO_FEW_CORES = "needs two cores for itself, this process has one"


def keep_worker_to_one_core(worker: str) -> None:
    """Bind this process to the core of the worker `gw0`, `gw1`, …: before torch counts cores."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


def reset_signals() -> None:
    """Give all signals their usual dispositions, and unblock them, here and in what tests start.

    A caller hands down what it ignores: `nohup make test` SIGHUP, `make test &` in a script SIGINT
    and SIGQUIT. Programs rightly leave ignored signals ignored, so tests that send them would wait
    for ever.
    """
    python_ignores = {signal.SIGPIPE, signal.SIGXFSZ}  # in itself; in what it starts they are reset
    for number in signal.valid_signals() - python_ignores:
        if signal.getsignal(number) is signal.SIG_IGN:
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, usual)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


reset_signals()

if "PYTEST_XDIST_WORKER" in os.environ:
    keep_worker_to_one_core(os.environ["PYTEST_XDIST_WORKER"])


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunHere:
    """Runs a command as its users do, from the repository and into a pipe."""
    monkeypatch.chdir(Path(__file__).resolve().parents[1])
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def run(main: Callable[[], int], *words: str | Path) -> CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["command", *map(str, words)])
        capsys.readouterr()
        try:
            code = run_command(main)
        except SystemExit as ended:  # argparse's
            code = int(ended.code or 0)
        written = capsys.readouterr()
        return CompletedProcess(words, code, written.out, written.err)

    return run


def place_of(item: pytest.Item) -> int:
    """Of its file in the order in which files begin; those that are not long keep theirs."""
    file = item.path.relative_to(Path(__file__).parent).as_posix()
    return LONG_FILES.index(file) if file in LONG_FILES else len(LONG_FILES)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=place_of)
    if len(os.sched_getaffinity(0)) > 1:
        return
    for item in items:
        if item.get_closest_marker("whole_machine"):
            item.add_marker(pytest.mark.skip(reason=TOO_FEW_CORES))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says which commands of README and docs were not run as they are written, and why."""
    commands: dict[str, list[str]] = {}
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name == NOT_AS_WRITTEN:
                reason, command = value
                commands.setdefault(reason, []).append(command)
    if commands:
        terminalreporter.section("commands of the pages that were not run as they are written")
    for reason, same in sorted(commands.items()):
        terminalreporter.write_line(f"{reason}:")
        for command in same:
            terminalreporter.write_line(f"    {command}")
