"""The libraries that can compute COCO's metric; the numbers are the same."""

from typing import Literal, get_args

MetricLibrary = Literal["faster-coco-eval", "pycocotools"]
METRIC_LIBRARIES: tuple[MetricLibrary, ...] = get_args(MetricLibrary)
DEFAULT_LIBRARY: MetricLibrary = "faster-coco-eval"
