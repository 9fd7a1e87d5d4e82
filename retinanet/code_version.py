"""Which version of this code runs."""

import re
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]


def code_version() -> dict[str, str | bool | None]:
    """`repository`, `commit`, and whether files differ from it; None where git does not say."""
    commit = git("rev-parse", "HEAD")
    return {
        "repository": without_password(git("remote", "get-url", "origin")),
        "commit": commit,
        "is_modified": None if commit is None else bool(git("status", "--porcelain")),
    }


def git(*arguments: str) -> str | None:
    """What git says of this folder; None where it is no clone, or git is not installed."""
    command = ["git", "-C", str(HERE), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def without_password(address: str | None) -> str | None:
    """A repository's address without who may read it, for whoever reads a run's files."""
    return None if address is None else re.sub(r"//[^/@]*@", "//", address)
