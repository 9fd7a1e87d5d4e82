"""Batches from worker processes, as training gets them: on all cores, not yet normalized."""

from data.bench.photos import read_list
from data.bench.recipes.pipeline import photo_dataset
from data.loader import evaluation_loader
from profiling.bench.recipe import Prepared
from profiling.bench.workload import Workload


def prepare(
    workload: Workload, *, photos: str, decoder: str, batch_size: str, workers: str
) -> Prepared:
    """`photos`: the file that lists them."""
    dataset = photo_dataset(read_list(photos), image_size=workload.image_size, decoder=decoder)
    loader = evaluation_loader(dataset, batch_size=int(batch_size), workers=int(workers))
    loader.start_workers()

    def run() -> dict[str, float]:
        return {"images": sum(len(batch.images) for batch in loader)}

    return Prepared(run)
