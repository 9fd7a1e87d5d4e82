"""Whether the ranks of a host find the memory that they are estimated to take.

TODO-DOC How much memory a rank will take at its peak, estimated from the configuration.

Counted are the weights, their gradients, the optimizer's averages, copies of weights in the
precision of the arithmetic, and what the forward pass keeps (`kept_values`), which agrees with
torch's own account to 1 %. The rest is measured: what libraries take once they compute, and what a
backward pass has in flight. docs/surviving.md holds the estimate against real runs.

TODO-DOC How many values a forward pass keeps for the backward pass, counted layer by layer.

A convolution keeps its input, and a ReLU that overwrites its input keeps its output, which is the
next one's input: one copy of every map. A norm that trains keeps its input besides, so that it is
two. What comes before the first layer that trains keeps nothing.

TODO-DOC How many bytes a model and its optimizer hold, counted on a model that has shapes and no memory.

It is built on torch's meta device, in some 70 ms.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from launch.limits import MemoryLeft
from retinanet.config import ModelConfig, TrainingConfig
from retinanet.model.retinanet import RetinaNet
from retinanet.preflight.findings import Finding, amount, failure, ok, warning

SUBJECT = "memory"
FIX = (
    "lower training.batch_size (with training.gradient_accumulation the step stays the same), "
    "evaluation.batch_size, data.image_size or the ranks of this host"
)

MARGIN = 2
"""A run is refused if something is estimated to take so many times the memory that is free."""


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


def check_memory(
    need: MemoryNeed, *, ranks: int, once: int, not_started: int, left: MemoryLeft | None
) -> Finding:
    """Hold an estimate against what is left.

    It is no more than an estimate, so that only what no step can do without is a failure: weights,
    gradients and the optimizer's averages.

    Args:
        need: Of each rank.
        ranks: Of this host.
        once: What one of them takes besides: the copies that checkpoints are written from. [bytes]
        not_started: What ranks that are not there yet will take before they begin. [bytes]
        left: What processes may still take, and who says so; None where nobody does.
    """
    wanted = ranks * need.all + once + not_started
    of_ranks = f"{ranks} ranks × {amount(need.all)}" if ranks > 1 else amount(need.all)
    parts = (
        f"about {amount(need.model)} of weights, gradients and optimizer, "
        f"{amount(need.activations)} for the batch, {amount(need.other)} of other things, "
        f"{amount(need.loading)} of loading processes"
    )
    estimate = f"the ranks will take {of_ranks} more" if ranks > 1 else f"the run: {of_ranks} more"
    if once:
        estimate += f", and {amount(once)} while a checkpoint is written"
    if left is None:
        return ok(SUBJECT, f"{estimate} ({parts}); the system does not say what is free")
    have = f"{amount(left.size)} are free in {left.of}"
    if ranks * need.model > left.size + left.swap:
        least = amount(ranks * need.model)
        found = f"weights, gradients and optimizer alone take {least}, and only {have}"
        return failure(SUBJECT, found, fix="use fewer ranks on this host, or one with more memory")
    if wanted > left.size:
        return warning(SUBJECT, f"{have}, and {estimate} ({parts})", fix=FIX)
    return ok(SUBJECT, f"{have}; {estimate} ({parts})")


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


def check_counts(
    shape: StepShape, *, workers: int, ranks: int, left: MemoryLeft | None
) -> list[Finding]:
    """Refuse batches and loading processes that no host like this can hold.

    Args:
        shape: Of the steps of each rank.
        workers: Loading processes of each rank for each split, as configured.
        ranks: Of this host.
        left: What processes may still take; None where nobody says.

    Returns:
        A failure for each field that is too large; nothing where all fit.
    """
    if left is None:
        return []
    findings = []
    for field, count, of, size in (
        ("training.batch_size", shape.batch_size, "images", training_bytes(shape)),
        ("evaluation.batch_size", shape.evaluation_batch_size, "images", evaluation_bytes(shape)),
        ("data.workers", workers, "for each split", 2 * workers * LOADING_PROCESS),
    ):
        if ranks * size > (left.size + left.swap) * MARGIN:
            each = f"{ranks} ranks × {amount(size)}" if ranks > 1 else amount(size)
            found = (
                f"{field}: {count:,} {of} take about {each}, and only {amount(left.size)} are "
                f"free in {left.of}"
            )
            fitting = left.size // ranks // (size // count)
            fix = f"lower it to {fitting:,} or less" if fitting else "lower data.image_size"
            findings.append(failure(SUBJECT, found, fix=fix))
    return findings


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
class ModelBytes:
    """Sizes of a model's parts. [bytes]"""

    state: int
    """All tensors of its `state_dict`: parameters, and the statistics of norms."""
    trained: int
    """The parameters that train; their gradients are as large."""
    backbone: int
    """The backbone's parameters."""
    trained_backbone: int
    """Those of them that belong to the backbone."""
    statistics: int
    """Running statistics of the norms that train, which every rank has for itself."""
    optimizer: int
    """What the optimizer keeps for each parameter that trains."""

    @property
    def checkpoint(self) -> int:
        """The tensors of a checkpoint."""
        return self.state + self.optimizer


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


