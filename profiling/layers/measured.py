"""What one configuration has shown: its iterations, and the numbers that are made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, pstdev
from typing import Any

from profiling.layers.subject import PLAIN_EVERY, Configuration

BETWEEN = "between layers"
"""The rest of an iteration: sums, activations and reshaping that no module does, and autograd."""
CONVOLUTIONS = ("Conv2d", "Conv3d", "Conv1d", "ConvTranspose2d")


@dataclass(frozen=True)
class Statistic:
    """Of a time over all iterations. [milliseconds]"""

    mean: float
    median: float
    deviation: float
    """Standard deviation."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer, or the loss, or what lies between them."""

    name: str
    type: str
    """The module's class; `loss`, or empty between layers."""
    calls: int
    """In one iteration."""
    trains: bool
    """Whether it has weights that get gradients."""
    forward: Statistic
    backward: Statistic | None
    """None: it has no backward pass, as nothing before it trains."""
    share: float
    """Of the whole iteration."""
    gflop: float
    """Multiplications and additions of an iteration, both passes. [10⁹]"""
    gflop_per_s: float | None
    """None where no arithmetic is counted."""

    @property
    def total_ms(self) -> float:
        """Average of both passes together."""
        return self.forward.mean + (self.backward.mean if self.backward else 0.0)


@dataclass(kw_only=True)
class Measured:
    """The iterations of one configuration, as its worker told them; milliseconds."""

    configuration: Configuration
    label: str
    """What tells it from the others."""
    facts: Mapping[str, Any]
    """See `profiling.layers.facts`."""
    watched: list[dict[str, Any]] = field(default_factory=list)
    """See `profiling.layers.iteration`."""
    plain: list[dict[str, float]] = field(default_factory=list)
    warm_ms: float = 0.0
    """The last iteration of the warm-up."""
    peak_mb: float = 0.0
    huge_pages_mb: float = 0.0
    primitives: Mapping[str, float] = field(default_factory=dict)
    """Seconds inside each kind of oneDNN primitive in one iteration."""

    def whole(self, work: str) -> Statistic:
        """All of `forward` or `backward`."""
        return statistic([one[work] for one in self.watched])

    @property
    def total_ms(self) -> float:
        """An iteration on average."""
        return self.whole("forward").mean + self.whole("backward").mean

    @property
    def plain_ms(self) -> float:
        """The median of iterations that nobody watched."""
        return median(map(passes_ms, self.plain))

    @property
    def middle_ms(self) -> float:
        """The median of watched iterations; before there are any, the last of the warm-up."""
        return median(map(passes_ms, self.watched)) if self.watched else self.warm_ms

    @property
    def watching_cost(self) -> float:
        """What watching adds to an iteration, each against the unwatched one right after it."""
        pairs = zip(self.watched[::PLAIN_EVERY], self.plain, strict=True)
        return median(passes_ms(watched) / passes_ms(plain) for watched, plain in pairs) - 1

    @property
    def convolving_share(self) -> float:
        """Of an iteration, in convolutions."""
        return sum(layer.share for layer in self.layers() if layer.type in CONVOLUTIONS)

    def layers(self) -> list[Layer]:
        """In the order of their first call, then what lies between them; together, it is all."""
        found = [self._layer(fact) for fact in self.facts["layers"]]
        forward = [rest(one, one["forward"], place=0) for one in self.watched]
        backward = [rest(one, one["backward"], place=1) for one in self.watched]
        between = statistic(forward), statistic(backward)
        return [
            *found,
            Layer(
                name=BETWEEN,
                type="",
                calls=1,
                trains=False,
                forward=between[0],
                backward=between[1],
                share=(between[0].mean + between[1].mean) / self.total_ms,
                gflop=0.0,
                gflop_per_s=None,
            ),
        ]

    def _layer(self, fact: Mapping[str, Any]) -> Layer:
        times = [one["layers"][fact["name"]] for one in self.watched]
        forward = statistic([pair[0] for pair in times])
        has_backward = any(pair[1] is not None for pair in times)
        backward = statistic([pair[1] or 0.0 for pair in times]) if has_backward else None
        total = forward.mean + (backward.mean if backward else 0.0)
        gflop = fact["gflop_forward"] + (fact["gflop_backward"] if backward else 0.0)
        return Layer(
            name=fact["name"],
            type=fact["type"],
            calls=fact["calls"],
            trains=fact["trains"],
            forward=forward,
            backward=backward,
            share=total / self.total_ms,
            gflop=gflop,
            gflop_per_s=gflop / total * 1000 if gflop else None,
        )

    def nodes(self) -> dict[str, float]:
        """Average milliseconds of backward work between layers, by node of autograd's graph."""
        names = {name for one in self.watched for name in one["nodes"]}
        found = {name: fmean(one["nodes"].get(name, 0.0) for one in self.watched) for name in names}
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def rest(iteration: Mapping[str, Any], whole: float, *, place: int) -> float:
    """Of a pass, what no layer has taken."""
    return whole - sum(pair[place] or 0.0 for pair in iteration["layers"].values())


def passes_ms(iteration: Mapping[str, Any]) -> float:
    """Both passes."""
    both: float = iteration["forward"] + iteration["backward"]
    return both


def statistic(values: Sequence[float]) -> Statistic:
    """Of at least one value."""
    return Statistic(fmean(values), median(values), pstdev(values))
