"""The readers as functions of bytes, with the seeds of a search."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import checkpoints, labels, readers, seeds


@dataclass(frozen=True)
class Target:
    """A reader under test."""

    check: Callable[[bytes, Path], None]
    """Raises if the reader misbehaves; may write into the folder."""
    seeds: Callable[[], list[bytes]]
    """Real inputs, as tests and users have them."""
    longest: int = 4096
    """Bytes of an input."""


TARGETS = {
    "annotations": Target(readers.check_annotations, seeds.annotations),
    "checkpoint": Target(checkpoints.check_checkpoint, checkpoints.checkpoints, longest=24576),
    "config": Target(readers.check_config, seeds.configs),
    "environment": Target(readers.check_environment, seeds.environments),
    "hosts": Target(readers.check_hosts, seeds.hostfiles),
    "image": Target(readers.check_image, seeds.images, longest=16384),
    "index": Target(readers.check_index, seeds.indexes),
    "log": Target(readers.check_log, seeds.logs),
    "mlperf": Target(readers.check_mlperf_log, seeds.mlperf_logs, longest=8192),
    "openimages": Target(readers.check_openimages, seeds.csv_files),
    "topology": Target(readers.check_topology, seeds.topologies),
    "voc": Target(labels.check_voc, labels.voc_files),
    "weights": Target(labels.check_weights, labels.weights_files),
    "yolo": Target(labels.check_yolo, labels.yolo_files),
}