STEM = (64, 2)
"""Channels, and pixels of the image to each side of a position."""
STAGES = ((3, 128, 256, 4), (4, 256, 512, 8), (6, 512, 1024, 16), (3, 1024, 2048, 32))
"""ResNeXt50-32x4d: blocks, channels within a block, channels after it, pixels as above."""
PYRAMID = 256
"""Channels of the pyramid and of the heads."""
HIDDEN = 8
"""Hidden layers of both heads."""
ANCHORS = 9
"""At a position."""
INDEX_BYTES = 8
"""torch's max pooling keeps where each maximum was."""


def kept_values(image_size: int, *, trainable_layers: int, norm: str, num_classes: int) -> int:
    """Values of one image that are kept; one has the bytes of the precision."""
    first = 4 - min(trainable_layers, 4)  # the first stage that trains; 4: none
    values = sum(
        stage_values(stage, image_size, norm=norm)
        if stage >= first
        else inputs_of_others(stage, image_size, first=first)
        for stage in range(4)
    )
    if trainable_layers >= 4:  # the pooled stem is the first block's input
        values += STEM[0] * positions(image_size, 2 * STEM[1])
    if trainable_layers == 5:
        copies = 2 if norm == "batch" else 1
        values += 3 * image_size**2 + copies * STEM[0] * positions(image_size, STEM[1])
    return values + pyramid_values(image_size) + head_values(image_size, num_classes=num_classes)


def index_bytes(image_size: int, *, trainable_layers: int) -> int:
    """What the stem's pooling keeps of one image, where the stem trains. [bytes]"""
    if trainable_layers < 5:
        return 0
    return INDEX_BYTES * STEM[0] * positions(image_size, 2 * STEM[1])


def stage_values(stage: int, image_size: int, *, norm: str) -> int:
    """Of a stage that trains: the outputs of its convolutions."""
    blocks, inner, outer, stride = STAGES[stage]
    here = positions(image_size, stride)
    before = positions(image_size, STAGES[max(0, stage - 1)][3])  # the stride is its second one's
    once = inner * before + (inner + outer) * here + (blocks - 1) * (2 * inner + outer) * here
    return 2 * once + outer * here if norm == "batch" else once


def inputs_of_others(stage: int, image_size: int, *, first: int) -> int:
    """The output of a frozen stage, where a layer that trains takes it: the pyramid, or a stage."""
    _, _, outer, stride = STAGES[stage]
    return outer * positions(image_size, stride) if stage >= 1 or stage + 1 == first else 0


def pyramid_values(image_size: int) -> int:
    """The merged maps, and the levels that the heads take."""
    merged = sum(positions(image_size, stride) for _, _, _, stride in STAGES[1:])
    coarse = positions(image_size, 64)  # once more behind a ReLU, as P7's input
    return PYRAMID * (merged + level_positions(image_size) + coarse)


def head_values(image_size: int, *, num_classes: int) -> int:
    """The hidden maps of both heads, the gradients of logits, and the boxes."""
    return (HIDDEN * PYRAMID + ANCHORS * (num_classes + 4)) * level_positions(image_size)


def logit_values(image_size: int, *, num_classes: int) -> int:
    """Logits of one image."""
    return ANCHORS * num_classes * level_positions(image_size)


def level_positions(image_size: int) -> int:
    """Positions of all five levels."""
    return sum(positions(image_size, stride) for stride in (8, 16, 32, 64, 128))


def positions(image_size: int, stride: int) -> int:
    """Of a square map; a side that does not divide is rounded up."""
    side = -(-image_size // stride)
    return side * side


FILLING = (Tensor.normal_, Tensor.uniform_, Tensor.fill_, Tensor.zero_)


def model_bytes(model: ModelConfig, training: TrainingConfig, *, num_classes: int) -> ModelBytes:
    """Count the model that a configuration describes."""
    with torch.device("meta"), _Unfilled():
        network = RetinaNet(
            num_classes=num_classes, norm=model.norm, trainable_layers=model.trainable_layers
        )
    network.train()
    trained = [one for one in network.parameters() if one.requires_grad]
    body = list(network.backbone.body.parameters())
    norms = (one for one in network.modules() if isinstance(one, nn.BatchNorm2d) and one.training)
    statistics = (one for norm in norms for one in (norm.running_mean, norm.running_var))
    return ModelBytes(
        state=total(network.state_dict().values()),
        trained=total(trained),
        backbone=total(body),
        trained_backbone=total(one for one in body if one.requires_grad),
        statistics=total(one for one in statistics if one is not None),
        optimizer=optimizer_bytes(training, trained),
    )


def optimizer_bytes(training: TrainingConfig, trained: Sequence[Tensor]) -> int:
    """What the optimizer keeps: two averages and a count for adam and lamb, a momentum for sgd."""
    if training.optimizer == "sgd":
        return total(trained) if training.momentum else 0
    count = torch.zeros((), device="meta").nbytes
    return 2 * total(trained) + count * len(trained)


def total(tensors: Iterable[Tensor]) -> int:
    """The bytes of all of them."""
    return sum(tensor.nbytes for tensor in tensors)


class _Unfilled(TorchFunctionMode):
    """Leaves new tensors as they are: without memory there is nothing to fill."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        of_init = getattr(function, "__module__", "") == "torch.nn.init"
        if args and (of_init or function in FILLING):
            return args[0]
        return function(*args, **(kwargs or {}))
