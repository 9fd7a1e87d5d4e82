"""A decoder and the resizing after it: files to uint8 squares."""

import torch

from data.bench.one_core import keep_to_one_core
from data.bench.photos import read_list
from data.decoding import decode_image
from data.transforms import resize_image
from profiling.bench.recipe import Prepared
from profiling.bench.workload import Workload


def prepare(workload: Workload, *, photos: str, decoder: str) -> Prepared:
    """`photos`: the file that lists them."""
    keep_to_one_core()
    torch.set_num_threads(1)
    paths = read_list(photos)

    def run() -> dict[str, float]:
        for path in paths:
            resize_image(decode_image(path, decoder=decoder), workload.image_size)
        return {}

    return Prepared(run)
