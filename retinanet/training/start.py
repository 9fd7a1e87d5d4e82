"""The start of a run: ranks, checks, folder and checkpoint; then `Trainer`."""

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager

from common.cli import load_function
from common.console import make_console
from launch.pinning import RankContext
from launch.process_group import ProcessGroup, joined
from retinanet.config import Config
from retinanet.engine.engines import chosen_engine
from retinanet.mlperf.log import MlperfLog, running_log
from retinanet.preflight.check import check, check_start
from retinanet.training.loop import StepProfiler
from retinanet.training.resume import checkpoint_to_resume
from retinanet.training.run_folder import claim_run_folder
from retinanet.training.signals import StopRequest
from retinanet.training.trainer import Trainer

Profiling = Callable[..., AbstractContextManager[StepProfiler]]
"""Opens the profiler of a run; see `profiling.capture.hooks.capturing`."""


def check_or_train(
    config: Config, arguments: argparse.Namespace, place: RankContext, *, profiler: str
) -> int:
    """Join the other ranks, check or train as one of them, and return the exit code.

    `profiler` is the `module:function` of a `Profiling`. It is loaded by name, since it belongs to
    a package above this one.

    Raises:
        InputError: See `train`.
        NonFiniteLossError: See `Trainer.fit`.
    """
    with joined(place, timeout_s=config.distributed.timeout_s) as group:
        if arguments.check:
            return check(config, arguments, group=group, place=place)
        with running_log(config, group=group, local_rank=place.ranks.local_rank) as log:
            profiling = load_function(profiler)
            return train(config, arguments, group=group, place=place, log=log, profiling=profiling)


def train(
    config: Config,
    arguments: argparse.Namespace,
    *,
    group: ProcessGroup,
    place: RankContext,
    log: MlperfLog,
    profiling: Profiling,
) -> int:
    """Open what a run needs, train, and return the exit code; all ranks call it.

    Raises:
        InputError: The user's input does not fit, and nothing was written; or see `Trainer.fit`.
        NonFiniteLossError: See `Trainer.fit`.
    """
    engine = chosen_engine(config.engine.name)
    group = check_start(config, arguments, group=group, place=place, engine=engine)
    console = make_console(quiet=not group.is_first)
    path = config.run.root / config.run.name
    resume, auto_resume, overwrite = arguments.resume, arguments.auto_resume, arguments.overwrite
    with (
        StopRequest(starting=True, end_now=group.interrupt) as stop,
        claim_run_folder(
            path, resume=resume, auto_resume=auto_resume, overwrite=overwrite, group=group
        ) as folder,
        profiling(config, path, place=place, group=group, console=console) as profiler,
    ):
        reads = (resume or auto_resume) and group.is_first  # the others get what rank 0 has read
        checkpoint = checkpoint_to_resume(folder, config, console=console) if reads else None
        trainer = Trainer(
            config,
            folder,
            checkpoint,
            engine=engine,
            group=group,
            place=place,
            console=console,
            log=log,
            profiler=profiler,
        )
        return trainer.fit(stop)
