"""The machine's measured peaks, as a file holds them. Loads no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Peaks:
    """Measured, not read off a data sheet."""

    matrix_gflop_per_s: dict[str, float]
    """By oneDNN's names of types: `{"f32": 410.2, "bf16": 823.0}`."""
    bandwidth_gb_per_s: float
    """The memory's, in 10⁹ bytes a second, as a large copy or scaling has it."""
    threads: int
    cpu: str
    """The processor's name."""
    versions: dict[str, str]
    """Of the packages that computed."""
