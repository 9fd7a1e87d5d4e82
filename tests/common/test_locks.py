"""Locks between real processes, with the kernel's `flock` and on a file system without it."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.errors import InputError
from common.locks import FileLock, LockHeldError, has_locks, is_locked, one_process_at_a_time
from tests.support.commands import start_program
from tests.support.without_locks import built_library, without_locks

HOLD = """
import sys
from pathlib import Path
from common.locks import FileLock, LockHeldError
lock = FileLock(Path(sys.argv[1]))
try:
    lock.take()
    lock.take()
except LockHeldError:
    sys.exit("held")
print("taken", flush=True)
sys.stdin.readline()
lock.release(remove=True)
"""
pytestmark = pytest.mark.slow
REFUSALS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
Process = subprocess.Popen[str]
Hold = Callable[..., Process]


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Hold]:
    """Start a process that takes the lock."""
    started: list[Process] = []

    def start(environment: dict[str, str] | None = None) -> Process:
        command = (sys.executable, "-c", HOLD, tmp_path / ".lock")
        process = start_program(*command, env=environment, stdin=subprocess.PIPE)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def is_taken(process: Process) -> bool:
    assert process.stdout is not None
    return process.stdout.readline() == "taken\n"


def ended(process: Process) -> tuple[int, str]:
    """Let the process release the lock; return its exit status and errors."""
    _, errors = process.communicate("\n", timeout=60)
    return process.returncode, errors


def test_one_process_holds_the_lock_until_it_ends(hold: Hold, tmp_path: Path) -> None:
    first = hold()
    assert is_taken(first) and is_locked(tmp_path / ".lock")
    second = hold()
    assert not is_taken(second) and ended(second) == (1, "held\n")
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert not is_locked(tmp_path / ".lock")
    third = hold()
    assert is_taken(third) and ended(third) == (0, "")
    (tmp_path / ".lock").unlink()  # the first one has made it, so that it stayed
    last = hold()
    assert is_taken(last) and ended(last) == (0, "") and list(tmp_path.iterdir()) == []


def test_without_locks_a_line_says_that_nothing_is_refused(hold: Hold, tmp_path: Path) -> None:
    (tmp_path / "library").mkdir()
    library = built_library(tmp_path / "library")
    for number in REFUSALS:
        holders = [hold(without_locks(library, number)) for _ in range(2)]
        assert all(map(is_taken, holders)) and not is_locked(tmp_path / ".lock")
        for code, errors in map(ended, holders):
            assert (code, errors.count("\n")) == (0, 1)
            assert errors.startswith(f"warning: {tmp_path}: its file system has no locks")
    assert has_locks(tmp_path)


def test_removed_file_is_no_lock(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / ".lock"), FileLock(tmp_path / ".lock")
    first.take()
    first.release(remove=True)
    with pytest.raises(LockHeldError):
        second.take()
    assert list(tmp_path.iterdir()) == []


def test_removed_lock_leaves_that_of_the_next_holder(tmp_path: Path) -> None:
    first = FileLock(tmp_path / ".lock")
    first.take()
    (tmp_path / ".lock").unlink()  # with its folder, as after a failure
    second = FileLock(tmp_path / ".lock")
    second.take()
    first.release(remove=True)
    assert is_locked(tmp_path / ".lock")


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
    process = hold()
    assert is_taken(process)
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
