"""The model and its optimizer at a run's start, and the weights to start from."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from common.errors import InputError, printable
from retinanet.config_sections import ModelConfig, TrainingConfig
from retinanet.config_types import TORCHVISION, resolve_beta1
from retinanet.engine.optimizers import make_optimizer
from retinanet.model.backbone import IN_DETECTOR, load_pretrained_backbone
from retinanet.model.retinanet import RetinaNet
from retinanet.training.nonfinite import require_finite_tensors
from retinanet.training.published import IMAGENET, published_weights, read_published
from retinanet.training.weight_files import read_safetensors, unpickle_weights


def starting_weights(settings: ModelConfig) -> dict[str, Tensor] | None:
    """Return the pretrained backbone's weights, or None for a start from a detector or random ones.

    Raises:
        InputError: They cannot be read or are not finite, or a start without them could not train.
    """
    require_trainable_start(
        settings.weights or settings.pretrained_backbone,
        norm=settings.norm,
        trainable_layers=settings.trainable_layers,
    )
    if settings.pretrained_backbone is None:
        return None
    weights = read_backbone_weights(settings.pretrained_backbone, backbone=settings.backbone)
    file = f"model.pretrained_backbone: {settings.pretrained_backbone}"
    require_finite_tensors(weights, file=file)
    return weights


def build_model(
    settings: ModelConfig, *, num_classes: int, weights: Mapping[str, Tensor] | None
) -> RetinaNet:
    """Return a RetinaNet in channels_last memory, with random weights but for the backbone's.

    Raises:
        InputError: The weights are another backbone's.
    """
    model = RetinaNet(
        num_classes=num_classes,
        norm=settings.norm,
        trainable_layers=settings.trainable_layers,
        architecture=settings.architecture,
    )
    if weights is not None:
        source = f"model.pretrained_backbone: {settings.pretrained_backbone}"
        load_pretrained_backbone(model.backbone.body, weights, source=source)
    return model.to(memory_format=torch.channels_last)


def build_optimizer(
    settings: TrainingConfig,
    model: nn.Module,
    *,
    engine: str,
    groups: int = 1,
    body_parameters: int | None = None,
) -> Optimizer:
    """Return the optimizer of the parameters that train.

    `engine` is `torch` or `ipex`. Compute groups have momentum of their own, see `resolve_beta1`.
    The first `body_parameters` are the body's; None: by their names.
    """
    return make_optimizer(
        model,
        name=settings.optimizer,
        learning_rate=settings.learning_rate,
        momentum=settings.momentum,
        beta1=resolve_beta1(settings.beta1, groups=groups),
        weight_decay=settings.weight_decay,
        body_parameters=count_body(model) if body_parameters is None else body_parameters,
        body_factor=settings.body_learning_rate_factor,
        # IPEX replaces the step of torch's plain optimizers by its own fused step.
        fused=engine != "ipex",
    )


def count_body(model: nn.Module) -> int:
    """Return how many of the parameters that train are the body's, which come first."""
    names = [name for name, value in model.named_parameters() if value.requires_grad]
    in_body = [name.startswith(IN_DETECTOR) for name in names]
    # The state of an optimizer is stored by the parameters' order.
    assert in_body == sorted(in_body, reverse=True)
    return sum(in_body)


def require_trainable_start(source: str | None, *, norm: str, trainable_layers: int) -> None:
    """Refuse random weights (no `source`) where parts of the model are frozen.

    Frozen layers would stay random, and with frozen norms the activations of random layers would
    grow from block to block.
    """
    if source is not None:
        return
    frozen = "model.norm: frozen" if norm == "frozen" else ""
    if trainable_layers < 5:
        frozen = f"model.trainable_layers: {trainable_layers}"
    if frozen:
        raise InputError(
            f"{frozen} needs pretrained weights; set model.pretrained_backbone to a "
            ".safetensors file of the backbone, or to `torchvision` to download them; "
            "or model.weights to a detector; or train from random weights with model.norm=batch "
            "model.trainable_layers=5"
        )


def read_backbone_weights(pretrained_backbone: str, *, backbone: str) -> dict[str, Tensor]:
    """Read the weights of a backbone from a .safetensors file, or `torchvision`.

    That means ImageNet's weights (for the default backbone those which MLPerf starts from), from
    torch's cache or its download site.
    """
    file = Path(pretrained_backbone)
    if pretrained_backbone != TORCHVISION and not file.is_file():
        raise InputError(
            f"model.pretrained_backbone: {file} does not exist; give a .safetensors file or "
            "`torchvision`"
        )
    try:
        if pretrained_backbone == TORCHVISION:
            return unpickle_weights(*read_published(published_weights(backbone, IMAGENET))).tensors
        return read_safetensors(file)[0]
    except InputError as error:
        raise InputError(f"model.pretrained_backbone: {error}") from error


def dropped_parts(weights: Mapping[str, Tensor]) -> str:
    """Return the unused parts of a complete detector; empty for a classifier's weights."""
    dropped = [name for name in weights if not name.startswith(IN_DETECTOR)]
    if len(dropped) == len(weights):
        return ""
    parts = Counter(".".join(name.split(".")[:2]) for name in dropped)
    return ", ".join(f"{printable(part[:60])} ({count})" for part, count in parts.most_common(5))


def notes_on_backbone(source: str | None, weights: Mapping[str, Tensor] | None) -> list[str]:
    """Return notes on the weights that a run starts from."""
    dropped = dropped_parts(weights or {})
    if not dropped:
        return []
    return [
        f"model.pretrained_backbone: {source} is a complete detector; only its backbone is used, "
        f"dropped (number of tensors): {dropped}"
    ]
