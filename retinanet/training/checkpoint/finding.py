"""Which of a run's checkpoints is meant, and which is the newest that is whole."""

import re
from pathlib import Path

from retinanet.errors import InputError
from retinanet.training.checkpoint.state import STATE_FILE

BEST, LAST = "best", "last"
"""Links beside the checkpoints."""

NAME = re.compile(r"step-([0-9]{6,18})")


def find_checkpoint(path: Path) -> Path:
    """The checkpoint folder that a user's path means.

    Args:
        path: A checkpoint's folder, a file in it, or a run's folder (its best, else its last).

    Raises:
        InputError: There is none.
    """
    candidates = (
        path,
        path.parent,
        path / "checkpoints" / BEST,
        path / "checkpoints" / LAST,
        path / BEST,
        path / LAST,
    )
    if path.exists():
        for candidate in candidates:
            if (candidate / STATE_FILE).is_file():
                return candidate
    reason = "holds no checkpoint" if path.exists() else "does not exist"
    raise InputError(f"{path}: {reason}; give runs/NAME/checkpoints/best or a folder like it")


def name_of(step: int) -> str:
    """The folder's name of the checkpoint after so many steps."""
    return f"step-{step:06d}"


def step_of(folder: Path) -> int:
    """The inverse of `name_of`."""
    match = NAME.fullmatch(folder.name)
    assert match, folder
    return int(match[1])


def newest_first(checkpoints: Path) -> list[Path]:
    """The checkpoints' folders below `checkpoints/`, by step."""
    if not checkpoints.is_dir():
        return []
    found = [one for one in checkpoints.iterdir() if NAME.fullmatch(one.name) and one.is_dir()]
    return sorted(found, key=step_of, reverse=True)
