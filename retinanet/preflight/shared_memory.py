"""Whether loading processes find room in /dev/shm, through which they hand over batches.

Gradients need none of it: `retinanet.engine.shared_gradients` takes memory without a name, which no
mount limits. It counts as memory, see `memory_need`.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from retinanet.preflight.amounts import amount
from retinanet.preflight.finding import Finding, failure, ok, warning

SUBJECT = "/dev/shm"
SHARED = Path("/dev/shm")
PAGE = 4096
AHEAD = 2
"""Batches that torch's DataLoader has each process load ahead."""
CHANNELS = 3
FIX_SIZE = "docker run --shm-size={} (or --ipc=host), or data.workers=0"


@dataclass(frozen=True, kw_only=True)
class LoadedBatches:
    """What the loading processes of a rank may have handed over at one time."""

    workers: int
    """Loading processes of the rank."""
    image_size: int
    """[pixels]"""
    batch_size: int
    evaluation_batch_size: int
    gradient_accumulation: int
    """Batches that a step holds at once."""

    @property
    def batch_bytes(self) -> int:
        """The larger of a training and an evaluation batch. [bytes]"""
        return bytes_of_batch(max(self.batch_size, self.evaluation_batch_size), self.image_size)

    @property
    def bytes(self) -> int:
        """All that wait or are in use, of training and of the evaluation that follows. [bytes]"""
        if not self.workers:
            return 0
        ahead = AHEAD * self.workers
        training = bytes_of_batch(self.batch_size, self.image_size)
        evaluation = bytes_of_batch(self.evaluation_batch_size, self.image_size)
        return (ahead + self.gradient_accumulation) * training + (ahead + 1) * evaluation

    @property
    def tensors(self) -> int:
        """Tensors in them, each of which keeps a file open in the training process."""
        if not self.workers:
            return 0
        ahead = AHEAD * self.workers
        training = tensors_of_batch(self.batch_size)
        evaluation = tensors_of_batch(self.evaluation_batch_size)
        return (ahead + self.gradient_accumulation) * training + (ahead + 1) * evaluation


def bytes_of_batch(images: int, image_size: int) -> int:
    """Pixels as they are loaded, uint8, and two small tensors of targets an image. [bytes]"""
    return images * (CHANNELS * image_size**2 + 2 * PAGE)


def tensors_of_batch(images: int) -> int:
    """The pixels' tensor, boxes and labels."""
    return 1 + 2 * images


def check_shared_memory(
    need: LoadedBatches, *, ranks: int, is_certain: bool, folder: Path = SHARED
) -> Finding:
    """Hold what loading processes need against what the mount has.

    Args:
        need: Of each rank.
        ranks: Of this host.
        is_certain: Whether the processes will load, as told; with data.workers=auto they may.
        folder: Where it is mounted.
    """
    if not need.workers:
        return ok(SUBJECT, "not needed: the training process loads images itself (data.workers=0)")
    try:
        status = os.statvfs(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
    except OSError as error:
        found = f"{need.workers} loading processes need it, and a file there fails: "
        fix = "mount a tmpfs there (docker: --shm-size=1g), or set data.workers=0"
        return failure(SUBJECT, f"{found}{error.strerror}", fix=fix)
    wanted = need.bytes * ranks
    size, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    of_ranks = f" of {ranks} ranks" if ranks > 1 else ""
    which = f"loading processes{of_ranks} hand over up to {amount(wanted)} at a time"
    have = f"{amount(free)} of {amount(size)} are free"
    fix = FIX_SIZE.format(rounded_up(2 * wanted))
    if free >= wanted:
        return ok(SUBJECT, f"{have}; {which}")
    if is_certain and size < need.batch_bytes:
        found = f"{have}, and one batch takes {amount(need.batch_bytes)}"
        return failure(SUBJECT, found, fix=fix)
    return warning(SUBJECT, f"{have}, and {which}", fix=fix)


def rounded_up(size: int) -> str:
    """A size as docker takes it, in whole powers of two: `256m`, `2g`."""
    megabytes = 64
    while megabytes < size / 2**20:
        megabytes *= 2
    return f"{megabytes // 1024}g" if megabytes >= 1024 else f"{megabytes}m"
