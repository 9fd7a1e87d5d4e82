"""Estimate of a rank's peak memory from the configuration.

Counted on torch's meta device, where tensors have no memory (100 ms): the weights, their gradients,
the optimizer's state, copies of weights in the number format of the model, and the tensors that the
forward pass saves for the backward pass, within 1 % of autograd's saved tensors. Constants for
libraries and temporary gradients are measured. docs/preflight.md compares estimates with runs.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from data.annotations import Size, as_size, count_pixels
from launch.limits import FreeMemory
from retinanet.config import Config
from retinanet.config_sections import EngineConfig, ModelConfig, TrainingConfig
from retinanet.config_types import LogitCopies, field_marks, loading_processes
from retinanet.engine.folded_forward import FoldedForward
from retinanet.model.retinanet import RetinaNet

LOADED = 700_000_000
"""A process that has loaded torch and the other libraries; half of it are pages of files, which
the ranks of a host share. [bytes]"""
LIBRARIES = 140_000_000
"""Compiled kernels, used pages of libraries, and memory that building the model leaves. [bytes]"""
LOADING_PROCESS = 50_000_000
"""Memory of a loading process that is not shared with the rank; each split has its own. [bytes]"""
IN_FLIGHT = {"frozen": 0.25, "batch": 0.5}
"""Temporary gradients of maps in the backward pass, by norm, as a fraction of the saved maps."""
EVALUATED_VALUES = 60
"""Values per pixel at the peak of an evaluation, which is in the first stage."""
IPEX_MAPS = 2
"""Maps that the engine `ipex` saves for each map of the engine `torch`: its norms are separate
operators, which save their inputs."""
BYTES = {"bf16": 2, "float32": 4}


@dataclass(frozen=True, kw_only=True)
class ModelBytes:
    """Sizes of a model's parts. [bytes]"""

    state: int  # All tensors of its `state_dict`: parameters, and the statistics of norms
    trained: int  # The parameters that train; their gradients are as large
    backbone: int
    trained_backbone: int
    statistics: int
    """Running statistics of the norms that train, and their averages, which differ by rank."""
    optimizer: int
    average: int  # The average of the weights (`training.ema`)

    @property
    def checkpoint(self) -> int:
        """The tensors of a checkpoint."""
        return self.state + self.optimizer + self.average


@dataclass(frozen=True, kw_only=True)
class MemoryNeed:
    """The memory of a rank beyond a process that has loaded the libraries. [bytes]"""

    model: int  # Weights, their average, gradients and optimizer state
    activations: int
    """Maps saved for the backward pass, or maps of an evaluation if these are larger."""
    other: int  # Copies of weights, libraries, exchange
    loading: int

    @property
    def all(self) -> int:
        """The sum. [bytes]"""
        return self.model + self.activations + self.other + self.loading


def memory_need(
    config: Config,
    model: ModelBytes,
    *,
    num_classes: int,
    engine: str,
    ranks_on_host: int = 1,
    validation_images: int | None = None,
) -> MemoryNeed:
    """Estimate the peak memory of the rank that has most images.

    The sizes of the `model` are those of `model_bytes`; the `engine` is `torch` or `ipex`. Several
    ranks on a host exchange their gradients through memory that they share.
    """
    # Copies of weights: all of them in BF16; in float32 those that a frozen norm is folded into.
    if config.engine.precision == "bf16":
        copies = model.state // 2
    elif config.model.norm == "frozen":
        copies = model.backbone
    else:
        copies = model.backbone - model.trained_backbone
    other = LIBRARIES + copies
    if ranks_on_host > 1:
        # The exchange alternates between two halves of the shared memory.
        other += 2 * model.trained // (2 if config.distributed.compress == "bf16" else 1)
    image = training_bytes(config, num_classes=num_classes, engine=engine)
    evaluated = evaluation_bytes(config, num_classes=num_classes)
    evaluation = evaluation_images(config, validation_images) * evaluated
    # An evaluation has no gradients, which `model` counts, but a copy of the weights that averages
    # stand in for. Processes of both splits exist from the
    # first step on, because starting them later costs page faults.
    return MemoryNeed(
        model=model.state + model.average + model.trained + model.optimizer,
        activations=max(
            training_images(config) * image, evaluation + model.average - model.trained
        ),
        other=other,
        loading=2 * count_loading_processes(config) * LOADING_PROCESS,
    )


