"""Ranks that train a few steps side by side, and note what they waited for."""

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from itertools import count, islice
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from launch.memory import set_allocator
from retinanet.config import Config, ModelConfig
from retinanet.errors import InputError
from retinanet.progress import make_console, progress

if TYPE_CHECKING:
    from data.opening import DetectionData
    from data.sampler import TrainingBatches
    from retinanet.engine.engines import PreparedTraining

WARM_UP = 3
RATE = 1e-6
"""A learning rate at which random weights stay what they are."""
SECONDS_BETWEEN_LOOKS = 0.2
"""At ranks, whether all are alive, while nothing comes from them."""


class Waiting(NamedTuple):
    """One rank's counted steps."""

    rank: int
    seconds: list[float]
    """Of each step, waiting included."""
    data_seconds: list[float]
    """Of these, waiting for data."""

    @property
    def share(self) -> float:
        """Of all steps together, what was waiting."""
        return sum(self.data_seconds) / sum(self.seconds)


class RankDiedError(RuntimeError):
    """A rank could not go on; the message is its own."""


class Task(NamedTuple):
    """What one rank does."""

    config: Config
    scenes_folder: Path
    rank: int
    ranks: int
    steps: int
    workers: int


def train_ranks(config: Config, *, ranks: int, steps: int, workers: int) -> list[Waiting]:
    """Train in so many processes at once, `workers` loading for each; returns what each measured.

    Raises:
        RankDiedError: One of them could not go on.
    """
    context = multiprocessing.get_context("spawn")
    messages: SimpleQueue[object] = context.SimpleQueue()
    together = context.Barrier(ranks)
    title = f"{workers} loading processes a rank; steps of {ranks} ranks"
    with tempfile.TemporaryDirectory(prefix="waiting-benchmark-") as folder:
        tasks = [
            Task(config, Path(folder, "scenes"), rank, ranks, steps, workers)
            for rank in range(ranks)
        ]
        processes: list[BaseProcess] = [
            context.Process(target=run_rank, args=(task, together, messages)) for task in tasks
        ]
        try:
            for process in processes:
                process.start()
            with progress(make_console(), title, total=ranks * (WARM_UP + steps)) as advance:
                found: list[Waiting] = []
                for done, message in enumerate(incoming(messages, processes), start=1):
                    advance(done - len(found), "")
                    if isinstance(message, Waiting):
                        found.append(message)
                    if len(found) == ranks:
                        return sorted(found)
        finally:
            for process in processes:
                process.terminate()
                process.join()
    raise AssertionError("messages end with the last rank's")


def incoming(messages: "SimpleQueue[object]", processes: Sequence[BaseProcess]) -> Iterator[object]:
    """What the ranks send.

    Raises:
        RankDiedError: One sends that it cannot go on, or ends without a word.
    """
    while True:
        while messages.empty():
            dead = [process for process in processes if process.exitcode]
            if dead:
                raise RankDiedError(f"a rank ended with status {dead[0].exitcode}")
            processes[0].join(SECONDS_BETWEEN_LOOKS)
        message = messages.get()
        if isinstance(message, str):
            raise RankDiedError(message)
        yield message


def run_rank(task: Task, together: Barrier, messages: "SimpleQueue[object]") -> None:
    """A rank's process: a number for every step, then a `Waiting`; a text if it cannot go on."""
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // task.ranks
    os.sched_setaffinity(0, cores[task.rank * share : (task.rank + 1) * share])
    set_allocator(task.config.engine.allocator)
    try:
        messages.put(train_rank(task, together, messages))
    except InputError as error:
        messages.put(str(error))
    except Exception:  # whatever it is, the parent must hear of it
        messages.put(traceback.format_exc())


def train_rank(task: Task, together: Barrier, messages: "SimpleQueue[object]") -> Waiting:
    """Train the rank's part of the data, epoch after epoch, until enough steps are done."""
    # torch is loaded only now: it makes as many threads as there are cores, under the policy.
    from data.loader import training_loader
    from retinanet.training.loop import StepResult, train_one_epoch

    data = open_rank_data(task, together)
    batches = batches_of_rank(task, num_images=len(data.train))
    loader = training_loader(data.train, batches, workers=task.workers)
    loader.start_workers()
    prepared = prepare_rank(task.config, num_classes=data.classes.num_classes)
    results: list[StepResult] = []
    wanted = WARM_UP + task.steps
    together.wait()
    for epoch in count():
        batches.set_position(epoch)
        for result in islice(
            train_one_epoch(prepared, loader, learning_rate=lambda step: RATE, first_step=0),
            wanted - len(results),
        ):
            results.append(result)
            messages.put(len(results))
        if len(results) == wanted:
            break
    together.wait()  # nobody's last steps are faster because the others have ended
    counted = results[WARM_UP:]
    return Waiting(
        task.rank, [one.seconds for one in counted], [one.data_seconds for one in counted]
    )


def open_rank_data(task: Task, together: Barrier) -> "DetectionData":
    """Both splits; rank 0 draws scenes and makes indexes while the others wait."""
    from retinanet.training.run_data import open_run_data

    if task.rank:
        together.wait()
    data = open_run_data(task.config, scenes_folder=task.scenes_folder, console=make_console())
    if not task.rank:
        together.wait()
    return data


def batches_of_rank(task: Task, *, num_images: int) -> "TrainingBatches":
    """The rank's part of the order that all ranks share."""
    from data.sampler import TrainingBatches

    return TrainingBatches(
        num_images,
        batch_size=task.config.training.batch_size,
        seed=task.config.run.seed,
        rank=task.rank,
        ranks=task.ranks,
    )


def prepare_rank(config: Config, *, num_classes: int) -> "PreparedTraining":
    """MLPerf's model, frozen as its recipe has it, with weights from random numbers."""
    from profiling.bench.recipes.synthetic import make_weights
    from profiling.bench.workload import Workload
    from retinanet.engine.engines import chosen_engine, prepare_training
    from retinanet.training.start import build_model, build_optimizer

    model = build_model(ModelConfig(), num_classes=num_classes, weights=None)
    model.load_state_dict(make_weights(Workload(classes=num_classes)))
    engine = chosen_engine(config.engine.name)
    return prepare_training(
        model,
        build_optimizer(config.training, model, engine=engine),
        engine=engine,
        precision=config.engine.precision,
        convolutions=config.engine.convolutions,
    )
