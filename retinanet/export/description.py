"""What an exported file says of itself."""

import json
from typing import Any

from retinanet.export.program import DETECTIONS_PER_IMAGE, NMS_IOU, NO_LABEL
from retinanet.training.checkpoint import Checkpoint
from retinanet.training.checkpoint.reading import MODEL_FILE

RESIZE = (
    "to a square of image_size, whatever the picture's proportions: bilinear, half-pixel centres, "
    "no antialiasing (torch's interpolate with mode='bilinear', align_corners=False on uint8; "
    "OpenCV's INTER_LINEAR), rounded to whole levels"
)


def description_of(checkpoint: Checkpoint, *, score_threshold: float) -> dict[str, Any]:
    """All that somebody needs who has the file alone; plain values for JSON."""
    size = checkpoint.model.image_size
    return {
        "model": "RetinaNet-ResNeXt50",
        "input": f"images: uint8 [N, 3, {size}, {size}], RGB, 0 to 255; normalized inside",
        "image_size": size,
        "resize": RESIZE,
        "outputs": "boxes: float32 [N, D, 4] xyxy in pixels of the input; scores: float32 [N, D], "
        f"best first; labels: int64 [N, D], places in classes; D is at most {DETECTIONS_PER_IMAGE}"
        f"; rows without a detection have score 0 and label {NO_LABEL}",
        "classes": checkpoint.model.classes["names"],
        "category_ids": checkpoint.model.classes["category_ids"],
        "score_threshold": score_threshold,
        "nms_iou": NMS_IOU,
        "checkpoint_sha256": checkpoint.state.parts[MODEL_FILE].sha256,
        "step": checkpoint.position.step,
        "map": checkpoint.position.map_here,
    }


def as_texts(description: dict[str, Any]) -> dict[str, str]:
    """The same for ONNX's metadata, whose values are text: JSON where it is none."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in description.items()
    }
