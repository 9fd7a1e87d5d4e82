"""What is timed, and how it is run. Loads no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

DEFAULT_BATCH = {"retinanet": 2, "alexnet": 64, "resnet50": 16, "resnext50": 16}
"""The networks that can be timed, and images in a batch."""
DEFAULT_SIZE = {"retinanet": 800}
CLASSIFIER_SIZE = 224
PLAIN_EVERY = 5
"""After the first of so many watched iterations comes one that nobody watches, to see what
watching costs."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A network and its batch."""

    model: str
    """One of `DEFAULT_BATCH`."""
    batch: int
    image_size: int
    """Height and width. [pixels]"""
    precision: str
    """`bf16` or `float32`."""
    device: str
    """`cpu` or `cuda`."""
    seed: int = 0

    def __str__(self) -> str:
        images = f"{self.batch} image{'s' if self.batch > 1 else ''}"
        return f"{self.model}, {images} of {self.image_size}×{self.image_size}, {self.precision}"


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One of the ways to run it that are compared."""

    onednn: bool
    """The optimized engine; else torch's operators do without oneDNN, and without ours."""
    threads: int
    """Compute threads, one a core."""
    memory: str | None = None
    """The memory policy, as numactl names it; None leaves it."""
    huge_pages: bool = False
    """Whether the C library asks the kernel for huge pages."""


def labels(configurations: Sequence[Configuration]) -> list[str]:
    """Names that tell configurations apart: what is the same for all is left out."""
    parts = {
        "onednn": lambda one: "optimized" if one.onednn else "default",
        "threads": lambda one: f"{one.threads} thread{'s' if one.threads > 1 else ''}",
        "memory": lambda one: f"memory {one.memory or 'as it is'}",
        "huge_pages": lambda one: "huge pages" if one.huge_pages else "small pages",
    }
    differing = [
        name for name in parts if len({getattr(one, name) for one in configurations}) > 1
    ] or ["onednn"]
    return [", ".join(parts[name](one) for name in differing) for one in configurations]
