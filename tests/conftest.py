"""The suite in two parts: first tests that need one core, in parallel; then the others.

`make test` runs the first part with pytest-xdist: each of its workers keeps to a core of its own,
and so does all that it starts, as on a machine with one core. A test that needs more cores, or
would disturb others, is marked `whole_machine`; the second part runs those one after another.
The markers `slow`, `exhaustive`, `ipex`, `openvino` and `accimage` make the tiers of docs/tests.md.
"""

import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from io import BytesIO, TextIOWrapper
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from hypothesis import settings

from common.cli import run_command
from tests.launch.ranks import MPIRUNS, Ended, TrainHere
from tests.launch.two_hosts import TwoHosts, two_hosts
from tests.support.commands import REPOSITORY, RunHere

NOT_AS_WRITTEN = "not run as written"
"""Property of the tests in tests/docs: the reason, and the command."""

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

# A busy machine takes longer than hypothesis permits an example; no test is about time.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

if "PYTEST_XDIST_WORKER" in os.environ:
    keep_worker_to_one_core(os.environ["PYTEST_XDIST_WORKER"])


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunHere:
    """Return a function that runs a command in this process, from the repository."""
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def run(
        main: Callable[[], int], *arguments: str | Path, program: str = "command"
    ) -> CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", [program, *map(str, arguments)])
        capsys.readouterr()
        try:
            code = run_command(main)
        except SystemExit as ended:  # argparse's
            code = int(ended.code or 0)
        written = capsys.readouterr()
        return CompletedProcess(arguments, code, written.out, written.err)

    return run


@pytest.fixture(scope="session")
def train_here() -> TrainHere:
    """Return a function that runs train.py in this process, unpinned since torch is loaded."""
    # Not above: these load OpenBLAS, which counts cores before a worker keeps to one.
    import torch

    from train import main

    def run(*arguments: str) -> Ended:
        threads = torch.get_num_threads()
        output, errors = (TextIOWrapper(BytesIO(), "utf-8", write_through=True) for _ in range(2))
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(REPOSITORY)
            patch.delenv("FORCE_COLOR", raising=False)
            patch.setenv("OMP_NUM_THREADS", "1")  # is changed, and put back
            patch.setattr(sys, "argv", ["train.py", *arguments, "launch.pin=false"])
            with redirect_stdout(output), redirect_stderr(errors):
                code = run_command(main)
        torch.set_num_threads(threads)  # for tests that compute with as many as a run would
        written = (stream.buffer.getvalue().decode() for stream in (output, errors))
        return Ended(code, *written)

    return run


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a module's runs; it is removed afterwards, since a checkpoint has 400 MB."""
    folder = tmp_path_factory.mktemp("runs")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def debian_hosts(tmp_path: Path) -> Iterator[TwoHosts]:
    """Both hosts resolve their own names to 127.0.1.1, which the other cannot reach."""
    with two_hosts(tmp_path, names_are_loopback=True) as both:
        yield both


@pytest.fixture(
    params=[
        "mpich",
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("intel-mpi", "open-mpi")),
    ]
)
def mpirun(request: pytest.FixtureRequest) -> Path:
    """The mpirun of each family; those that are not in .venv only in `make test-all`."""
    path = MPIRUNS[request.param]
    if not path.exists():
        pytest.skip(f"needs the mpirun of {request.param}: `make {request.param}`")
    return path


def sort_slow_files_first(items: list[pytest.Item]) -> None:
    """Sort files by their number of slow tests, the tests of a file staying together.

    pytest-xdist would start files of many short tests first: then one worker ends long before the
    other, which has begun with a long file at last.
    """
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


NEEDED = {"ipex": "intel_extension_for_pytorch", "openvino": "nncf", "accimage": "accimage"}
"""Packages by the marker of the tests that need them; `make ipex` and `make openvino` install,
and docs/packages.md has accimage."""


def deselect_tests_of_missing_packages(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests whose marker is in `NEEDED`, where its package is not installed."""
    for marker, package in NEEDED.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and find_spec(package) is None:
            config.hook.pytest_deselected(items=marked)
            items[:] = [item for item in items if item not in marked]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests of a parallel run; leave out those that cannot run here.

    Those with IPEX or OpenVINO are deselected where it is not installed; those that need two cores
    are skipped on one.
    """
    deselect_tests_of_missing_packages(config, items)
    if "PYTEST_XDIST_WORKER" in os.environ:
        sort_slow_files_first(items)
    if len(os.sched_getaffinity(0)) > 1:
        return
    for item in items:
        if item.get_closest_marker("whole_machine"):
            item.add_marker(pytest.mark.skip(reason=TOO_FEW_CORES))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the commands of README and docs that were changed before they were run, and why."""
    commands: dict[str, list[str]] = {}
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name == NOT_AS_WRITTEN:
                reason, command = value
                commands.setdefault(reason, []).append(command)
    if commands:
        terminalreporter.section("commands of the pages that were not run as they are written")
    for reason, same_reason in sorted(commands.items()):
        terminalreporter.write_line(f"{reason}:")
        for command in same_reason:
            terminalreporter.write_line(f"    {command}")
