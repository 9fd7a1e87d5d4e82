"""Whether a run's checkpoints and results find room on the disk."""

import os
from dataclasses import dataclass
from pathlib import Path

from retinanet.preflight.amounts import amount
from retinanet.preflight.finding import Finding, failure, ok, warning

SUBJECT = "disk space"
FILES_OF_A_CHECKPOINT = 5
"""Its folder included."""


@dataclass(frozen=True, kw_only=True)
class DiskNeed:
    """What a run will write."""

    checkpoint: int
    """One checkpoint. [bytes]"""
    checkpoints: int
    """The most that there are at a time: those that are kept, and one being written."""
    rest: int
    """Scenes, detections and metrics, roughly and at the most. [bytes]"""

    @property
    def all(self) -> int:
        """[bytes]"""
        return self.checkpoint * self.checkpoints + self.rest


@dataclass(frozen=True, kw_only=True)
class FreeSpace:
    """What a file system has left for this user."""

    size: int
    """[bytes]"""
    files: int | None
    """Files that it can still take (inodes); None where it sets no limit."""


def free_space(folder: Path) -> FreeSpace:
    """Of the file system that a folder is on. A quota that it does not report is not seen.

    Raises:
        OSError: It cannot be asked.
    """
    status = os.statvfs(folder)
    is_root = os.geteuid() == 0
    blocks = status.f_bfree if is_root else status.f_bavail
    files = (status.f_ffree if is_root else status.f_favail) if status.f_files else None
    return FreeSpace(size=blocks * status.f_frsize, files=files)


def check_disk(place: Path, *, free: FreeSpace, need: DiskNeed, held: int, freed: int) -> Finding:
    """Hold what a run will write against the space that there is.

    Args:
        place: Where it writes; for the message.
        free: Of the file system there.
        need: What the run will write.
        held: What it has written before and keeps. [bytes]
        freed: What it removes at its start. [bytes]
    """
    room = free.size + freed
    wanted = max(0, need.all - held)
    parts = f"{need.checkpoints} checkpoints of {amount(need.checkpoint)}"
    if held:
        parts += f", of which {amount(held)} are there,"
    if need.rest:
        parts += f" and up to {amount(need.rest)} of results"
    have = f"{amount(room)} are free on the file system of {place}"
    if freed:
        have += f", with the {amount(freed)} that --overwrite removes"
    fix = "free some, set run.root, or lower checkpoint.keep"
    if room < need.checkpoint and held < need.checkpoint:
        found = f"a checkpoint takes {amount(need.checkpoint)}, and only {have}"
        return failure(SUBJECT, found, fix="free some, or set run.root to another file system")
    if free.files is not None and free.files < FILES_OF_A_CHECKPOINT * need.checkpoints:
        found = f"only {free.files} more files (inodes) fit on the file system of {place}"
        return warning(SUBJECT, found, fix="remove files, or set run.root")
    if room < wanted:
        return warning(SUBJECT, f"{have}, and the run writes {parts}", fix=fix)
    return ok(SUBJECT, f"{have}; the run writes {parts}")


def size_of(folder: Path) -> int:
    """What all files below a folder take on the disk, each once. [bytes]"""
    found = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                found += Path(root, name).lstat().st_blocks * 512
            except OSError:  # a live run removes and renames meanwhile
                continue
    return found
