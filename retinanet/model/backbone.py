"""A network of torchvision's without its classifier: returns C3, C4 and C5 of an image."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Self

from torch import Tensor, nn
from torchvision.models import get_model
from torchvision.ops import FrozenBatchNorm2d

from common.errors import InputError

CHANNELS = [512, 1024, 2048]
"""Of C3 to C5, in all of torchvision's networks with `Bottleneck` blocks."""
NORMS: dict[str, type[nn.Module]] = {"frozen": FrozenBatchNorm2d, "batch": nn.BatchNorm2d}
LAYERS = ("conv1", "bn1", "layer1", "layer2", "layer3", "layer4")
IN_DETECTOR = "backbone.body."  # Prefix of the body's names in a whole detector's
FROZEN_PREFIX_LENGTH = {5: 0, 4: 2, 3: 3, 2: 4, 1: 5, 0: 6}
"""Leading entries of LAYERS that stay frozen, by `trainable_layers`. bn1 goes with conv1, as in
torchvision's _resnet_fpn_extractor."""


class Body(nn.Module):
    """The convolutional part of torchvision's network `name`, with its parameter names.

    `norm`: "frozen" (FrozenBatchNorm2d: statistics and affine part are constants) or "batch".
    `trainable_layers`, 0 to 5, counts from the end: layer4, layer3, layer2, layer1, the stem. The
    others get no gradients, and their batch norms stay in eval mode in `train()` too: a frozen
    layer whose statistics moved would not be frozen. Weights are random.
    """

    def __init__(self, name: str, *, norm: str, trainable_layers: int) -> None:
        """Raises InputError for an unknown `norm` or a `trainable_layers` outside 0 to 5."""
        super().__init__()
        if norm not in NORMS:
            raise InputError(f"model.norm: expected one of {', '.join(NORMS)}, got {norm!r}")
        if trainable_layers not in FROZEN_PREFIX_LENGTH:
            raise InputError(f"model.trainable_layers: expected 0 to 5, got {trainable_layers}")
        self.name = name
        network = get_model(name, weights=None, norm_layer=NORMS[norm])
        self.conv1, self.bn1 = network.conv1, network.bn1
        self.relu, self.maxpool = network.relu, network.maxpool
        self.layer1, self.layer2 = network.layer1, network.layer2
        self.layer3, self.layer4 = network.layer3, network.layer4
        self.frozen_layers = LAYERS[: FROZEN_PREFIX_LENGTH[trainable_layers]]
        for layer in self.frozen_layers:
            self.get_submodule(layer).requires_grad_(requires_grad=False)

    def train(self, mode: bool = True) -> Self:
        """Set the mode as nn.Module does, but leave frozen layers in eval mode."""
        super().train(mode)
        for name in self.frozen_layers:
            self.get_submodule(name).eval()
        return self

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        """Return C3 to C5, 512, 1024, 2048 channels, strides 8 to 32, of images [N, 3, H, W]."""
        stem = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        c3 = self.layer2(self.layer1(stem))
        c4 = self.layer3(c3)
        return OrderedDict([("0", c3), ("1", c4), ("2", self.layer4(c4))])


def load_pretrained_backbone(
    body: Body, state_dict: Mapping[str, Tensor], *, source: str = "backbone weights"
) -> None:
    """Copy weights into `body`, all of them or none.

    `state_dict` is a classifier's, with torchvision's names (`conv1.weight` … `fc.weight`; `fc` is
    left out), or a detector's, of which the `backbone.body.` part is taken.
    Counters of batch norms (`num_batches_tracked`) may be there or not. `source` names the file
    in messages. Raises InputError naming the first key that is missing, not known, or misshapen.
    """
    prefix = IN_DETECTOR
    if any(key.startswith(prefix) for key in state_dict):
        given = {k.removeprefix(prefix): v for k, v in state_dict.items() if k.startswith(prefix)}
    else:
        given = {k: v for k, v in state_dict.items() if not k.startswith("fc.")}
    given = {k: v for k, v in given.items() if not k.endswith("num_batches_tracked")}
    expected = body.state_dict()
    expected = {k: v for k, v in expected.items() if not k.endswith("num_batches_tracked")}
    fix = f"use weights of torchvision's {body.name}, or set model.backbone"
    for key in expected:
        if key not in given:
            raise InputError(f"{source}: key {key} is missing; {fix}")
    for key, value in given.items():
        if key not in expected:
            raise InputError(f"{source}: unknown key {key}; {fix}")
        if value.shape != expected[key].shape:
            shapes = f"shape {list(expected[key].shape)} expected, got {list(value.shape)}"
            raise InputError(f"{source}: key {key}: {shapes}; {fix}")
    # Not strict only because of the counters; everything else was checked above.
    body.load_state_dict(given, strict=False)
