"""The machine's measured peaks, as a file holds them. Loads no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Peaks:
    """Measured, not read off a data sheet."""

    matrix_gflop_per_s: dict[str, float]
    """By oneDNN's names of types: `{"f32": 410.2, "bf16": 823.0}`. `s8` is of signed, `u8` of
    unsigned inputs, both with signed weights. Types that the processor only emulates are left
    out."""
    bandwidth_gb_per_s: float
    """The memory's, in 10⁹ bytes a second, as a large copy or scaling has it."""
    threads: int
    cpu: str
    """The processor's name."""
    versions: dict[str, str]
    """Of the packages that computed."""
    cpus: tuple[int, ...] = ()
    """On which the threads ran."""
    rates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """GFLOP/s of everything that was timed, by type and by what it was."""
    bandwidths: Mapping[str, float] = field(default_factory=dict)
    """GB/s of each way to move memory."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Types that have no peak, and why."""
    other_cores: float = 0.0
    """Cores that other work kept busy meanwhile: more than a tenth, and peaks are too low."""
    notes: tuple[str, ...] = ()
    """What was not possible on the way, such as binding threads to cores."""

    def best(self, type_name: str) -> str:
        """What reached the peak of a type; empty where the file does not say."""
        rates = self.rates.get(type_name, {})
        return max(rates, key=lambda name: rates[name], default="")
