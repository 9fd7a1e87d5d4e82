"""Small files of the kernel, below /proc and /sys/fs/cgroup, that may be hidden or missing."""

from pathlib import Path


def read_text(file: Path) -> str:
    """The file's text; empty where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def read_status(file: Path) -> dict[str, str]:
    """The fields of a process's or a thread's status; none where it cannot be read."""
    pairs = (line.partition(":") for line in read_text(file).splitlines())
    return {name: value.strip() for name, _, value in pairs}
