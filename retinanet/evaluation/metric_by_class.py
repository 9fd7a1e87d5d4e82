"""COCO's metric class after class: a class's numbers depend on boxes of that class alone."""

import numpy as np

from data.annotations import Annotations
from retinanet.evaluation.accumulate import tables_of_class
from retinanet.evaluation.boxes_of_class import boxes_by_class
from retinanet.evaluation.detections import SplitDetections
from retinanet.evaluation.matching import matches_of
from retinanet.evaluation.tables import Tables


def tables_by_class(annotations: Annotations, detections: SplitDetections) -> Tables:
    """The tables of a split; memory for the dicts of its largest class."""
    ids = np.sort(annotations.category_ids)
    precision = np.full((10, 101, len(ids), 4, 3), -1.0)
    recall = np.full((10, len(ids), 4, 3), -1.0)
    for column, boxes in enumerate(boxes_by_class(annotations, detections, ids)):
        precision[:, :, column], recall[:, column] = tables_of_class(boxes, matches_of(boxes))
    return Tables(precision=precision, recall=recall)
