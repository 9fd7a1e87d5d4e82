"""From the head's outputs to boxes: ours and torchvision's."""

import torch

from profiling.bench.recipe import Prepared
from profiling.bench.recipes.detection_outputs import make_outputs
from profiling.bench.recipes.torchvision_model import torchvision_model
from profiling.bench.workload import Workload
from retinanet.model import anchors_for, postprocess


def prepare(workload: Workload, *, whose: str) -> Prepared:
    """`whose`: "ours" or "torchvision". The details count the boxes that were found."""
    outputs = make_outputs(workload)
    size = (workload.image_size, workload.image_size)
    anchors = anchors_for(size, outputs.feature_sizes)

    def ours() -> dict[str, float]:
        found = postprocess(outputs, anchors, size)
        return {"boxes": sum(len(image.boxes) for image in found)}

    if whose == "ours":
        return Prepared(ours)
    model = torchvision_model(workload)
    head_outputs = {"cls_logits": outputs.cls_logits, "bbox_regression": outputs.bbox_regression}

    def torchvisions() -> dict[str, float]:
        # Its NMS takes BF16 only under autocast.
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            found = model.postprocess_detections(
                head_outputs, [anchors] * workload.images, [size] * workload.images
            )
        return {"boxes": sum(len(image["boxes"]) for image in found)}

    return Prepared(torchvisions)
