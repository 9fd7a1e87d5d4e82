"""Non-maximum suppression as ONNX has it: an operator that knows images and classes.

It compares boxes of one class only, so that none need to be moved apart as for torchvision's, and
float32, which is all that it takes, is enough.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from retinanet.export.program import DETECTIONS_PER_IMAGE, NMS_IOU, Suppress

OPERATOR = "retinanet::onnx_non_max_suppression"
torch.library.define(OPERATOR, "(Tensor boxes, Tensor scores) -> Tensor")


def shape_of_chosen(boxes: Tensor, scores: Tensor) -> Tensor:
    """Int64 [M, 3], the image, class and box of each that is chosen: all that exporting needs."""
    number = torch.library.get_ctx().new_dynamic_size()
    return torch.empty(number, 3, dtype=torch.int64)


torch.library.register_fake(OPERATOR, shape_of_chosen)


def suppress_in_onnx(classes: int) -> Suppress:
    """`Suppress` for a program that becomes ONNX, and cannot run before; `classes`: K."""

    def suppress(boxes: Tensor, scores: Tensor, labels: Tensor) -> Tensor:
        number, candidates = scores.shape
        of_class = labels[:, None, :] == torch.arange(classes)[None, :, None]
        chosen = torch.ops.retinanet.onnx_non_max_suppression(boxes, scores[:, None, :] * of_class)
        places = chosen[:, 0] * candidates + chosen[:, 2]
        stays = torch.zeros(number * candidates, dtype=torch.bool)
        return stays.index_fill(0, places, value=True).view(number, candidates)

    return suppress


def translations() -> dict[Callable[..., Any], Any]:
    """What torch.onnx.export puts in the operator's place; needs onnxscript."""
    import onnxscript  # noqa: PLC0415

    opset: Any = onnxscript.opset18

    def non_max_suppression(boxes: Any, scores: Any) -> Any:
        return opset.NonMaxSuppression(boxes, scores, DETECTIONS_PER_IMAGE, NMS_IOU, 0.0)

    return {torch.ops.retinanet.onnx_non_max_suppression.default: non_max_suppression}
