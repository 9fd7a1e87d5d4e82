"""`train.py --check`: all checks, on every host of the job, and what they come to.

TODO-DOC What every start checks before anything is written.

TODO-DOC The checks that every start makes: some tens of milliseconds once torch is loaded.

TODO-DOC How many images a rank's memory holds, once it has taken a batch through the model.
"""

import argparse
import os
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

from common.errors import BAD_INPUT, FINISHED, InputError, one_line
from common.machine import anonymous_bytes
from launch.limits import MemoryLeft, memory_left
from launch.pinning import RankContext, chosen_backend
from launch.process_group import ProcessGroup
from launch.ranks import Ranks
from retinanet.config import Config
from retinanet.config_types import largest_batch
from retinanet.engine.engines import chosen_engine
from retinanet.preflight.findings import Finding, failure, merged, print_findings
from retinanet.preflight.host import (
    LoadedBatches,
    check_allocator,
    check_compiler,
    check_conflicts,
    check_launcher,
    check_open_files,
    check_placement,
    check_precision,
    check_shared_memory,
    check_versions,
)
from retinanet.preflight.memory import (
    MemoryNeed,
    ModelBytes,
    StepShape,
    check_counts,
    check_memory,
    memory_need,
    model_bytes,
    training_bytes,
)
from retinanet.preflight.run import (
    DiskNeed,
    KnownData,
    check_batch_split,
    check_data,
    check_disk,
    check_groups,
    check_run_folder,
    check_weights,
    check_writing,
    existing,
    free_space,
    known_data,
    resumes,
    size_of,
)
from retinanet.training.data import loading_processes


def check(
    config: Config, arguments: argparse.Namespace, *, group: ProcessGroup, place: RankContext
) -> int:
    """Look at all that a run needs, print it, and return the exit code; nothing is left behind.

    Args:
        config: The run's.
        arguments: Its command line: `resume`, `auto_resume`, `overwrite`, `check_ranks`.
        group: The ranks that were started; each calls this.
        place: This one's.
    """
    began = time.monotonic()
    ranks = place.ranks
    planned = arguments.check_ranks or ranks.local_size
    own: list[Finding] = []
    known = known_data(config)
    sizes = sizes_of_model(config, known)
    if ranks.local_rank == 0:
        own = host_findings(config, sizes, known=known, ranks=ranks, planned=planned)
        own += check_data(config, ranks=max(group.size, planned))
    if group.is_first:
        own += run_findings(config, arguments, sizes, known=known, ranks=max(group.size, planned))
    parts = group.gather((group.hosts[group.rank], own) if ranks.local_rank == 0 else None)
    failed = False
    if parts is not None:
        findings = merged([part for part in parts if part is not None])
        print_findings(findings, seconds=time.monotonic() - began)
        lines = [one.line for one in findings if one.level == "failure"]
        print("".join(f"error: {one_line(line)}\n" for line in lines), end="", file=sys.stderr)
        failed = bool(lines)
    return BAD_INPUT if group.from_first(lambda: failed) else FINISHED


def host_findings(
    config: Config, sizes: ModelBytes, *, known: KnownData, ranks: Ranks, planned: int
) -> list[Finding]:
    """What concerns one host, which its first rank looks at."""
    placed = replace(ranks, local_size=planned, size=max(ranks.size, planned))
    findings = [
        *check_placement(config, placed, host_name=socket.gethostname()),
        check_allocator(config.engine.allocator),
    ]
    engine, backend = "torch", "gloo"
    try:
        engine = chosen_engine(config.engine.name)
        backend = chosen_backend(config.distributed.backend)
    except InputError as error:
        findings.append(failure("engine", str(error), fix=""))
    findings += checks_of_host(
        config,
        sizes,
        known=known,
        ranks=ranks,
        planned=planned,
        engine=engine,
        backend=backend,
    )
    return [*findings, check_versions()]


def run_findings(
    config: Config,
    arguments: argparse.Namespace,
    sizes: ModelBytes,
    *,
    known: KnownData,
    ranks: int,
) -> list[Finding]:
    """What concerns the run as a whole, which the first rank looks at."""
    path = config.run.root / config.run.name
    resume = resumes(path, resume=arguments.resume, auto_resume=arguments.auto_resume)
    overwrite = arguments.overwrite
    return [
        *check_batch_split(config, ranks=ranks),
        *check_groups(config, ranks=ranks),
        check_run_folder(path, config, resume=resume, overwrite=overwrite),
        *checks_of_run(
            config,
            sizes,
            path=path,
            known=known,
            ranks=ranks,
            resume=resume,
            overwrite=overwrite,
        ),
        *([] if resume else [check_weights(config.model)]),
    ]


def checked(
    config: Config,
    arguments: argparse.Namespace,
    *,
    group: ProcessGroup,
    place: RankContext,
    engine: str,
) -> ProcessGroup:
    """Make the cheap checks, on one rank of each host; it says what may go wrong as its notes.

    Args:
        config: The run's.
        arguments: Its command line: `resume`, `auto_resume`, `overwrite`.
        group: All ranks; each calls this.
        place: This one's.
        engine: `torch` or `ipex`.

    Returns:
        The group, with what there is to say.

    Raises:
        InputError: The run cannot work; nothing was written.
    """
    ranks = place.ranks
    if ranks.local_rank:
        return group
    known = known_data(config)
    sizes = sizes_of_model(config, known)
    findings = checks_of_host(
        config,
        sizes,
        known=known,
        ranks=ranks,
        planned=ranks.local_size,
        engine=engine,
        backend=place.backend,
    )
    if group.is_first:
        path = config.run.root / config.run.name
        findings = findings + checks_of_run(
            config,
            sizes,
            path=path,
            known=known,
            ranks=group.size,
            resume=resumes(path, resume=arguments.resume, auto_resume=arguments.auto_resume),
            overwrite=arguments.overwrite,
        )
    for finding in findings:
        if finding.level == "failure":
            raise InputError(finding.line)
    notes = tuple(finding.line for finding in findings if finding.level == "warning")
    return replace(group, notes=(*group.notes, *notes))


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


def images_that_fit(
    config: Config, *, num_classes: int, engine: str, local_ranks: int, left: MemoryLeft | None
) -> int | None:
    """The largest batch of a rank: the even one, which it has just taken, and what else fits.

    Set aside is all that the preflight counts beside a batch, though part of it is taken already.

    Args:
        config: The run's.
        num_classes: Of the model.
        engine: `torch` or `ipex`.
        local_ranks: Of this host; each may have as much of what is left.
        left: What its processes may still take.

    Returns:
        None where nobody says what is left.
    """
    if left is None:
        return None
    known = KnownData(num_classes=num_classes, train_images=None, validation_images=None)
    sizes = sizes_of_model(config, known)
    need = need_of_rank(config, sizes, known, planned=local_ranks, engine=engine)
    aside = need.model + need.other + need.loading
    free = (left.size - sizes.checkpoint) // local_ranks - aside
    shape = replace(shape_of_steps(config, known, engine=engine), batch_size=1)
    return config.training.batch_size + max(0, free // training_bytes(shape))
