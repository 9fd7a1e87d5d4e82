"""Locks between real processes, with the kernel's `flock` and on a file system without it."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common import locks
from common.errors import InputError
from common.locks import (
    FileLock,
    LockHeldError,
    is_locked,
    one_process_at_a_time,
    owner_file,
    this_process,
)
from tests.support.without_locks import built_library, without_locks

HOLD = """
import sys, time
from pathlib import Path
from common import locks
locks.RENEWED_EVERY = 0.05
lock = locks.FileLock(Path(sys.argv[1]))
try:
    lock.take()
except locks.LockHeldError as error:
    sys.exit(f"held: {error}")
print("taken", flush=True)
sys.stdin.readline()
lock.release()
"""
pytestmark = pytest.mark.slow
REFUSALS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
Hold = Callable[[int | None], "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_library(tmp_path_factory.mktemp("library"))


@pytest.fixture
def hold(library: Path, tmp_path: Path) -> Iterator[Hold]:
    """Start a process that takes the lock, on a file system without locks if a number is given."""
    started: list[subprocess.Popen[str]] = []

    def start(number: int | None) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path / ".lock")],
            env=without_locks(library, number) if number else None,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def is_taken(process: "subprocess.Popen[str]") -> bool:
    assert process.stdout is not None
    return process.stdout.readline() == "taken\n"


def ended(process: "subprocess.Popen[str]") -> int:
    """Let the process release the lock; return its exit status."""
    process.communicate("\n", timeout=60)
    return process.returncode


@pytest.mark.parametrize("number", [None, *REFUSALS])
def test_one_process_holds_the_lock_until_it_releases_it(
    hold: Hold, number: int | None, tmp_path: Path
) -> None:
    first = hold(number)
    assert is_taken(first) and is_locked(tmp_path / ".lock")
    second = hold(number)
    assert not is_taken(second) and ended(second) == 1
    assert ended(first) == 0 and not is_locked(tmp_path / ".lock")
    third = hold(number)
    assert is_taken(third) and ended(third) == 0
    assert [path.name for path in tmp_path.iterdir()] == ([] if number else [".lock"])


@pytest.mark.parametrize("number", [None, errno.ENOSYS])
def test_killed_process_releases_the_lock(hold: Hold, number: int | None, tmp_path: Path) -> None:
    first = hold(number)
    assert is_taken(first)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert not is_locked(tmp_path / ".lock")
    second = hold(number)
    assert is_taken(second) and ended(second) == 0


@pytest.mark.parametrize("stale", [False, True])
def test_one_of_several_processes_gets_the_lock(hold: Hold, stale: bool, tmp_path: Path) -> None:
    if stale:
        killed = hold(errno.ENOSYS)
        assert is_taken(killed)
        killed.kill()
        killed.wait()
    processes = [hold(errno.ENOSYS) for _ in range(4)]
    assert [is_taken(process) for process in processes].count(True) == 1
    assert sorted(map(ended, processes)) == [0, 1, 1, 1]


def other_host(path: Path, *, seconds: float) -> Path:
    """Return the owner file of a process on another host, last renewed some seconds ago."""
    owner = owner_file(path)
    owner.write_text(json.dumps({**this_process(), "host": "elsewhere"}))
    changed = owner.stat().st_mtime - seconds
    os.utime(owner, (changed, changed))
    return owner


def test_another_host_holds_the_lock_while_it_renews_it(hold: Hold, tmp_path: Path) -> None:
    owner = other_host(tmp_path / ".lock", seconds=locks.LOST_AFTER - 30)
    assert is_locked(tmp_path / ".lock")
    refused = hold(errno.ENOLCK)
    _, errors = refused.communicate(timeout=60)
    assert errors == f"held: process {os.getpid()} on elsewhere\n"
    owner.unlink()
    other_host(tmp_path / ".lock", seconds=locks.LOST_AFTER + 30)
    assert not is_locked(tmp_path / ".lock")
    taken = hold(errno.ENOLCK)
    assert is_taken(taken) and json.loads(owner.read_text())["pid"] == taken.pid
    assert ended(taken) == 0


def test_lock_is_renewed(hold: Hold, tmp_path: Path) -> None:
    process = hold(errno.ENOLCK)
    assert is_taken(process)
    owner = owner_file(tmp_path / ".lock")
    os.utime(owner, (0, 0))
    for _ in range(600):
        if owner.stat().st_mtime > 0:
            break
        process.poll()
        locks.Event().wait(0.05)
    assert owner.stat().st_mtime > 0 and ended(process) == 0


def test_process_ends_when_its_lock_was_taken_over(hold: Hold, tmp_path: Path) -> None:
    process = hold(errno.ENOLCK)
    assert is_taken(process)
    partial = tmp_path / "partial"
    partial.write_text(json.dumps({**this_process(), "host": "elsewhere"}))
    partial.replace(owner_file(tmp_path / ".lock"))
    assert process.wait(timeout=30) == 1
    assert process.stderr is not None and len(process.stderr.read().splitlines()) == 1
    assert owner_file(tmp_path / ".lock").exists()


def test_removed_file_is_no_lock(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / ".lock"), FileLock(tmp_path / ".lock")
    first.take()
    first.release(remove=True)
    with pytest.raises(LockHeldError):
        second.take()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "broken link", "FIFO"])
def test_lock_through_a_link_or_a_fifo_is_refused(tmp_path: Path, kind: str) -> None:
    lock, target = tmp_path / ".lock", tmp_path / ".bashrc"
    target.write_text("export A=1\n")
    if kind == "FIFO":
        os.mkfifo(lock)
    else:
        lock.symlink_to(target if kind == "link" else tmp_path / "missing")
    with pytest.raises(OSError, match="it is"):
        FileLock(lock)
    with (
        pytest.raises(InputError, match=r"\.lock: it is .+; remove it"),
        one_process_at_a_time(lock, what="testing", tell=print),
    ):
        pass
    assert not is_locked(lock)  # does not wait for the writer of a FIFO
    assert target.read_text() == "export A=1\n" and not (tmp_path / "missing").exists()


def test_content_of_a_locked_file_stays(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("mine")
    with one_process_at_a_time(tmp_path / ".lock", what="testing", tell=print):
        FileLock(tmp_path / ".lock").release()
    assert (tmp_path / ".lock").read_text() == "mine"


def test_waiting_for_a_lock_is_told_and_has_an_end(hold: Hold, tmp_path: Path) -> None:
    process = hold(None)
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    lines: list[str] = []
    with (
        pytest.raises(InputError, match=r"\.lock: another process has been drawing scenes for"),
        one_process_at_a_time(
            tmp_path / ".lock", what="drawing scenes", tell=lines.append, longest=0.3
        ),
    ):
        pass
    assert lines == ["waiting for another process, which is drawing scenes"]
    process.communicate("\n")
    with one_process_at_a_time(tmp_path / ".lock", what="drawing scenes", tell=lines.append):
        pass
