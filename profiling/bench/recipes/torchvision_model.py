"""torchvision's RetinaNet with the backbone that MLPerf trains, built as a user would."""

import torch
from torch import nn
from torchvision.models.detection import RetinaNet
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.ops import FrozenBatchNorm2d
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from profiling.bench.convolution_flop import convolution_flop
from profiling.bench.workload import Workload


def torchvision_model(workload: Workload) -> RetinaNet:
    """ResNeXt50-32x4d with frozen norms and three trainable layers; it resizes nothing."""
    backbone = resnet_fpn_backbone(
        backbone_name="resnext50_32x4d",
        weights=None,
        norm_layer=FrozenBatchNorm2d,
        trainable_layers=3,
        returned_layers=[2, 3, 4],
        extra_blocks=LastLevelP6P7(256, 256),
    )
    size = workload.image_size
    return RetinaNet(backbone, workload.classes, min_size=size, max_size=size)


def step_gflop(workload: Workload) -> float:
    """Arithmetic of a training step's convolutions, as `convolution_flop` counts it. [10⁹]"""
    with torch.device("meta"):
        model = torchvision_model(workload)
    size = workload.image_size
    images = torch.empty(workload.images, 3, size, size, device="meta")
    network = nn.ModuleList([model.backbone, model.head])

    def forward() -> object:
        return model.head(list(model.backbone(images).values()))

    return convolution_flop(network, forward) / 1e9
