"""Small runs of `train.py` on synthetic data, in processes of their own, and their files."""

import gzip
import json
from pathlib import Path
from typing import Any

from profiling.onednn_log.parse import PHASES
from tests.support.fast_precision import FAST_PRECISION

SETTINGS = (
    "data.scenes.train=4",
    "data.scenes.validation=2",
    "data.image_size=64",
    "training.batch_size=2",
    "training.max_steps=3",
    "evaluation.every=1",
    "evaluation.pictures=0",
    f"engine.precision={FAST_PRECISION}",
)
"""Two steps an epoch, evaluations after steps 2 and 3."""


def run_settings(root: Path, name: str, *changes: str) -> list[str]:
    return [*SETTINGS, f"run.root={root}", f"run.name={name}", *changes]


def read_marks(log: Path) -> list[str]:
    """Return the marks without their times: `begin,3,forward`."""
    lines = log.read_text().splitlines()
    return [line.split(",", 2)[2] for line in lines if line.startswith("profilednn_mark,")]


def marks_of_step(number: int) -> list[str]:
    """Return the marks of a step of one batch."""
    inner = [f"{edge},{number},{phase}" for phase in PHASES for edge in ("begin", "end")]
    return [f"begin,{number}", *inner, f"end,{number}"]


def read_events(trace: Path) -> list[dict[str, Any]]:
    """Return the trace's events that have a duration."""
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        return [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
