"""The detector as one program of fixed shapes: bytes of images in, boxes out, nothing beside it."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torchvision.ops import nms

from data.transforms import IMAGENET_MEAN, IMAGENET_STD
from retinanet.export.folding import fold_norms
from retinanet.model import RetinaNet, clip_boxes, decode_boxes
from retinanet.model.anchors import anchors_for

CANDIDATES_PER_LEVEL = 1000
DETECTIONS_PER_IMAGE = 300
NMS_IOU = 0.5
"""As `retinanet.model.postprocess` has them."""

NO_LABEL = -1
"""The label of a row that holds no detection."""

OUTSIDE = ((-2.0, -2.0, -1.0, -1.0), (-4.0, -4.0, -3.0, -3.0))
"""Boxes that always stay: torch.export takes it for sure that at least two do."""

Suppress: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Boxes [N, C, 4], scores [N, C] (0: none) and labels [N, C] to which of them stay, bool [N, C]."""


class DetectorProgram(nn.Module):
    """Images to detections, as `retinanet.model.postprocess` finds them, in shapes that are known.

    Where that looks at as many anchors as there are above the threshold, this takes the best ones
    of each level, however sure they are, and drops those below the threshold last: a box that is
    less sure never suppresses one that is surer, so that the detections are the same.
    """

    def __init__(
        self,
        model: RetinaNet,
        *,
        image_size: int,
        score_threshold: float,
        suppress: Suppress | None = None,
    ) -> None:
        """Make the program of a model, of which it takes a copy.

        Args:
            model: In evaluation mode, float32.
            image_size: S, the side of the images. [pixels]
            score_threshold: Detections are surer than this.
            suppress: Non-maximum suppression within each class; None: torchvision's.
        """
        super().__init__()
        self.network = fold_norms(model).requires_grad_(requires_grad=False)
        self.image_size = image_size
        self.score_threshold = score_threshold
        self.suppress = suppress or suppress_by_class
        std = torch.tensor(IMAGENET_STD)
        self.scale = nn.Buffer((1 / (255 * std)).view(1, 3, 1, 1))
        self.offset = nn.Buffer((torch.tensor(IMAGENET_MEAN) / std).view(1, 3, 1, 1))
        size = (image_size, image_size)
        with torch.no_grad():
            sizes = self.network(torch.zeros(1, 3, *size)).feature_sizes
        for level, anchors in enumerate(anchors_for(size, sizes)):
            self.register_buffer(f"anchors_{level}", anchors)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Detect.

        Args:
            images: uint8 [N, 3, S, S] RGB.

        Returns:
            Boxes float32 [N, D, 4] xyxy in pixels of the input; scores float32 [N, D], best first;
            labels int64 [N, D], the model's class indices. D is 300, or less where there are fewer
            candidates. Rows without a detection: boxes and score 0, label -1.
        """
        outputs = self.network(images.to(torch.float32) * self.scale - self.offset)
        levels = zip(outputs.cls_logits, outputs.bbox_regression, strict=True)
        candidates = [
            best_of_level(logits, deltas, self.get_buffer(f"anchors_{level}"))
            for level, (logits, deltas) in enumerate(levels)
        ]
        boxes, scores, labels = (torch.cat(parts, dim=1) for parts in zip(*candidates, strict=True))
        boxes = clip_boxes(boxes, (self.image_size, self.image_size))
        scores = torch.where(scores > self.score_threshold, scores, 0.0)
        kept = self.suppress(boxes, scores, labels)
        scores, order = torch.where(kept, scores, 0.0).topk(
            min(DETECTIONS_PER_IMAGE, scores.shape[1]), dim=1
        )
        found = scores > 0
        boxes = boxes.gather(1, order[:, :, None].expand(-1, -1, 4))
        return (
            torch.where(found[:, :, None], boxes, 0.0),
            scores,
            torch.where(found, labels.gather(1, order), NO_LABEL),
        )


def best_of_level(logits: Tensor, deltas: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The best candidates of a level: boxes [N, C, 4], scores [N, C] and labels [N, C].

    An anchor may answer for several classes. Those with one of the C best scores are among the C
    anchors whose best score is highest: only these are looked at closely.

    Args:
        logits: [N, A, K].
        deltas: [N, A, 4].
        anchors: [A, 4] xyxy pixels.
    """
    _, number, classes = logits.shape
    _, rows = logits.amax(dim=2).topk(min(CANDIDATES_PER_LEVEL, number), dim=1)
    logits = logits.gather(1, rows[:, :, None].expand(-1, -1, classes)).flatten(1)
    logits, places = logits.topk(min(CANDIDATES_PER_LEVEL, number * classes), dim=1)
    rows = rows.gather(1, places // classes)
    deltas = deltas.gather(1, rows[:, :, None].expand(-1, -1, 4))
    return decode_boxes(deltas, anchors[rows]), logits.sigmoid(), places % classes


def suppress_by_class(boxes: Tensor, scores: Tensor, labels: Tensor) -> Tensor:
    """Non-maximum suppression within each image and class, by torchvision's operator.

    See `Suppress`. Boxes of different images or classes are moved apart, in float64, since in
    float32 they would lose digits.
    """
    number, candidates = scores.shape
    images = torch.arange(number, device=scores.device)[:, None]
    of_class = images * (labels.amax() + 1) + labels
    apart = boxes.double() + (of_class * (boxes.amax() + 1).double())[:, :, None]
    wanted = scores.flatten().nonzero().squeeze(1)
    kept = nms(
        torch.cat((apart.flatten(0, 1)[wanted], boxes.new_tensor(OUTSIDE, dtype=torch.float64))),
        torch.cat((scores.flatten()[wanted], scores.new_zeros(len(OUTSIDE)))).double(),
        NMS_IOU,
    )
    places = torch.arange(number * candidates + len(OUTSIDE), device=scores.device)
    places = torch.cat((wanted, places[-len(OUTSIDE) :]))
    stays = torch.zeros(number * candidates + len(OUTSIDE), dtype=torch.bool, device=scores.device)
    stays = stays.index_fill(0, places[kept], value=True)
    return stays[: number * candidates].view(number, candidates)
