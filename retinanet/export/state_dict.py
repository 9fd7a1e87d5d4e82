"""A checkpoint's weights as a state_dict of `torchvision.models.detection.RetinaNet`.

torchvision loads it strictly into a network of its own parts: `torchvision_retinanet` builds it, as
docs/serving.md shows. The names of the tensors are equal already. The counters of batch norms are
added, so that the file fits both a body with trained norms, which requires them, and one with
frozen norms, which ignores them.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torchvision.models.detection import RetinaNet as TorchvisionRetinaNet
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.retinanet import RetinaNetHead
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from data.annotations import Size, as_size
from retinanet.config_types import Architecture
from retinanet.export.program import NO_LABEL, Detector, Format, describe_checkpoint
from retinanet.model.anchors import ANCHORS_PER_LOCATION
from retinanet.model.postprocess import CANDIDATES_PER_LEVEL, DETECTIONS_PER_IMAGE, NMS_IOU
from retinanet.model.retinanet import PYRAMID_CHANNELS, VARIANTS, RetinaNet
from retinanet.training.checkpoint import Checkpoint
from retinanet.training.detector_weights import CLASS_NAMES, architecture_of
from retinanet.training.weight_files import unpickle_weights

PICKLED, SAFE = ".pth", ".safetensors"


def write_state_dict(model: RetinaNet, file: Path, description: dict[str, Any]) -> None:
    """Write a model's weights, in the format of the file name.

    A .safetensors file has the class names as well, so that it can be a `model.weights`.
    """
    tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    for name in list(tensors):
        if name.endswith(".running_mean"):
            counter = name.replace("running_mean", "num_batches_tracked")
            tensors.setdefault(counter, torch.tensor(0))
    if file.suffix == PICKLED:
        torch.save(tensors, file)
    else:
        names = json.dumps(description["classes"], ensure_ascii=False)
        texts = {"format": "pt", CLASS_NAMES: names}
        save_file(tensors, file, metadata=texts)


def torchvision_retinanet(
    architecture: Architecture, *, num_classes: int, size: Size, score_threshold: float
) -> TorchvisionRetinaNet:
    """Return torchvision's RetinaNet of an architecture, for images of (height, width)."""
    variant = VARIANTS[architecture.variant]
    norms = variant.norm_groups and partial(nn.GroupNorm, variant.norm_groups)
    backbone = resnet_fpn_backbone(
        backbone_name=architecture.backbone,
        weights=None,
        norm_layer=nn.BatchNorm2d,
        returned_layers=[2, 3, 4],
        extra_blocks=LastLevelP6P7(variant.p6_input, PYRAMID_CHANNELS),
    )
    head = RetinaNetHead(PYRAMID_CHANNELS, ANCHORS_PER_LOCATION, num_classes, norm_layer=norms)
    return TorchvisionRetinaNet(
        backbone,
        num_classes=num_classes,
        head=head,
        fixed_size=size[::-1],  # width and height, unlike elsewhere
        score_thresh=score_threshold,
        nms_thresh=NMS_IOU,
        detections_per_img=DETECTIONS_PER_IMAGE,
        topk_candidates=CANDIDATES_PER_LEVEL,
    )


def load_state_dict(file: Path, description: dict[str, Any]) -> Detector:
    """Load the file strictly into torchvision's network, as a user does; see `Detector`."""
    if file.suffix == PICKLED:
        tensors = unpickle_weights(file.read_bytes(), file).tensors
    else:
        tensors = load_file(file)
    model = torchvision_retinanet(
        architecture_of(tensors),
        num_classes=len(description["classes"]),
        size=as_size(description["image_size"]),
        score_threshold=description["score_threshold"],
    )
    model.load_state_dict(tensors, strict=True)
    model.eval()

    def run(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (len(images), DETECTIONS_PER_IMAGE)
        boxes, scores = torch.zeros(*shape, 4), torch.zeros(shape)
        labels = torch.full(shape, NO_LABEL)
        with torch.no_grad():
            detections = model(list(images / 255))
        for row, found in enumerate(detections):
            number = len(found["scores"])
            boxes[row, :number] = found["boxes"]
            scores[row, :number] = found["scores"]
            labels[row, :number] = found["labels"]
        return boxes, scores, labels

    return run


def describe_state_dict(
    checkpoint: Checkpoint, *, size: Size, score_threshold: float
) -> dict[str, Any]:
    """Return everything needed to use the file alone, as plain values for JSON."""
    given = "H, W], RGB, 0 to 1; normalized and resized by the model, see its fixed_size"
    if checkpoint.model.resize == "letterbox":
        # torchvision can only stretch an image.
        given = f"{size[0]}, {size[1]}], RGB, 0 to 1, fitted as `resize` says; normalized"
    backbone, variant = checkpoint.model.backbone, checkpoint.model.variant
    kind = "" if variant == "v1" else f", as in retinanet_resnet50_fpn_{variant}"
    return describe_checkpoint(checkpoint, size=size, score_threshold=score_threshold) | {
        "model": f"torchvision.models.detection.RetinaNet with a {backbone} body, P3 to P7{kind}",
        "input": f"a list of images: float32 [3, {given}",
        "outputs": "for each image boxes: float32 [D, 4] xyxy in pixels of the image; scores; "
        "labels: indices into classes",
    }


STATE_DICTS = dict.fromkeys(
    (PICKLED, SAFE),
    Format(
        "torchvision",
        describe=describe_state_dict,
        write=write_state_dict,
        load=load_state_dict,
    ),
)
"""The formats of torchvision's weights, by the extension of the file."""
