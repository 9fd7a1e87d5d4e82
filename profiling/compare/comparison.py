"""Two logs, matched by what was asked of oneDNN."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from profiling.compare.side import Question, Side, question_of
from profiling.onednn_log.log import Calls


@dataclass(slots=True)
class Answers:
    """What one side did of one question."""

    calls: float = 0.0
    """A step, where steps are compared."""
    ms: float = 0.0
    implementations: list[str] = field(default_factory=list)
    layouts: list[str] = field(default_factory=list)

    @property
    def mean_ms(self) -> float:
        """Milliseconds a call; 0 without calls."""
        return self.ms / self.calls if self.calls else 0.0

    def add(self, calls: Calls, *, divisor: int, implementation: str, layouts: str) -> None:
        """Take in one way in which the question was answered."""
        self.calls += calls.count / divisor
        self.ms += calls.total_ms / divisor
        if implementation not in self.implementations:
            self.implementations.append(implementation)
        if layouts not in self.layouts:
            self.layouts.append(layouts)


@dataclass(frozen=True, slots=True)
class Pair:
    """One question, and what both sides did of it."""

    question: Question
    first: Answers
    second: Answers

    @property
    def difference_ms(self) -> float:
        """By how much the first is slower."""
        return self.first.ms - self.second.ms

    @property
    def ratio(self) -> float | None:
        """The first's time over the second's; None where the second has none."""
        return self.first.ms / self.second.ms if self.second.ms else None

    @property
    def extra_calls(self) -> float:
        """Calls that the first makes and the second does not; below zero the other way round."""
        return self.first.calls - self.second.calls

    @property
    def extra_ms(self) -> float:
        """What those calls cost whoever makes them."""
        side = self.first if self.extra_calls > 0 else self.second
        return abs(self.extra_calls) * side.mean_ms

    @property
    def cost_ms(self) -> float:
        """The time of whoever is slower."""
        return max(self.first.ms, self.second.ms)


@dataclass(frozen=True)
class Comparison:
    """Everything that was matched."""

    first: Side
    second: Side
    pairs: Sequence[Pair]
    is_by_step: bool
    """Whether calls and times are those of a step."""

    @property
    def only_one(self) -> list[Pair]:
        """Questions of which one side makes more calls, the costliest extra calls first."""
        found = [pair for pair in self.pairs if abs(pair.extra_calls) > 1e-9]
        return sorted(found, key=lambda pair: -pair.extra_ms)

    @property
    def both(self) -> list[Pair]:
        """Questions that both sides ask equally often, the costliest first."""
        found = [pair for pair in self.pairs if abs(pair.extra_calls) <= 1e-9]
        return sorted(found, key=lambda pair: -pair.cost_ms)


def compare(first: Side, second: Side, *, with_types: bool, is_by_step: bool) -> Comparison:
    """Match two sides, question by question."""
    found: dict[Question, tuple[Answers, Answers]] = {}
    for place, side in enumerate((first, second)):
        for problem, calls in side.calls.items():
            question = question_of(problem, with_types=with_types)
            answers = found.setdefault(question, (Answers(), Answers()))[place]
            answers.add(
                calls,
                divisor=side.divisor,
                implementation=problem.implementation,
                layouts=problem.layouts,
            )
    pairs = [Pair(question, *answers) for question, answers in found.items()]
    return Comparison(first, second, pairs, is_by_step=is_by_step)


@dataclass(frozen=True, slots=True)
class KindPair:
    """All questions of a kind and direction."""

    kind: str
    direction: str
    first_calls: float
    second_calls: float
    first_ms: float
    second_ms: float

    @property
    def name(self) -> str:
        """`convolution backward data`."""
        return f"{self.kind} {self.direction}".strip()


def kinds_of(pairs: Sequence[Pair]) -> list[KindPair]:
    """Sums by kind and direction, the costliest first."""
    groups: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        groups.setdefault((pair.question.kind, pair.question.direction), []).append(pair)
    found = [
        KindPair(
            kind,
            direction,
            first_calls=sum(pair.first.calls for pair in some),
            second_calls=sum(pair.second.calls for pair in some),
            first_ms=sum(pair.first.ms for pair in some),
            second_ms=sum(pair.second.ms for pair in some),
        )
        for (kind, direction), some in groups.items()
    ]
    return sorted(found, key=lambda one: -max(one.first_ms, one.second_ms))
