"""What a step would take if oneDNN's primitives ran at another speed."""

from collections.abc import Callable
from dataclasses import dataclass

from profiling.efficiency.efficiency import Efficiency, ProblemEfficiency


@dataclass(frozen=True, slots=True)
class Speed:
    """A step at some speed of oneDNN's primitives. [seconds]"""

    name: str
    onednn_s: float
    """In oneDNN's primitives."""
    step_s: float | None
    """Of the whole step; None where the log does not tell what else is in it."""
    images_per_s: float | None
    """Of all ranks in the log; None where the step or its images are not known."""


@dataclass(frozen=True)
class Projection:
    """A step as it was, and as it could be; what is not oneDNN's stays as it was.

    Problems without a replay, or without a roofline, keep their measured time.
    """

    speeds: tuple[Speed, ...]
    """`as measured` first."""
    elsewhere_s: float | None
    """Outside of oneDNN's primitives, our own kernels included."""
    images: int | None
    """In a step, of all ranks in the log."""
    roofline_share: float
    """Of oneDNN's measured time, what has a roofline."""

    @property
    def measured(self) -> Speed:
        """The step as it was."""
        return self.speeds[0]


def project(
    efficiency: Efficiency, *, steps: int | None, images_a_step: int | None
) -> Projection | None:
    """Seconds and images a second of a step, at each speed.

    Args:
        efficiency: With its marks, if the log has any.
        steps: How many the log is of, each rank's, where it marks none.
        images_a_step: Of all ranks in the log; None: as the log says.

    Returns:
        None where it is not known how many steps the log is of.
    """
    marked = efficiency.steps
    count = marked.count or (steps * marked.ranks if steps else None)
    if count is None:
        return None
    images = images_a_step or marked.images
    measured = efficiency.measured_ms / count / 1000
    elsewhere = None if marked.wall_ms is None else marked.wall_ms / 1000 - measured

    def speed(name: str, onednn_ms: float) -> Speed:
        onednn_s = onednn_ms / count / 1000
        step_s = None if elsewhere is None else onednn_s + elsewhere
        return Speed(name, onednn_s, step_s, images / step_s if images and step_s else None)

    found = [speed("as measured", efficiency.measured_ms)]
    if efficiency.problems:
        found.append(speed("at the hot replay's speed", total_ms(efficiency, hot)))
    if efficiency.total.cold_ms is not None:
        found.append(speed("at the cold replay's speed", total_ms(efficiency, cold_or_hot)))
    bounded = [one for one in efficiency.problems if one.roofline_ms is not None]
    if bounded:
        found.append(speed("at the roofline", total_ms(efficiency, roofline_or_measured)))
    bounded_ms = sum(one.measured_ms for one in bounded)
    return Projection(
        speeds=tuple(found),
        elsewhere_s=elsewhere,
        images=images,
        roofline_share=bounded_ms / efficiency.measured_ms if efficiency.measured_ms else 0.0,
    )


def total_ms(efficiency: Efficiency, milliseconds: Callable[[ProblemEfficiency], float]) -> float:
    """All replayed problems by some measure, and the measured time of the others."""
    return sum(map(milliseconds, efficiency.problems)) + efficiency.not_replayed_ms


def hot(one: ProblemEfficiency) -> float:
    """All calls at the hot replay's speed."""
    return one.hot_ms


def cold_or_hot(one: ProblemEfficiency) -> float:
    """All calls at the cold replay's speed; what is too small to be run cold, at the hot one's."""
    return one.hot_ms if one.cold_ms is None else one.cold_ms


def roofline_or_measured(one: ProblemEfficiency) -> float:
    """All calls at the roofline; as measured where there is none, or where caches beat it."""
    if one.roofline_ms is None:
        return one.measured_ms
    return min(one.measured_ms, one.roofline_ms * one.calls)
