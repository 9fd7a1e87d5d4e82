"""The networks that can be timed: weights and batches from random numbers, the same every time."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from data.transforms import normalize
from profiling.bench.convolution_flop import Flop, flop_by_layer
from profiling.bench.recipes.synthetic import make_batch, make_weights
from profiling.bench.workload import Workload
from profiling.layers.subject import Subject
from retinanet.config import ModelConfig
from retinanet.engine.engines import torch_forward
from retinanet.engine.network import FoldedForward
from retinanet.loss import detection_loss
from retinanet.model import HeadOutputs, RetinaNet
from retinanet.training.start import build_model

CLASSIFIERS: dict[str, Callable[[], nn.Module]] = {
    "alexnet": torchvision.models.alexnet,
    "resnet50": torchvision.models.resnet50,
    "resnext50": torchvision.models.resnext50_32x4d,
}
CATEGORIES = 1000
"""Of ImageNet."""


class TimedModel(NamedTuple):
    """A network with its batch, ready to run."""

    network: nn.Module
    forward: Callable[[], Any]
    """The network's outputs for the batch."""
    loss: Callable[[Any], Tensor]
    """The loss of such outputs."""
    folded: FoldedForward | None
    """What computes the network where its modules are not called."""


def timed_model(subject: Subject, *, onednn: bool) -> TimedModel:
    """Make the network and its batch; without `onednn` no kernels of ours convolve either."""
    torch.manual_seed(subject.seed)
    if subject.model == "retinanet":
        return timed_retinanet(subject, onednn=onednn)
    network = CLASSIFIERS[subject.model]()
    network.train().to(subject.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(subject.batch, 3, subject.image_size, subject.image_size)
    images = images.to(subject.device).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(CATEGORIES, (subject.batch,)).to(subject.device)

    def forward() -> Tensor:
        with autocast(subject):
            outputs: Tensor = network(images)
        return outputs

    return TimedModel(
        network, forward, lambda outputs: F.cross_entropy(outputs.float(), labels), None
    )


def timed_retinanet(subject: Subject, *, onednn: bool) -> TimedModel:
    """Ours as train.py runs it on processors; on a GPU its modules are called one by one."""
    workload = workload_of(subject)
    network = build_model(ModelConfig(), num_classes=workload.classes, weights=None)
    network.load_state_dict(make_weights(workload))
    network.train().to(subject.device)
    batch = make_batch(workload)
    images = batch.images.to(subject.device)
    targets = [{k: v.to(subject.device) for k, v in one.items()} for one in batch.targets]
    folded = None
    if subject.device == "cpu":
        convolutions = "auto" if onednn else "onednn"
        made = torch_forward(network, precision=subject.precision, convolutions=convolutions)
        assert isinstance(made, FoldedForward)
        folded = made

    def forward() -> HeadOutputs:
        if folded is not None:
            return folded(normalize(images))
        with autocast(subject):
            outputs: HeadOutputs = network(normalize(images))
        return outputs

    def loss(outputs: HeadOutputs) -> Tensor:
        size = (subject.image_size, subject.image_size)
        anchors = network.anchors(size, outputs.feature_sizes)
        form = "auto" if subject.device == "cpu" else "reference"
        losses = detection_loss(outputs, anchors, targets, focal_form=form)
        return torch.stack(list(losses.values())).sum()

    return TimedModel(network, forward, loss, folded)


def flop_of(subject: Subject) -> dict[str, Flop]:
    """The arithmetic of each layer that convolves or multiplies a matrix; computes nothing."""
    size = subject.image_size
    with torch.device("meta"):
        images = torch.empty(subject.batch, 3, size, size)
        if subject.model == "retinanet":
            network: nn.Module = RetinaNet(num_classes=workload_of(subject).classes)
        else:
            network = CLASSIFIERS[subject.model]()
        return flop_by_layer(network, partial(network, images))


def workload_of(subject: Subject) -> Workload:
    """The benchmark's, with this batch."""
    return Workload(images=subject.batch, image_size=subject.image_size, seed=subject.seed)


def autocast(subject: Subject) -> torch.autocast:
    """The context in which a network of plain modules computes in the subject's precision."""
    enabled = subject.precision == "bf16"
    return torch.autocast(subject.device, dtype=torch.bfloat16, enabled=enabled)
