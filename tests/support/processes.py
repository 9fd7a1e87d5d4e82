"""Find the processes of a job, and wait for their end."""

import time
from collections.abc import Iterable
from pathlib import Path


def processes_with(text: str, *, begin: str = "") -> list[int]:
    """Return the processes whose command line starts with `begin` and contains `text`."""
    numbers = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has ended meanwhile
            continue
        if text in command and command.startswith(begin):
            numbers.append(int(folder.name))
    return numbers


def wait_until_gone(text: str, *, seconds: float = 5) -> None:
    """Wait until no process has `text` in its command line; fail after `seconds`."""
    end = time.monotonic() + seconds
    while processes_with(text):
        assert time.monotonic() < end, f"remaining: {processes_with(text)}"
        time.sleep(0.1)


def wait_until_ended(processes: Iterable[int], *, seconds: float = 10) -> None:
    """Wait until processes have ended and were reaped; fail after `seconds`."""
    end = time.monotonic() + seconds
    while remaining := [item for item in processes if Path(f"/proc/{item}").exists()]:
        assert time.monotonic() < end, f"remaining: {remaining}"
        time.sleep(0.05)


def child_processes(process: int) -> list[int]:
    """Return the running children of a process."""
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return [int(number) for task in tasks for number in task.read_text().split()]
