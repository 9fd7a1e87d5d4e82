"""The losses: classification by focal loss, boxes by L1."""

from retinanet.loss.box import l1_box_loss_sum
from retinanet.loss.detection import detection_loss
from retinanet.loss.focal import sigmoid_focal_loss_sum

__all__ = ["detection_loss", "l1_box_loss_sum", "sigmoid_focal_loss_sum"]
