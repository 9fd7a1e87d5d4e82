"""What a model card tells, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass

from retinanet.evaluation.metric import ClassResult


@dataclass(frozen=True, kw_only=True)
class SplitFacts:
    """A split of the data set."""

    annotations: str
    """Its file."""
    images: str
    """Its folder."""
    number_of_images: int
    number_of_boxes: int


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """Of a checkpoint that was evaluated."""

    name: str
    """The run's."""
    checkpoint: str
    """The folder, as commands take it."""
    python: str
    """The interpreter, as commands take it."""
    step: int
    total_steps: int
    epochs: float
    image_size: int
    parameters: int
    is_pretrained: bool
    is_drawn: bool
    """Whether the data are scenes that were drawn for it."""
    train: SplitFacts
    validation: SplitFacts
    settings: Mapping[str, str]
    """How it was trained: a name and a value a row."""
    summary: Mapping[str, float]
    """`SUMMARY_NAMES` to values; nan where nothing could be measured."""
    classes: tuple[ClassResult, ...]

    @property
    def is_its_own_test(self) -> bool:
        """Whether it was evaluated on the pictures that it was trained on."""
        one, other = self.train, self.validation
        return one.annotations == other.annotations
