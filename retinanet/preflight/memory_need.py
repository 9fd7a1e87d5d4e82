"""How much memory a rank will take at its peak, estimated from the configuration.

Counted are the weights, their gradients, the optimizer's averages, copies of weights in the
precision of the arithmetic, and what the forward pass keeps (`kept_values`), which agrees with
torch's own account to 1 %. The rest is measured: what libraries take once they compute, and what a
backward pass has in flight. docs/surviving.md holds the estimate against real runs.
"""

from dataclasses import dataclass

from retinanet.preflight.kept_values import index_bytes, kept_values, logit_values
from retinanet.preflight.model_bytes import ModelBytes

LOADED = 700_000_000
"""A process that has loaded torch and what a run needs; half of it are pages of files, which the
ranks of a host share."""
LIBRARIES = 140_000_000
"""Compiled kernels, pages of libraries that are used, and what building the model leaves."""
IN_FLIGHT = {"frozen": 0.25, "batch": 0.5}
"""Gradients of maps during the backward pass, by norm: a share of the maps that it was given."""
EVALUATED_VALUES = 60
"""For each pixel of an image that is evaluated, at the largest moment, in the first stage."""
LOSS_COPIES = {"kernel": 1, "auto": 1, "paper": 11, "paper_implicit": 11, "reference": 40}
"""Tensors of the logits' size that a form of the focal loss has at once."""
UNFOLDED = 2
"""Maps that `ipex` keeps, which runs norms by themselves, for each of those of `torch`."""
LOADING_PROCESS = 50_000_000
"""Of its own, beside the pages that it shares with the rank; a rank has one for each split."""
BYTES = {"bf16": 2, "float32": 4}


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """What decides about the memory of a step."""

    image_size: int
    """[pixels]"""
    batch_size: int
    evaluation_batch_size: int
    num_classes: int
    trainable_layers: int
    norm: str
    precision: str
    engine: str
    """`torch` or `ipex`."""
    focal_loss: str
    """A form, with `auto` for the kernel."""


@dataclass(frozen=True, kw_only=True)
class MemoryNeed:
    """What a rank takes beyond what a process has that has loaded the libraries. [bytes]"""

    model: int
    """Weights, gradients and optimizer, in every configuration of these."""
    activations: int
    """What is kept for the backward pass, or an evaluation's maps if they are more."""
    other: int
    """Copies of weights, libraries, exchange."""
    loading: int
    """The processes that load images."""

    @property
    def all(self) -> int:
        """[bytes]"""
        return self.model + self.activations + self.other + self.loading


def memory_need(
    model: ModelBytes,
    shape: StepShape,
    *,
    ranks_on_host: int = 1,
    is_compressed: bool = False,
    workers: int = 0,
    copies_for_checkpoint: bool = False,
) -> MemoryNeed:
    """Estimate a rank's peak.

    Args:
        model: Sizes of the model's parts.
        shape: Of the steps.
        ranks_on_host: Several exchange their gradients through memory that they share.
        is_compressed: Whether they do so in BF16.
        workers: Loading processes for each split.
        copies_for_checkpoint: Whether this rank writes checkpoints, from copies of all tensors.
    """
    other = LIBRARIES + casted_weights(model, shape)
    if ranks_on_host > 1:
        other += 2 * model.trained // (2 if is_compressed else 1)  # two halves take turns
    if copies_for_checkpoint:
        other += model.checkpoint
    return MemoryNeed(
        model=model.state + model.trained + model.optimizer,
        activations=max(training_bytes(shape), evaluation_bytes(shape) - model.trained),
        other=other,
        loading=2 * workers * LOADING_PROCESS,
    )


def casted_weights(model: ModelBytes, shape: StepShape) -> int:
    """Copies of weights: all in BF16, or in float32 those that a constant norm scales. [bytes]"""
    if shape.precision == "bf16":
        return model.state // 2
    if shape.norm == "frozen":
        return model.backbone
    return model.backbone - model.trained_backbone


def training_bytes(shape: StepShape) -> int:
    """What a step's forward pass keeps, and the backward pass has in flight. [bytes]"""
    size, value = shape.image_size, BYTES[shape.precision]
    kept = value * kept_values(
        size,
        trainable_layers=shape.trainable_layers,
        norm=shape.norm,
        num_classes=shape.num_classes,
    )
    kept += index_bytes(size, trainable_layers=shape.trainable_layers)
    if shape.engine == "ipex":
        kept *= UNFOLDED
    logits = value * logit_values(size, num_classes=shape.num_classes)
    in_flight = round(IN_FLIGHT[shape.norm] * kept) + LOSS_COPIES[shape.focal_loss] * logits
    return shape.batch_size * (kept + in_flight + image_bytes(size))


def evaluation_bytes(shape: StepShape) -> int:
    """What an evaluation's forward pass has at once; it keeps nothing. [bytes]"""
    size = shape.image_size
    values = EVALUATED_VALUES * size**2 + logit_values(size, num_classes=shape.num_classes)
    return shape.evaluation_batch_size * (BYTES[shape.precision] * values + image_bytes(size))


def image_bytes(image_size: int) -> int:
    """An image as it was loaded, uint8, and normalized, float32. [bytes]"""
    return (1 + 4) * 3 * image_size**2
