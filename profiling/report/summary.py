"""The page in a few sentences, for who reads no further."""

from collections.abc import Sequence
from pathlib import Path

from profiling.efficiency.readable import kind_and_direction
from profiling.report.advice import Advice, saving
from profiling.report.material import Material
from profiling.report.measured import parts_of
from profiling.report.words import three

KINDS = 3


def title_of(material: Material) -> str:
    """What the page is about."""
    runs = dict.fromkeys(str(facts["run"]) for facts in material.log.facts if facts.get("run"))
    name = ", ".join(runs) or Path(material.log.files[0]).name
    goes = "a training step" if material.measured.steps.count else "oneDNN's time"
    return f"{name}: where {goes} goes"


def summary_of(material: Material, advice: Sequence[Advice]) -> list[str]:
    """How long, in what, what it could be, what to look at first."""
    measured = material.measured
    if not measured.problems:
        return ["None of oneDNN's primitives ran within a whole step of this log."]
    share = [f"{kind_and_direction(part.kind, part.direction)} {part.share:.0%}"
             for part in parts_of(measured.problems)[:KINDS]]  # fmt: skip
    sentences = [f"{how_long(material)} Most of that is {', '.join(share)}."]
    ideal = measured.roofline_ms
    if ideal is not None and measured.ms:
        text = f"At this machine's measured peaks they would take {three(ideal)} ms"
        if measured.wall_ms:
            step = measured.wall_ms - measured.ms + ideal
            text += f", and a step {measured.wall_ms / step:.2f} times as fast"
        sentences.append(f"{text}.")
    worth = [one for one in advice if one.saves_ms]
    if worth:
        sentences.append(f"Look first at: {worth[0].title}. {saving(worth[0], measured)}")
    if material.log.not_understood_count:
        sentences.append(
            f"{material.log.not_understood_count:,} lines of the log are not understood."
        )
    return [" ".join(sentences)]


def how_long(material: Material) -> str:
    """A step and oneDNN's part of it, or a whole log."""
    measured = material.measured
    if measured.wall_ms:
        inside = measured.ms / measured.wall_ms
        steps = measured.steps.count or 1
        mean = f", the mean of {steps}," if steps > 1 else ""
        return (
            f"A step{mean} takes {three(measured.wall_ms)} ms; {three(measured.ms)} ms of it "
            f"({inside:.0%}) are in oneDNN's primitives."
        )
    calls = sum(one.calls for one in measured.problems)
    return (
        f"oneDNN's primitives take {three(measured.ms)} ms in this log: {calls:,.0f} calls of "
        f"{len(measured.problems):,} different problems."
    )
