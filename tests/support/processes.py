"""Find the processes of a job, and wait for their end."""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path


def processes_with(text: str, *, begin: str = "") -> list[int]:
    """Return the processes whose command line starts with `begin` and contains `text`."""
    numbers = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (
                (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
        except OSError:  # it has ended meanwhile
            continue
        if text in command and command.startswith(begin):
            numbers.append(int(folder.name))
    return numbers


RANK_VARIABLES = (b"PMI_RANK", b"OMPI_COMM_WORLD_RANK")


def rank_processes(text: str, rank: int, *, begin: str = "") -> list[int]:
    """Return the processes of a rank of mpirun whose command line is as in `processes_with`."""
    numbers = []
    for process in processes_with(text, begin=begin):
        try:
            variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        except OSError:  # it has ended meanwhile
            continue
        if any(b"%s=%d" % (name, rank) in variables for name in RANK_VARIABLES):
            numbers.append(process)
    return numbers


def is_running(process: int) -> bool:
    """Return whether a process runs and is not only a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it ended before or while it was read
        return False


def wait_until(is_so: Callable[[], object], *, seconds: float = 10) -> None:
    """Wait until a function returns something true; fail after `seconds`."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def wait_until_gone(text: str, *, seconds: float = 5, begin: str = "") -> None:
    """Wait until there are no such processes as of `processes_with`; fail after `seconds`."""
    end = time.monotonic() + seconds
    while remaining := processes_with(text, begin=begin):
        assert time.monotonic() < end, f"remaining: {remaining}"
        time.sleep(0.1)


def wait_until_ended(processes: Iterable[int], *, seconds: float = 10) -> None:
    """Wait until processes have ended and were reaped; fail after `seconds`."""
    end = time.monotonic() + seconds
    while remaining := [item for item in processes if Path(f"/proc/{item}").exists()]:
        assert time.monotonic() < end, f"remaining: {remaining}"
        time.sleep(0.05)


def child_processes(process: int) -> list[int]:
    """Return the running children of a process."""
    numbers: list[int] = []
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended meanwhile
            numbers += map(int, children.read_text().split())
    return numbers
