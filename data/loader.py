"""The order in which images are read, and torch's DataLoader over a DetectionDataset in that order.

The order is a function of seed and epoch, whichever process reads an image.
"""

import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from common.errors import InputError
from common.processes import exit_with_parent, signals_blocked
from data.dataset import Batch, DetectionDataset, Sample, SampleKey, collate
from data.rare_classes import Images, epoch_order, places_per_epoch


def steps_per_epoch(images: Images, *, batch_size: int, ranks: int = 1) -> int:
    """Return the number of full batches of every rank in an epoch; at least one."""
    return max(1, places_per_epoch(images) // (batch_size * ranks))


def training_keys(
    images: Images,
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
    """Yield one rank's batches of an epoch, from place `first` on; all, or those `chosen`.

    All ranks share one order, see `epoch_order`: a step takes its next `ranks × batch_size` places,
    rank 0 the first of these, rank 1 the next, and so on: `batch_size` each, or as `split` lists.
    Places that fill no whole step are left out; if they are fewer than one step, the order is
    repeated. The seed of a key depends on (seed, epoch, place), so neither workers, nor a
    resumption, nor the number of ranks or their split change a sample.
    """
    sizes = split or (batch_size,) * ranks
    together = ranks * batch_size
    assert len(sizes) == ranks and sum(sizes) == together, sizes
    places = max(places_per_epoch(images), together)
    # Every rank draws the whole order and all seeds (23 MB for OpenImages), so that ranks agree on
    # them without communication.
    order = epoch_order(images, seed=seed, epoch=epoch)
    key_seeds = np.random.default_rng([seed, epoch, 1]).integers(2**63, size=places)
    for number in range((places - first) // together) if chosen is None else chosen:
        start = first + number * together + sum(sizes[:rank])
        yield [
            SampleKey(int(order[place % len(order)]), int(key_seeds[place]))
            for place in range(start, start + sizes[rank])
        ]


class TrainingBatches(Sampler[list[SampleKey]]):
    """Batch sampler of `training_keys`: `set_position` before each epoch, then iterate."""

    def __init__(
        self,
        images: Images,
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        ranks: int = 1,
        split: Sequence[int] = (),
    ) -> None:
        assert places_per_epoch(images) > 0 and batch_size > 0 and seed >= 0 and 0 <= rank < ranks
        self.images, self.batch_size, self.seed = images, batch_size, seed
        self.rank, self.ranks = rank, ranks
        self.split = split
        """Images of each rank, where they differ; may be changed between two iterations."""
        self.chosen: Iterable[int] | None = None
        """The numbers of the batches to yield, counted from the position; None: all in turn."""
        self.set_position(epoch=0)

    def set_position(self, epoch: int, first: int = 0) -> None:
        """Let the next iteration start at place `first` of the order of `epoch` (both from 0)."""
        self.epoch, self.first = epoch, first

    def __len__(self) -> int:
        # Steps of a whole epoch, wherever the position is.
        return steps_per_epoch(self.images, batch_size=self.batch_size, ranks=self.ranks)

    def __iter__(self) -> Iterator[list[SampleKey]]:
        return training_keys(
            self.images,
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
        self.num_images, self.batch_size = num_images, batch_size
        self.share(rank=rank, ranks=ranks)

    def share(self, *, rank: int, ranks: int) -> None:
        """Set the rank's share of the images from the next iteration on."""
        count = self.num_images
        self.images = range(count * rank // ranks, count * (rank + 1) // ranks)

    def __len__(self) -> int:
        return (len(self.images) + self.batch_size - 1) // self.batch_size

    def __iter__(self) -> Iterator[list[SampleKey]]:
        for start in range(0, len(self.images), self.batch_size):
            yield [SampleKey(index, 0) for index in self.images[start : start + self.batch_size]]


SIGCHLD_WITHIN_S = 10.0


class DetectionLoader(DataLoader[Sample]):
    """torch's DataLoader yielding `Batch`; an InputError from a worker stays one line.

    torch raises a worker's exception again with the worker's traceback as its message.

    `workers` processes decode ahead (0: this one), until the loader is dropped. Each runs torch on
    one thread, so that they do not contend with the training's, on the processors `cores` as
    `os.sched_setaffinity` takes them; none given: where this process may run.
    """

    dataset: DetectionDataset
    batch_sampler: "HeldBackBatches"
    in_this_process = False  # whether to load without the loading processes, though they are there

    def __init__(
        self,
        dataset: DetectionDataset,
        batches: Sampler[list[SampleKey]],
        *,
        workers: int = 0,
        cores: Collection[int] = (),
    ) -> None:
        super().__init__(
            dataset,
            batch_sampler=HeldBackBatches(batches),
            collate_fn=collate,
            num_workers=workers,  # torch starts each worker with set_num_threads(1)
            persistent_workers=workers > 0,
            # Python 3.14's own choice is a fork server, whose workers import torch anew.
            multiprocessing_context="fork" if workers else None,
            worker_init_fn=partial(begin_worker, cores=cores, parent=os.getpid()),
            generator=torch.Generator(),  # else every start would draw from the global generator
        )

    def start_workers(self) -> None:
        """Start the loading processes before the first iteration.

        They are copies of this process, and every page that it writes after copying costs a page
        fault. So they are started while it is small, before training has filled its memory.
        """
        if self.num_workers:
            self.batch_sampler.held_back = True
            # Ctrl-C reaches every process of a terminal. Workers inherit the blocked signals, so
            # that only the training process decides when they end.
            with signals_blocked():
                super().__iter__()
            self.batch_sampler.held_back = False

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        if self.in_this_process:
            for keys in self.batch_sampler:
                yield collate([self.dataset[key] for key in keys])
            return
        try:
            with signals_blocked():
                stream = super().__iter__()
            yield from stream
        except InputError as error:
            last_line = str(error).rstrip().rsplit("\n", maxsplit=1)[-1]
            raise InputError(last_line.split("InputError: ", maxsplit=1)[-1]) from error
        except (ConnectionError, EOFError):
            # A loading process ended while this one read from its socket. torch's handler of
            # SIGCHLD raises the error that explains it, here, as soon as the signal arrives.
            time.sleep(SIGCHLD_WITHIN_S)
            raise


class HeldBackBatches(Sampler[list[SampleKey]]):
    """A batch sampler that is empty while paused.

    Workers prefetch as soon as they are started; prefetched batches would occupy shared memory.
    """

    def __init__(self, batches: Sampler[list[SampleKey]]) -> None:
        self.batches = batches
        self.held_back = False

    def __iter__(self) -> Iterator[list[SampleKey]]:
        return iter(()) if self.held_back else iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]


def evaluation_loader(
    dataset: DetectionDataset,
    *,
    batch_size: int,
    workers: int = 0,
    cores: Collection[int] = (),
    rank: int = 0,
    ranks: int = 1,
) -> DetectionLoader:
    """Return each image once over all ranks, as `EvaluationBatches`; else as `DetectionLoader`."""
    batches = EvaluationBatches(len(dataset), batch_size=batch_size, rank=rank, ranks=ranks)
    return DetectionLoader(dataset, batches, workers=workers, cores=cores)


def begin_worker(worker: int, *, cores: Collection[int], parent: int) -> None:
    """Pin a loading process, and end it together with the training process."""
    if cores:
        os.sched_setaffinity(0, cores)
    exit_with_parent(worker, parent=parent)
