"""`retinanet launch run`: its command line, forwarded signals, and hosts that do not start."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from launch.__main__ import main
from launch.run import parse_address
from tests.launch.ranks import MPIRUN, Ended, ended
from tests.launch.two_hosts import TwoHosts
from tests.support.commands import RunHere, start_program, write_program
from tests.support.processes import processes_with, wait_until_gone

REPOSITORY = Path(__file__).resolve().parents[2]

Popen = subprocess.Popen[str]

RANK = """
import os, signal, sys
def stop(number, frame):
    open(f"{sys.argv[0]}-{os.environ['PMI_RANK']}", "w").close()
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
line = f"rank {os.environ['PMI_RANK']} of {os.environ['PMI_SIZE']}: {sys.argv[1:]}"
os.write(1, f"{line}\\n".encode())  # one write: lines do not mix
if "wait" in sys.argv:
    signal.pause()
sys.exit(3)
"""


def launch(*arguments: str) -> Popen:
    return start_program(sys.executable, "-m", "launch", "run", *arguments)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "rank.py"
    path.write_text(RANK)
    return path


@pytest.mark.slow
def test_ranks_are_started_by_the_printed_command(script: Path) -> None:
    process = launch("--np", "2", "--mpirun", str(MPIRUN), "--", str(script), "--a", "b c")
    output, errors = process.communicate(timeout=60)
    assert sorted(output.splitlines()) == [
        "rank 0 of 2: ['--a', 'b c']",
        "rank 1 of 2: ['--a', 'b c']",
    ]
    assert process.returncode == 3
    printed = errors.splitlines()[0]
    assert printed == f"{MPIRUN} -bind-to none -np 2 {sys.executable} {script} --a 'b c'"
    pasted = subprocess.run(printed, shell=True, capture_output=True, text=True, check=False)
    assert sorted(pasted.stdout.splitlines()) == sorted(output.splitlines())
    assert pasted.returncode == 3


@pytest.mark.slow
def test_mpirun_outside_path_finds_its_helpers(script: Path, tmp_path: Path) -> None:
    # As Intel MPI's, a script that runs mpiexec.hydra.
    for name, runs in (("mpirun", "a-helper-of-mpirun"), ("a-helper-of-mpirun", str(MPIRUN))):
        write_program(tmp_path / "mpi" / name, f'exec {runs} "$@"')
    process = launch("--np", "2", "--mpirun", str(tmp_path / "mpi/mpirun"), "--", str(script))
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 3, errors
    assert sorted(output.splitlines()) == ["rank 0 of 2: []", "rank 1 of 2: []"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_signal_stops_the_ranks_and_returns_their_status(
    number: signal.Signals, script: Path
) -> None:
    process = launch("--np", "2", "--mpirun", str(MPIRUN), "--", str(script), "wait")
    assert process.stdout is not None
    started = {process.stdout.readline() for _ in range(2)}
    assert started == {"rank 0 of 2: ['wait']\n", "rank 1 of 2: ['wait']\n"}
    process.send_signal(number)
    process.communicate(timeout=30)  # the pipe's other end is closed once all ranks have ended
    assert process.returncode == (75 if number != signal.SIGKILL else -signal.SIGKILL)
    stopped = sorted(path.name for path in script.parent.glob("rank.py-*"))
    assert stopped == ["rank.py-0", "rank.py-1"]
    wait_until_gone(str(script))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (["--hosts", "a,b"], "-disable-auto-cleanup -hosts a:2,b:2 -np 4"),
        (["--hosts", "a:3,b:1"], "-disable-auto-cleanup -hosts a:3,b:1 -np 4"),
        (["--hostfile", "hosts"], "-disable-auto-cleanup -hosts a:2,b:2 -np 4"),
    ],
)
def test_dry_run_only_prints_the_command(
    where: list[str], expected: str, tmp_path: Path, run_here: RunHere
) -> None:
    (tmp_path / "hosts").write_text("a slots=2\nb slots=2\n")
    where = [str(tmp_path / item) if item == "hosts" else item for item in where]
    start = ("--np", "4", "--mpirun", MPIRUN, *where, "--dry-run", "train.py", "x=1")
    done = run_here(main, "run", *start)
    assert (done.returncode, done.stderr) == (0, "")
    expected_line = f"{MPIRUN} -bind-to none {expected} {sys.executable} train.py x=1"
    assert shlex.split(done.stdout) == expected_line.split()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--np", "2"], "no command to run"),
        (["--np", "2", "--"], "no command to run"),
        (["--np", "2", "--", "none.py"], "none.py: no such file in"),
        (["--np", "2", "--", "--config", "x"], "--config: expected a command after --"),
        (["--np", "3", "--hosts", "a,b", "--", "train.py"], "--np 3: does not divide evenly"),
        (["--np", "2", "--hostfile", "none", "--", "train.py"], "--hostfile: none: No such file"),
        (["--np", "2", "--mpirun", "none", "--", "train.py"], "--mpirun: none is not executable"),
        (
            ["--np", "2", "--hosts", "a.invalid,localhost", "train.py"],
            "--hosts: a.invalid: not known",
        ),
    ],
)
def test_invalid_command_lines_are_one_line(
    arguments: list[str], named: str, run_here: RunHere
) -> None:
    done = run_here(main, "run", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    errors = done.stderr
    assert errors.startswith("error: ") and errors.count("\n") == 1 and named in errors


PROXY = """
import signal, sys
from launch import run
run.BEAT_S = 0.1
sys.exit(run.run_with_graceful_stop(sys.argv[1:], stop_signal=signal.SIGUSR1, patience_s=0.4))
"""

# Prints when it is ready, as mpirun; ends after the first SIGUSR1 with 75, as ranks.
CHILD = """
trap 'echo USR1; [ -n "$stay" ] || exit 75' USR1
trap 'echo TERM; exit 143' TERM
trap 'echo INT; exit 130' INT
echo ready
while :; do sleep 0.05; done
"""

PYTHON_CHILD = """
import signal, sys
signal.signal(signal.SIGUSR1, lambda number, frame: sys.exit(print("USR1") or 75))
print("ready", flush=True)
while True:
    signal.pause()
