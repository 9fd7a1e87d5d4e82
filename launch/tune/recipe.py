"""The winner as commands: one for `launch run`, and a Slurm file."""

import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from launch.tune.forecast import Forecast

SLURM = Path(__file__).parents[1] / "recipes" / "slurm.sbatch"
LONGEST_JOB_HOURS = 24
"""Longer trainings are queued again by the script itself."""


def training_words(one: Forecast, *, config: str, settings: Sequence[str]) -> list[str]:
    """What `train.py` is told.

    Args:
        one: The allocation.
        config: The configuration's name.
        settings: Further `section.field=value`, such as the learning rate for its global batch.
    """
    shape, groups = one.allocation.on_host, one.allocation.groups
    return [
        "--config",
        config,
        f"training.batch_size={shape.batch_size}",
        f"launch.threads={shape.threads}",
        *([f"distributed.groups={groups}"] if groups > 1 else []),
        *settings,
    ]


def run_command(one: Forecast, words: Sequence[str]) -> str:
    """For `python -m launch run`, on hosts that a file names."""
    hosts = ["--hostfile", "hosts"] if one.allocation.hosts > 1 else []
    start = ["python", "-m", "launch", "run", "--np", str(one.allocation.ranks), *hosts, "--"]
    return shlex.join([*start, "train.py", *words])


def slurm_script(one: Forecast, words: Sequence[str]) -> str:
    """The project's recipe for Slurm with the numbers of this allocation."""
    hours = min(LONGEST_JOB_HOURS, max(1, math.ceil(one.hours.high)))
    values = {
        "nodes": str(one.allocation.hosts),
        "ntasks-per-node": str(one.allocation.on_host.ranks),
        "time": f"{hours}:00:00",
    }
    text = SLURM.read_text(encoding="utf-8")
    for name, value in values.items():
        text, count = re.subn(rf"(?m)^(#SBATCH --{name}=).*$", rf"\g<1>{value}", text)
        assert count == 1, name
    first = f"# {one.allocation.name}: chosen by python -m launch tune."
    text, count = re.subn(r"(?m)^# OpenImages on .*$", first, text)
    assert count == 1
    text, count = re.subn(
        r"(?m)^(\[ \$# -gt 0 \] \|\| set -- ).*$", lambda found: found[1] + shlex.join(words), text
    )
    assert count == 1
    return text
