"""Bytes as a file."""

from pathlib import Path


def written(file: Path, content: bytes) -> Path:
    """The file with that content."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file
