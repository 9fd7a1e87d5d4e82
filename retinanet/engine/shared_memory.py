"""Memory without a file that several processes of one host have mapped."""

import ctypes
import mmap
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

LINE = 64
"""A processor's cache line. [bytes]"""
NAME_BYTES = 16

MemoryPlace = tuple[str, bytes]
"""The path at which processes of the same user can open it while it is open, and its name."""


class SharedMemory:
    """A piece of memory for others to map, by its `place`.

    It has no file, so that nothing is left when the processes end, however they do; and it is not
    on /dev/shm, which containers keep small. Its first `LINE` bytes are taken by its name.
    """

    def __init__(self, size: int) -> None:
        """Make it, all zeros.

        Args:
            size: The name included. [bytes]

        Raises:
            OSError: There is not so much memory.
        """
        self._file = os.memfd_create("ranks")
        os.posix_fallocate(self._file, 0, size)
        self._name = secrets.token_bytes(NAME_BYTES)
        os.pwrite(self._file, self._name, 0)

    @property
    def place(self) -> MemoryPlace:
        """Where others find it, until it is closed."""
        return f"/proc/{os.getpid()}/fd/{self._file}", self._name

    def close(self) -> None:
        """Let nobody map it any more; maps stay."""
        os.close(self._file)


@dataclass(frozen=True, eq=False)
class MappedMemory:
    """Some process's memory as this process sees it."""

    address: int
    mapped: mmap.mmap
    """Kept as long as the address is used."""


def map_memory(place: MemoryPlace, size: int) -> MappedMemory:
    """Map a piece of memory that some process of this host has made.

    Raises:
        OSError: It cannot be seen from here, or its number is another process's: containers may
            number processes each for itself.
    """
    path, name = place
    with Path(path).open("r+b", buffering=0) as file:
        if os.pread(file.fileno(), NAME_BYTES, 0) != name:
            raise FileNotFoundError(f"{path}: not the memory of a rank")
        mapped = mmap.mmap(file.fileno(), size)
    return MappedMemory(ctypes.addressof(ctypes.c_char.from_buffer(mapped)), mapped)
