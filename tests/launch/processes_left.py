"""Whether a job's processes have ended."""

import time
from collections.abc import Iterable
from pathlib import Path


def processes_with(text: str, *, begin: str = "") -> list[int]:
    """Numbers of the processes whose command line has the text, and such a begin; no zombies."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has ended meanwhile
            continue
        if text in command and command.startswith(begin):
            found.append(int(folder.name))
    return found


def wait_until_gone(text: str, *, seconds: float = 5) -> None:
    """Fail unless no process of such a command line is left soon."""
    end = time.monotonic() + seconds
    while processes_with(text):
        assert time.monotonic() < end, f"left: {processes_with(text)}"
        time.sleep(0.1)


def wait_until_ended(processes: Iterable[int], *, seconds: float = 10) -> None:
    """Fail unless processes are gone soon: whoever they fall to must reap them."""
    end = time.monotonic() + seconds
    while left := [one for one in processes if Path(f"/proc/{one}").exists()]:
        assert time.monotonic() < end, f"left: {left}"
        time.sleep(0.05)


def children_of(process: int) -> list[int]:
    """Numbers of the processes that a process has started and that have not ended."""
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return [int(number) for task in tasks for number in task.read_text().split()]
