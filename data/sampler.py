"""The order in which images are read: a function of seed and epoch, whoever reads them."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler

from data.dataset import SampleKey


def steps_per_epoch(num_images: int, *, batch_size: int, ranks: int = 1) -> int:
    """Whole batches that every rank gets in an epoch; at least one."""
    return max(1, num_images // (batch_size * ranks))


def training_keys(
    num_images: int,
    *,
    seed: int,
    epoch: int,
    batch_size: int,
    first: int = 0,
    rank: int = 0,
    ranks: int = 1,
    split: Sequence[int] = (),
    chosen: Iterable[int] | None = None,
) -> Iterator[list[SampleKey]]:
    """One rank's batches of an epoch, from place `first` of its order on; all, or those `chosen`.

    All ranks share one order: a step takes its next `ranks × batch_size` places, rank 0 the first
    of these, rank 1 the next, and so on: `batch_size` each, or as many as `split` says. Images that
    fill no whole step wait for another epoch's order; where the images are fewer than one step, the
    order is repeated. The seed of a key depends on (seed, epoch, place), so neither workers, nor a
    resumption, nor the number of ranks or their split change a sample.
    """
    sizes = split or (batch_size,) * ranks
    together = ranks * batch_size
    assert len(sizes) == ranks and sum(sizes) == together, sizes
    places = max(num_images, together)
    order = np.random.default_rng([seed, epoch, 0]).permutation(num_images)
    key_seeds = np.random.default_rng([seed, epoch, 1]).integers(2**63, size=places)
    for number in range((places - first) // together) if chosen is None else chosen:
        start = first + number * together + sum(sizes[:rank])
        yield [
            SampleKey(int(order[place % num_images]), int(key_seeds[place]))
            for place in range(start, start + sizes[rank])
        ]


class TrainingBatches(Sampler[list[SampleKey]]):
    """Batch sampler of `training_keys`, for the DataLoader.

    `set_position` before each epoch; with it a resumed run reads exactly the batches that
    were left.
    """

    def __init__(
        self,
        num_images: int,
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        ranks: int = 1,
        split: Sequence[int] = (),
    ) -> None:
        assert num_images > 0 and batch_size > 0 and seed >= 0 and 0 <= rank < ranks
        self.num_images = num_images
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.ranks = ranks
        self.split = split
        """Images of each rank, where they differ; may be changed between two iterations."""
        self.chosen: Iterable[int] | None = None
        """Which batches from the position on, counted from 0; None: all, one after another."""
        self.set_position(epoch=0)

    def set_position(self, epoch: int, first: int = 0) -> None:
        """The next iteration starts at place `first` of the order of `epoch` (both from 0)."""
        self.epoch = epoch
        self.first = first

    def __len__(self) -> int:
        """Steps of a whole epoch, wherever the position is."""
        return steps_per_epoch(self.num_images, batch_size=self.batch_size, ranks=self.ranks)

    def __iter__(self) -> Iterator[list[SampleKey]]:
        """The batches from the position to the epoch's end, or those that are chosen."""
        return training_keys(
            self.num_images,
            seed=self.seed,
            epoch=self.epoch,
            batch_size=self.batch_size,
            first=self.first,
            rank=self.rank,
            ranks=self.ranks,
            split=self.split,
            chosen=self.chosen,
        )


class EvaluationBatches(Sampler[list[SampleKey]]):
    """Batch sampler of each image once, in the JSON's order; the last batch may be smaller.

    Ranks take whole runs of images, as equal as can be, and nothing is padded: each image is in
    one batch of one rank. A rank may get an image less than another, or none.
    """

    def __init__(self, num_images: int, *, batch_size: int, rank: int = 0, ranks: int = 1) -> None:
        assert num_images > 0 and batch_size > 0 and 0 <= rank < ranks
        self.num_images = num_images
        self.batch_size = batch_size
        self.share(rank=rank, ranks=ranks)

    def share(self, *, rank: int, ranks: int) -> None:
        """Take another rank's part, from the next iteration on."""
        count = self.num_images
        self.images = range(count * rank // ranks, count * (rank + 1) // ranks)

    def __len__(self) -> int:
        """Batches in all."""
        return (len(self.images) + self.batch_size - 1) // self.batch_size

    def __iter__(self) -> Iterator[list[SampleKey]]:
        """The batches; their keys' seeds are unused."""
        for start in range(0, len(self.images), self.batch_size):
            yield [SampleKey(index, 0) for index in self.images[start : start + self.batch_size]]
