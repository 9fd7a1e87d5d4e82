"""The losses: classification by focal loss, boxes by L1."""

from retinanet.loss.detection import detection_loss, l1_box_loss_sum
from retinanet.loss.focal import focal_loss

__all__ = ["detection_loss", "focal_loss", "l1_box_loss_sum"]