def images_that_fit(
    config: Config, *, num_classes: int, engine: str, local_ranks: int, available: FreeMemory | None
) -> int | None:
    """Return the largest batch of a rank: the even batch, already in memory, plus what fits.

    The ranks of this host divide the `available` memory evenly; None if that is not known.
    """
    if available is None:
        return None
    sizes = model_bytes(config.model, config.training, num_classes=num_classes)
    need = memory_need(
        config, sizes, num_classes=num_classes, engine=engine, ranks_on_host=local_ranks
    )
    # Only the host of rank 0 holds a checkpoint's copies; other hosts leave the same room.
    other = need.all - need.activations
    free = (available.size - sizes.checkpoint) // local_ranks - other
    image = training_bytes(config, num_classes=num_classes, engine=engine)
    return config.training.batch_size + max(0, free // image)


def training_images(config: Config) -> int:
    """Return the images in a batch of the rank that has most, as far as the settings fix it."""
    split = config.distributed.batch_split
    return config.training.batch_size if isinstance(split, str) else max(split)


def evaluation_images(config: Config, validation_images: int | None) -> int:
    """Return the images in an evaluation batch; a small split has fewer than a batch."""
    batch_size = config.evaluation.batch_size
    return min(batch_size, validation_images or batch_size)


def count_loading_processes(config: Config) -> int:
    """Return the loading processes of a rank for each split."""
    return loading_processes(config.data.workers, reserved_cores=config.data.reserve_cores)


def training_bytes(config: Config, *, num_classes: int, engine: str) -> int:
    """Return the memory per image in a step: saved maps, temporary gradients. [bytes]"""
    values = values_of_image(config, num_classes=num_classes)
    value = BYTES[config.engine.precision]
    maps = values.bytes(value) * (IPEX_MAPS if engine == "ipex" else 1)
    copies = field_marks(EngineConfig, LogitCopies)["focal_loss"]
    in_flight = round(IN_FLIGHT[config.model.norm] * maps)
    in_flight += copies.by_value[config.engine.focal_loss] * values.logits * value
    return maps + in_flight + image_bytes(config)


def evaluation_bytes(config: Config, *, num_classes: int) -> int:
    """Return the memory per image in an evaluation, which saves no maps. [bytes]"""
    logits = values_of_image(config, num_classes=num_classes).logits
    values = EVALUATED_VALUES * count_pixels(config.data.image_size) + logits
    return BYTES[config.engine.precision] * values + image_bytes(config)


def image_bytes(config: Config) -> int:
    """Return the size of an image as it was loaded, uint8, and normalized, float32. [bytes]"""
    return (1 + 4) * 3 * count_pixels(config.data.image_size)


@dataclass(frozen=True)
class ForwardValues:
    """Numbers of values that a forward pass of one image saves for the backward pass."""

    maps: int
    """Values of maps in the model's number format, the outputs' gradients included."""
    indices: int  # Values of int64: positions of the maxima in the stem's pooling, if it trains
    logits: int

    def bytes(self, value: int) -> int:
        """Return the size of maps and indices, with `value` bytes per value of a map."""
        return value * self.maps + 8 * self.indices


def values_of_image(config: Config, *, num_classes: int) -> ForwardValues:
    """Count the values that a forward pass of the configured model saves for one image."""
    return forward_values(config.model, as_size(config.data.image_size), num_classes=num_classes)


@functools.cache
def forward_values(model: ModelConfig, image_size: Size, *, num_classes: int) -> ForwardValues:
    """Count the values that the engine `torch` saves for one image, on the meta device.

    The pass runs in float32 with oneDNN's convolutions, since our own kernels read memory, which
    meta tensors do not have; both save the same number of values, their inputs. The focal loss
    needs targets and is not run: its kernel saves the logits' gradient.
    """
    network = network_without_memory(model, num_classes=num_classes)
    forward = FoldedForward(network, precision="float32", convolutions="onednn")
    saved: dict[int, Tensor] = {}

    def save(tensor: Tensor) -> Tensor:
        # Maps have a first dimension of 1, the batch; weights have more output channels. By storage
        # instead of data_ptr, which is 0 on the meta device: a map may be saved more than once.
        if tensor.dim() == 4 and len(tensor) == 1:
            saved[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with saved_tensors_hooks(save, lambda tensor: tensor):
        outputs = forward(torch.empty(1, 3, *image_size, device="meta"))
    counts = {True: 0, False: 0}  # of maps, and of indices
    for tensor in saved.values():
        counts[tensor.is_floating_point()] += tensor.untyped_storage().nbytes() // tensor.itemsize
    logits = sum(level.numel() for level in outputs.cls_logits)
    boxes = sum(level.numel() for level in outputs.bbox_regression)
    return ForwardValues(maps=counts[True] + logits + boxes, indices=counts[False], logits=logits)


def model_bytes(model: ModelConfig, training: TrainingConfig, *, num_classes: int) -> ModelBytes:
    """Count the parameters, buffers and optimizer state of a configured model."""
    network = network_without_memory(model, num_classes=num_classes)
    trained = [tensor for tensor in network.parameters() if tensor.requires_grad]
    body = list(network.backbone.body.parameters())
    norms = [
        norm for norm in network.modules() if isinstance(norm, nn.BatchNorm2d) and norm.training
    ]
    statistics = [tensor for norm in norms for tensor in (norm.running_mean, norm.running_var)]
    if training.optimizer == "sgd":  # a momentum
        optimizer = total(trained) if training.momentum else 0
    else:  # two averages, and a counter of steps per parameter
        counter = torch.zeros((), device="meta").nbytes
        optimizer = 2 * total(trained) + counter * len(trained)
    running = total(tensor for tensor in statistics if tensor is not None)
    return ModelBytes(
        state=total(network.state_dict().values()),
        trained=total(trained),
        backbone=total(body),
        trained_backbone=total(tensor for tensor in body if tensor.requires_grad),
        statistics=running if training.ema is None else 2 * running,
        optimizer=optimizer,
        average=0 if training.ema is None else total(trained) + running,
    )


def total(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of all tensors."""
    return sum(tensor.nbytes for tensor in tensors)


# Cached: the estimates of memory and disk space both need the network.
@functools.cache
def network_without_memory(model: ModelConfig, *, num_classes: int) -> RetinaNet:
    """Build a model in training mode whose tensors have shapes and no memory."""
    with torch.device("meta"):
        network = RetinaNet(
            num_classes=num_classes,
            norm=model.norm,
            trainable_layers=model.trainable_layers,
            architecture=model.architecture,
        )
    return network.train()
