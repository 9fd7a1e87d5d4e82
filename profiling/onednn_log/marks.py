"""Lines that a run of ours adds to oneDNN's log: who it is, and where each step and phase begins.

    profilednn_facts,{"rank": 0, "ranks": 2, "images_a_step": 2, "threads": 1, "cpus": "0", …}
    profilednn_mark,1795230198092.696,begin,20
    profilednn_mark,1795230198092.801,begin,20,forward
    profilednn_mark,1795230198904.113,end,20,forward
    profilednn_mark,1795230199310.207,end,20

A mark's first number is milliseconds since 1970, as in oneDNN's own time stamps.
"""

import json
import math
from typing import Any, NamedTuple

MARK = "profilednn_mark,"
FACTS = "profilednn_facts,"
PHASES = ("data", "forward", "loss", "backward", "optimizer")
"""In order; with several batches a step the middle three repeat (`retinanet.training.phases`)."""


class Mark(NamedTuple):
    """The begin or the end of a step, or of a phase of it."""

    milliseconds: float
    is_begin: bool
    step: int
    phase: str | None


def mark_line(mark: Mark) -> str:
    """A mark as a line of the log, newline included."""
    edge = "begin" if mark.is_begin else "end"
    phase = f",{mark.phase}" if mark.phase else ""
    return f"{MARK}{mark.milliseconds:.6f},{edge},{mark.step}{phase}\n"


def facts_line(facts: dict[str, Any]) -> str:
    """What a reader of the log needs to know of the run, as a line of it."""
    return f"{FACTS}{json.dumps(facts)}\n"


def parse_mark(text: str) -> Mark:
    """Read what follows `MARK`.

    Raises:
        ValueError: It is not what `mark_line` writes.
    """
    milliseconds, edge, step, *phase = text.rstrip().split(",")
    if edge not in ("begin", "end") or len(phase) > 1:
        raise ValueError("not a mark of a step")
    time = float(milliseconds)
    if not math.isfinite(time):
        raise ValueError(f"a time of {time} ms")
    return Mark(time, edge == "begin", int(step), phase[0] if phase else None)


def parse_facts(text: str) -> dict[str, Any]:
    """Read what follows `FACTS`.

    Raises:
        ValueError: It is not a JSON object.
    """
    try:
        facts = json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deep") from None
    if not isinstance(facts, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004
    return facts
