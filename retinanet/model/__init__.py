"""The detector: what it is made of, what its anchors are taught, and how its answers are read."""

from retinanet.model.anchors import (
    anchors_for,
    clip_boxes,
    decode_boxes,
    encode_boxes,
    resize_boxes,
)
from retinanet.model.backbone import ResNeXtBody, load_pretrained_backbone
from retinanet.model.matching import BACKGROUND, IGNORED, Assignment, assign_targets, match_anchors
from retinanet.model.postprocess import Detections, postprocess
from retinanet.model.retinanet import HeadOutputs, RetinaNet

__all__ = [
    "BACKGROUND",
    "IGNORED",
    "Assignment",
    "Detections",
    "HeadOutputs",
    "ResNeXtBody",
    "RetinaNet",
    "anchors_for",
    "assign_targets",
    "clip_boxes",
    "decode_boxes",
    "encode_boxes",
    "load_pretrained_backbone",
    "match_anchors",
    "postprocess",
    "resize_boxes",
]
