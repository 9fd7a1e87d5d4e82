"""The model and its optimizer at a run's start."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from retinanet.config import ModelConfig, TrainingConfig
from retinanet.engine.optimizer import make_optimizer
from retinanet.model import RetinaNet, load_pretrained_backbone
from retinanet.momentum import beta1_of
from retinanet.training.nonfinite import require_finite_tensors
from retinanet.training.pretrained import read_backbone_weights, require_trainable_start


def starting_weights(settings: ModelConfig) -> dict[str, Tensor] | None:
    """The pretrained backbone's weights, or None for a start from random ones.

    Raises:
        InputError: They cannot be read or are not finite, or a start without them could not train.
    """
    require_trainable_start(
        settings.pretrained_backbone,
        norm=settings.norm,
        trainable_layers=settings.trainable_layers,
    )
    if settings.pretrained_backbone is None:
        return None
    weights = read_backbone_weights(settings.pretrained_backbone)
    file = f"model.pretrained_backbone: {settings.pretrained_backbone}"
    require_finite_tensors(weights, file=file)
    return weights


def build_model(
    settings: ModelConfig, *, num_classes: int, weights: Mapping[str, Tensor] | None
) -> RetinaNet:
    """A RetinaNet in channels_last memory; weights are random but for the backbone's, if given.

    Raises:
        InputError: The weights are not a ResNeXt50-32x4d's.
    """
    model = RetinaNet(
        num_classes=num_classes,
        norm=settings.norm,
        trainable_layers=settings.trainable_layers,
    )
    if weights is not None:
        source = f"model.pretrained_backbone: {settings.pretrained_backbone}"
        load_pretrained_backbone(model.backbone.body, weights, source=source)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def build_optimizer(
    settings: TrainingConfig, model: nn.Module, *, engine: str, groups: int = 1
) -> Optimizer:
    """The optimizer of the parameters that train.

    Args:
        settings: `training` of the configuration.
        model: What has the parameters.
        engine: `torch` or `ipex`.
        groups: Compute groups, which bring momentum of their own.
    """
    return make_optimizer(
        model,
        name=settings.optimizer,
        learning_rate=settings.learning_rate,
        momentum=settings.momentum,
        beta1=beta1_of(settings.beta1, groups=groups),
        weight_decay=settings.weight_decay,
        fused=engine != "ipex",  # it puts its own fused step into torch's plain optimizers
    )
