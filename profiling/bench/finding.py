"""A number that a benchmark is made for, beside what is wanted of it."""

from dataclasses import dataclass

from profiling.bench.results import Results


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line under a benchmark's table."""

    what: str
    value: float
    shown: str
    """The value with its unit, as a person reads it."""
    at_least: float | None = None
    at_most: float | None = None
    """What is wanted, if anything."""

    @property
    def target(self) -> str:
        """What is wanted, in words; empty where nothing is."""
        if self.at_least is not None:
            return f"at least {self.at_least:g}"
        if self.at_most is not None:
            return f"at most {self.at_most:g}"
        return ""

    @property
    def is_met(self) -> bool:
        """Whether the value is as wanted; true where nothing is wanted."""
        if self.at_least is not None:
            return self.value >= self.at_least
        return self.at_most is None or self.value <= self.at_most


def speed_up(
    results: Results, name: str, other: str, *, at_least: float | None = None
) -> list[Finding]:
    """How many times as fast one contestant is as another; nothing where one did not run."""
    if name not in results.names or other not in results.names:
        return []
    ratio = results.ratio(name, other)
    return [
        Finding(
            what=f"{name} against {other}",
            value=ratio.median,
            shown=f"{ratio.median:.2f} times as fast ({ratio.lowest:.2f}–{ratio.highest:.2f})",
            at_least=at_least,
        )
    ]
