"""File systems that tests mount; requires root."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")


@contextmanager
def tmpfs(folder: Path, *options: str) -> Iterator[Path]:
    """A file system in memory, such as of `size=8m`, while the context lasts."""
    folder.mkdir(exist_ok=True)
    arguments = ["mount", "-t", "tmpfs", "-o", ",".join(options), "none", str(folder)]
    mounted = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