"""


def start_proxy(*command: str, before: tuple[str, ...] = (), **options: Any) -> Popen:
    return subprocess.Popen(
        [*before, sys.executable, "-c", PROXY, *command],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        **options,
    )


def first_line(process: Popen) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


STAYING = f"stay=1{CHILD}"  # It ignores the first signal
# Intel MPI's mpirun is a script, which SIGTERM and SIGUSR1 would end alone.
SCRIPT = f"{sys.executable} -c {shlex.quote(PYTHON_CHILD)}\nrc=$?\nexit $rc"


@pytest.mark.parametrize(
    ("script", "signals", "lines", "status"),
    [
        *((CHILD, [name], ["USR1"], 75) for name in ("SIGTERM", "SIGINT", "SIGHUP")),
        (STAYING, ["SIGTERM", "SIGTERM"], ["USR1", "TERM"], 143),
        # Open MPI's mpirun kills its ranks after a second Ctrl-C, and ends with 1.
        (STAYING.replace("exit 130", "exit 1"), ["SIGINT", "SIGINT"], ["USR1", "INT"], 130),
        (SCRIPT, ["SIGTERM"], ["USR1"], 75),
        (CHILD, ["SIGKILL"], ["USR1"], -9),  # the child outlives the proxy
    ],
    ids=["TERM", "INT", "HUP", "TERM twice", "INT twice", "script", "KILL"],
)
def test_signals_to_the_proxy(
    script: str, signals: list[str], lines: list[str], status: int
) -> None:
    process = start_proxy("bash" if script != SCRIPT else "sh", "-c", script)
    for line, name in zip(["ready", *lines], signals, strict=False):
        assert first_line(process) == f"{line}\n"
        process.send_signal(signal.Signals[name])
    output, _ = process.communicate(timeout=10)
    assert (output, process.returncode) == (f"{lines[-1]}\n", status)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "then", "status"),
    [
        # As MPICH's mpirun does when the network is gone: its helper on this host has ended.
        ("{folder}/hydra_pmi_proxy", "sleep 100", 1),
        ("{folder}/hydra_pmi_proxy", "sleep 0.1; exit 5", 5),
        # Open MPI's has started the ranks of this host itself, and a remote shell in a group of its
        # own, which also holds the output.
        ("env OMPI_COMM_WORLD_RANK=0 sleep 1", "setsid sleep 100", 1),
    ],
)
def test_launcher_that_waits_for_an_unreachable_host_is_killed(
    before: str, then: str, status: int, tmp_path: Path
) -> None:
    write_program(tmp_path / "hydra_pmi_proxy", "sleep 1")
    script = f"{before.format(folder=tmp_path)}; {then}"
    process = start_proxy("sh", "-c", script, stderr=subprocess.PIPE)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert ("mpirun waits for another host" in errors) == (status == 1)


def test_ctrl_c_of_a_terminal_reaches_the_child_once() -> None:
    # A terminal sends it to the whole foreground group: here a group of the proxy's own.
    process = start_proxy("bash", "-c", CHILD, process_group=0)
    assert first_line(process) == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=10)
    assert (output, process.returncode) == ("USR1\n", 75)


@pytest.mark.slow
def test_ignored_hangup_stays_ignored() -> None:
    process = start_proxy("bash", "-c", CHILD, before=("nohup",), stderr=subprocess.DEVNULL)
    assert first_line(process) == "ready\n"
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=10)
    assert (output, process.returncode) == ("USR1\n", 75)


@pytest.mark.parametrize(("script", "status"), [("exit 3", 3), ("kill -KILL $$", 137)])
def test_exit_status_is_that_of_the_child(script: str, status: int) -> None:
    process = start_proxy("bash", "-c", script)
    process.communicate(timeout=10)
    assert process.returncode == status


MONITORED = """
import signal, sys
from launch import run
from launch.run import run_with_graceful_stop
run.NOTE_S, run.LIMIT_S = 2.0, 5.0
hosts = ("left", "right")
sys.exit(
    run_with_graceful_stop(
        sys.argv[1:], stop_signal=signal.SIGTERM, patience_s=20, hosts=hosts
    )
)
"""
SLEEP = "import time; time.sleep(9)"


def run_monitored(hosts: TwoHosts, mark: str) -> Ended:
    """Start ranks that run longer than the limit; `mark` is in their command lines."""
    flags = ["-bind-to", "none", "-hosts", "left:1,right:1", "-np", "2"]
    command = [sys.executable, "-c", MONITORED, str(MPIRUN), *flags]
    command += [sys.executable, "-c", SLEEP, mark]
    return ended(hosts.start_on_left(command, environment=os.environ), timeout=60)


@pytest.mark.exhaustive
def test_firewall_before_the_start_ends_the_job(debian_hosts: TwoHosts, tmp_path: Path) -> None:
    debian_hosts.drop_everything()
    begin = time.monotonic()
    job = run_monitored(debian_hosts, str(tmp_path))
    assert time.monotonic() - begin < 40
    assert job.code == 1
    note, error = job.errors.splitlines()
    assert note.startswith("note: host right has not started")
    assert error.startswith("error: --hosts: host right has not started")
    assert "firewall" in note and "firewall" in error
    for process in processes_with(str(tmp_path)):  # the other host's helper waits for its answer
        os.kill(process, signal.SIGKILL)


@pytest.mark.exhaustive
def test_started_hosts_may_run_longer_than_the_limit(
    debian_hosts: TwoHosts, tmp_path: Path
) -> None:
    job = run_monitored(debian_hosts, str(tmp_path))
    assert (job.code, job.errors) == (0, "")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0100000A", "10.0.0.1"),
        ("0000000000000000FFFF00000100000A", "10.0.0.1"),
        ("B80D0120000000000000000001000000", "2001:db8::1"),
    ],
)
def test_addresses_of_the_kernel(text: str, address: str) -> None:
    assert parse_address(text) == address
