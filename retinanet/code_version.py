"""Which version of this code runs."""

import re
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]


def code_version() -> dict[str, str | bool | None]:
    """`repository`, `commit`, and whether files differ from it; None where git does not say.

    An image is no clone: its file COMMIT says from which one it was made.
    """
    commit = git("rev-parse", "HEAD") or commit_of_image()
    status = git("status", "--porcelain")
    return {
        "repository": without_password(git("remote", "get-url", "origin")),
        "commit": commit,
        "is_modified": None if status is None else bool(status),
    }


def commit_of_image(file: Path = HERE / "COMMIT") -> str | None:
    """What the Dockerfile was told; None elsewhere, and where it was told nothing."""
    commit = file.read_text(encoding="utf-8").strip() if file.is_file() else ""
    return commit if re.fullmatch("[0-9a-f]{7,64}", commit) else None


def git(*arguments: str) -> str | None:
    """What git says of this folder; None where it is no clone, or git is not installed."""
    command = ["git", "-C", str(HERE), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def without_password(address: str | None) -> str | None:
    """A repository's address without who may read it, for whoever reads a run's files."""
    return None if address is None else re.sub(r"//[^/@]*@", "//", address)
