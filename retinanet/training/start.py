"""The start of a run: ranks, checks, folder and checkpoint; then `Trainer`."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from common.cli import load_function
from common.console import make_console
from launch.pinning import RankContext
from launch.process_group import joined
from retinanet.config import Config
from retinanet.config_file import RunOptions
from retinanet.engine.engines import chosen_engine
from retinanet.mlperf.log import running_log
from retinanet.preflight.check import check, check_start
from retinanet.training.agreement import require_equal_settings
from retinanet.training.components import RunComponents
from retinanet.training.loop import StepProfiler
from retinanet.training.resume import checkpoint_to_resume
from retinanet.training.run_folder import claim_run_folder, input_paths
from retinanet.training.signals import StopRequest
from retinanet.training.trainer import Trainer

Profiling = Callable[..., AbstractContextManager[StepProfiler]]
"""Opens the profiler of a run; see `profiling.capture.hooks.capturing`."""


def check_or_train(
    config: Config, arguments: RunOptions, place: RankContext, *, profiler: str
) -> int:
    """Join the other ranks, check or train as one of them, and return the exit code.

    `profiler` is the `module:function` of a `Profiling`. It is loaded by name, since it belongs to
    a package above this one.

    Raises:
        InputError: The user's input does not fit, and nothing was written; or see `Trainer.fit`.
        NonFiniteLossError: See `Trainer.fit`.
    """
    with joined(
        place, timeout_s=config.distributed.timeout_s, folder=config.run.root / config.run.name
    ) as connected:
        require_equal_settings(connected, config)
        if arguments.check:
            return check(config, arguments, group=connected, place=place)
        # The log comes first: MLPerf counts all that follows as part of the run's initialization.
        with running_log(config, group=connected, local_rank=place.ranks.local_rank) as log:
            profiling: Profiling = load_function(profiler)
            engine = chosen_engine(config.engine.name)
            group, host_states = check_start(
                config, arguments, group=connected, place=place, engine=engine
            )
            console = make_console(quiet=not group.is_first)
            path = config.run.root / config.run.name
            resume, auto_resume = arguments.resume, arguments.auto_resume
            # Signals before the folder: a signal while it is made must still remove it.
            with (
                StopRequest(starting=True, end_now=group.interrupt) as stop,
                claim_run_folder(
                    path,
                    resume=resume,
                    auto_resume=auto_resume,
                    overwrite=arguments.overwrite,
                    inputs=input_paths(config),
                    group=group,
                ) as folder,
                profiling(config, path, place=place, group=group, console=console) as capture,
            ):
                checkpoint = None
                # Only rank 0 reads the checkpoint, and sends its state to the other ranks.
                if (resume or auto_resume) and group.is_first:
                    checkpoint = checkpoint_to_resume(folder, config, console=console)
                components = RunComponents(
                    config,
                    folder,
                    checkpoint,
                    engine=engine,
                    group=group,
                    place=place,
                    console=console,
                    profiler=capture,
                )
                return Trainer(components, log=log, host_states=host_states).fit(stop)
