"""The recipes of benchmarks, and what they share. Only workers import these modules.

The recipes of COCO's metric and of a log's reader are here, because they load no torch: the memory
that is measured is their own.
"""

import os
from pathlib import Path

from profiling.bench.variant import Prepared, Workload


def prepare_metric(workload: Workload, *, library: str, found: int) -> Prepared:
    """Generate `found` detected boxes in each image; a run's details are the metric's numbers.

    `library` is `faster-coco-eval` or `pycocotools`.
    """
    # Before NumPy counts the cores for its threads.
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    import numpy as np  # noqa: PLC0415, RUF100

    from profiling.bench.generated import generated_detections, generated_truth  # noqa: PLC0415, RUF100
    from retinanet.evaluation.metric import TABLES, coco_metric  # noqa: PLC0415, RUF100

    [chosen] = (name for name in TABLES if name == library)
    random = np.random.default_rng(0)
    truth = generated_truth(images=workload.images, random=random)
    detections = generated_detections(truth, per_image=found, random=random)

    def run() -> dict[str, float]:
        evaluation = coco_metric(truth, detections, library=chosen)
        numbers = [*evaluation.summary.values(), *evaluation.per_class.values()]
        return {str(place): number for place, number in enumerate(numbers)}

    return Prepared(run)


def prepare_log(workload: Workload, *, file: str) -> Prepared:
    """Prepare reading a log of oneDNN; a run's details are what `write_log` wrote."""
    from profiling.onednn_log.log import read_logs  # noqa: PLC0415, RUF100

    def run() -> dict[str, float]:
        log = read_logs([Path(file)])
        return {"total_ms": log.total_ms, "not_understood": log.not_understood_count}

    return Prepared(run)
