"""A decoder alone: files to uint8 arrays."""

from data.bench.one_core import keep_to_one_core
from data.bench.photos import read_list
from data.decoding import decode_image
from profiling.bench.recipe import Prepared
from profiling.bench.workload import Workload


def prepare(workload: Workload, *, photos: str, decoder: str) -> Prepared:
    """`photos`: the file that lists them."""
    keep_to_one_core()
    paths = read_list(photos)

    def run() -> dict[str, float]:
        for path in paths:
            decode_image(path, decoder=decoder)
        return {}

    return Prepared(run)
