"""The recipes of benchmarks, and what they share. Only workers import these modules.

The recipe of COCO's metric is here, because it loads no torch: the memory that it measures is
numpy's.
"""

import os

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
