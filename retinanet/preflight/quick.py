"""The checks that every start makes: some tens of milliseconds once torch is loaded."""

import os
from pathlib import Path

from launch.host.memory_limit import memory_left
from launch.ranks import Ranks
from launch.resources import anonymous_bytes
from retinanet.batch_split import largest_batch
from retinanet.config import Config
from retinanet.preflight.conflicts import check_conflicts
from retinanet.preflight.disk import DiskNeed, check_disk, free_space, size_of
from retinanet.preflight.finding import Finding
from retinanet.preflight.known_data import KnownData
from retinanet.preflight.launcher import check_launcher
from retinanet.preflight.memory import check_counts, check_memory
from retinanet.preflight.memory_need import MemoryNeed, StepShape, memory_need
from retinanet.preflight.model_bytes import ModelBytes, model_bytes
from retinanet.preflight.open_files import check_open_files
from retinanet.preflight.processor import check_compiler, check_precision
from retinanet.preflight.shared_memory import LoadedBatches, check_shared_memory
from retinanet.preflight.writing import check_writing, existing
from retinanet.training.loading import loading_processes

LEAST_CLASSES = 1
"""Where only the run itself will tell how many there are."""
HEADERS = 1_000_000
"""Of a checkpoint beside its tensors, at the most: names, JSON, random states. [bytes]"""
RANDOM_STATES = 10_000
"""Of a rank. [bytes]"""
BYTES_A_SCENE = 24_000
BYTES_A_DETECTION = 110
DETECTIONS = 300
"""Of an image, at the most."""
BYTES_A_STEP = 600
"""Of metrics and TensorBoard's events."""
BYTES_AN_EVALUATION = 2_000_000
"""Of pictures and curves."""


def checks_of_run(
    config: Config,
    sizes: ModelBytes,
    *,
    path: Path,
    known: KnownData,
    ranks: int,
    resume: bool,
    overwrite: bool,
) -> list[Finding]:
    """What concerns the run as a whole, which its first rank looks at: may it write, is there room.

    Args:
        config: The run's.
        sizes: Of its model.
        path: Its folder.
        known: Its data, as far as that is known.
        ranks: Of the job.
        resume: Whether it goes on with what is there.
        overwrite: Whether it removes what is there.
    """
    writing = check_writing(path)
    if writing.level == "failure":
        return [writing]
    checkpoint = sizes.checkpoint + ranks * (sizes.statistics + RANDOM_STATES) + HEADERS
    need = DiskNeed(
        checkpoint=checkpoint,
        checkpoints=config.checkpoint.keep + 2,  # the best, and one being written
        rest=results_bytes(config, known),
    )
    place = existing(path)
    there = size_of(path / "checkpoints") if resume or overwrite else 0
    held, freed = (there, 0) if resume else (0, there)
    free = free_space(place)
    return [writing, check_disk(place, free=free, need=need, held=held, freed=freed)]


def checks_of_host(
    config: Config,
    sizes: ModelBytes,
    *,
    known: KnownData,
    ranks: Ranks,
    planned: int,
    engine: str,
    backend: str,
) -> list[Finding]:
    """What concerns one host, which its first rank looks at.

    Args:
        config: The run's.
        sizes: Of its model.
        known: Its data, as far as that is known.
        ranks: Which of the job's this is.
        planned: Ranks that this host will have: those that are there, or more.
        engine: `torch` or `ipex`.
        backend: Of torch's process group.
    """
    loaded = loaded_batches(config)
    is_auto = config.data.workers == "auto"
    left = memory_left()
    return [
        *check_launcher(ranks, os.environ, planned=planned),
        *check_counts(
            shape_of_steps(config, known, engine=engine),
            workers=0 if is_auto else loaded.workers,
            ranks=planned,
            left=left,
        ),
        check_shared_memory(loaded, ranks=planned, is_certain=not is_auto),
        check_open_files(loaded.tensors),
        check_memory(
            need_of_rank(config, sizes, known, planned=planned, engine=engine),
            ranks=planned,
            once=once_in_job(config, sizes) if ranks.is_first else 0,
            not_started=max(0, planned - ranks.local_size) * anonymous_bytes(),
            left=left,
        ),
        check_precision(config.engine.precision, convolutions=config.engine.convolutions),
        check_compiler(config.engine.focal_loss),
        *check_conflicts(engine=engine, backend=backend),
    ]


def once_in_job(config: Config, sizes: ModelBytes) -> int:
    """What the first rank's host has beside the ranks: copies for a checkpoint, and the weights.

    Compute groups have those in common, with the optimizer's state. [bytes]
    """
    common = sizes.trained + sizes.optimizer if config.distributed.groups > 1 else 0
    return sizes.checkpoint + common


def sizes_of_model(config: Config, known: KnownData) -> ModelBytes:
    """Of the model, or of its least where the number of classes is not known yet."""
    classes = known.num_classes or LEAST_CLASSES
    return model_bytes(config.model, config.training, num_classes=classes)


def need_of_rank(
    config: Config, sizes: ModelBytes, known: KnownData, *, planned: int, engine: str
) -> MemoryNeed:
    """The memory of each rank of a host."""
    return memory_need(
        sizes,
        shape_of_steps(config, known, engine=engine),
        ranks_on_host=planned,
        is_compressed=config.distributed.compress == "bf16",
        workers=loaded_batches(config).workers,
    )


def shape_of_steps(config: Config, known: KnownData, *, engine: str) -> StepShape:
    """What decides about the memory of a step: of the rank that has most images."""
    return StepShape(
        image_size=config.data.image_size,
        batch_size=largest_batch(
            config.distributed.batch_split, batch_size=config.training.batch_size
        ),
        evaluation_batch_size=min(
            config.evaluation.batch_size, known.validation_images or config.evaluation.batch_size
        ),
        num_classes=known.num_classes or LEAST_CLASSES,
        trainable_layers=config.model.trainable_layers,
        norm=config.model.norm,
        precision=config.engine.precision,
        engine=engine,
        focal_loss=config.engine.focal_loss,
    )


def loaded_batches(config: Config) -> LoadedBatches:
    """What a rank's loading processes hand over."""
    return LoadedBatches(
        workers=loading_processes(config.data.workers, reserved_cores=config.data.reserve_cores),
        image_size=config.data.image_size,
        batch_size=largest_batch(
            config.distributed.batch_split, batch_size=config.training.batch_size
        ),
        evaluation_batch_size=config.evaluation.batch_size,
        gradient_accumulation=config.training.gradient_accumulation,
    )


def results_bytes(config: Config, known: KnownData) -> int:
    """Scenes, detections of every evaluation, metrics and pictures, at the most. [bytes]"""
    training, scenes = config.training, config.data.scenes
    batch = training.batch_size * training.gradient_accumulation
    steps = training.epochs * max(1, (known.train_images or 0) // batch)
    if training.max_steps is not None:
        steps = min(steps, training.max_steps)
    evaluations = -(-training.epochs // config.evaluation.every) + 1
    detections = DETECTIONS * BYTES_A_DETECTION * (known.validation_images or 0)
    drawn = (scenes.train + scenes.validation) * BYTES_A_SCENE if scenes else 0
    return drawn + steps * BYTES_A_STEP + evaluations * (detections + BYTES_AN_EVALUATION)
