"""What every contestant of a benchmark is given to do."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A batch's measures; the batch itself is made from the seed, the same for all."""

    images: int = 2
    """Images in the batch."""
    image_size: int = 800
    """Height and width of every image. [pixels]"""
    classes: int = 264
    """Outputs of the classification head for every anchor."""
    seed: int = 0
    """Of images, boxes and weights."""

    def __str__(self) -> str:
        return (
            f"{self.images} images of {self.image_size}x{self.image_size}, {self.classes} classes"
        )


STANDARD = Workload()
"""The workload that targets are given for."""
