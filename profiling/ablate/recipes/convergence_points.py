"""Epochs to the target by global batch size: MLPerf's reference convergence points."""

from profiling.bench.recipe import Prepared
from profiling.bench.workload import Workload
from retinanet.mlperf.reference_points import reference_points
from retinanet.mlperf.rules import NEWEST


def prepare(workload: Workload) -> Prepared:
    """Reads what comes inside MLCommons' package; there is nothing to repeat."""
    points = reference_points(NEWEST)
    found = {}
    for point in points:
        found[f"epochs at {point.batch_size:05}"] = point.mean_epochs
        found[f"least epochs at {point.batch_size:05}"] = point.epochs[0]
        found[f"most epochs at {point.batch_size:05}"] = point.epochs[-1]
    return Prepared(lambda: found)
