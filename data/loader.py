"""DataLoaders over a DetectionDataset."""

import os
import time
from collections.abc import Collection, Iterator
from functools import partial

import torch
from torch.utils.data import DataLoader, Sampler

from common.errors import InputError
from common.processes import obey_parent, signals_blocked
from data.dataset import Batch, DetectionDataset, Sample, SampleKey, collate
from data.sampler import EvaluationBatches, TrainingBatches

ENDED_IS_TOLD_WITHIN_S = 10.0


class DetectionLoader(DataLoader[Sample]):
    """torch's DataLoader yielding `Batch`; an InputError from a worker stays one line.

    torch raises a worker's exception again with the worker's traceback as its message.
    """

    dataset: DetectionDataset
    batch_sampler: "HeldBackBatches"
    in_this_process = False
    """Whether to load without the loading processes, though they are there."""

    def start_workers(self) -> None:
        """Start the loading processes now, which the first iteration would do otherwise.

        They are copies of this process, and every page that it writes after copying costs a page
        fault. So they are started while it is small, before training has filled its memory.
        """
        if self.num_workers:
            self.batch_sampler.held_back = True
            with signals_blocked():
                super().__iter__()
            self.batch_sampler.held_back = False

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        """The batches of the sampler's position."""
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
            # SIGCHLD raises the error that says so, here as soon as the system has told of it.
            time.sleep(ENDED_IS_TOLD_WITHIN_S)
            raise


class HeldBackBatches(Sampler[list[SampleKey]]):
    """A batch sampler that gives nothing while it is held back.

    Workers read ahead as soon as they are started; what they read would wait in shared memory.
    """

    def __init__(self, batches: Sampler[list[SampleKey]]) -> None:
        self.batches = batches
        self.held_back = False

    def __iter__(self) -> Iterator[list[SampleKey]]:
        return iter(()) if self.held_back else iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]


def training_loader(
    dataset: DetectionDataset,
    batches: TrainingBatches,
    *,
    workers: int = 0,
    cores: Collection[int] = (),
) -> DetectionLoader:
    """Batches in the sampler's order: `batches.set_position(epoch, first)`, then iterate.

    Args:
        dataset: What the sampler's keys are of.
        batches: The order.
        workers: Processes that decode ahead (0: this one), until the loader is dropped. Each runs
            torch on one thread, so that they do not contend with the training's.
        cores: The processors' numbers that they run on, as `os.sched_setaffinity` takes them; none
            given: where this process may run.
    """
    return _loader(dataset, batches, workers=workers, cores=cores)


def evaluation_loader(
    dataset: DetectionDataset,
    *,
    batch_size: int,
    workers: int = 0,
    cores: Collection[int] = (),
    rank: int = 0,
    ranks: int = 1,
) -> DetectionLoader:
    """Each image once over all ranks, in the JSON's order; the last batch may be smaller.

    `workers` and `cores` as above; a rank may get a batch less than another, or none.
    """
    batches = EvaluationBatches(len(dataset), batch_size=batch_size, rank=rank, ranks=ranks)
    return _loader(dataset, batches, workers=workers, cores=cores)


def _loader(
    dataset: DetectionDataset,
    batches: Sampler[list[SampleKey]],
    *,
    workers: int,
    cores: Collection[int],
) -> DetectionLoader:
    return DetectionLoader(
        dataset,
        batch_sampler=HeldBackBatches(batches),
        collate_fn=collate,
        num_workers=workers,  # torch starts each worker with set_num_threads(1)
        persistent_workers=workers > 0,
        worker_init_fn=partial(begin_worker, cores=cores, parent=os.getpid()),
        generator=torch.Generator(),  # else every start would draw from the global generator
    )


def begin_worker(worker: int, *, cores: Collection[int], parent: int) -> None:
    """What a loading process does first."""
    if cores:
        os.sched_setaffinity(0, cores)
    obey_parent(worker, parent=parent)
