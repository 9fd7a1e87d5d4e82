"""What a `mlperf.log` says before any data is touched, and of the run's settings."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlperf_logging.mllog import constants
from torch import nn
from torch.optim import Optimizer

from common.errors import InputError
from common.machine import processor_name
from launch.process_group import ProcessGroup
from retinanet.config import Config
from retinanet.mlperf.log import MlperfLog
from retinanet.mlperf.rules import benchmark_name
from retinanet.model.retinanet import mlperf_key

DROP_CACHES = Path("/proc/sys/vm/drop_caches")


@contextmanager
def running_log(config: Config, *, group: ProcessGroup, local_rank: int) -> Iterator[MlperfLog]:
    """The log of a run whose clock begins here; all ranks enter together.

    Nothing of the data has been looked at yet, and model and optimizer are still to be made: what
    may come before the clock, comes within it.
    """
    log = MlperfLog()
    mlperf = config.mlperf
    log.events(
        {
            constants.SUBMISSION_BENCHMARK: benchmark_name(mlperf.rules),
            constants.SUBMISSION_DIVISION: mlperf.division,
            constants.SUBMISSION_ORG: mlperf.organization,
            constants.SUBMISSION_PLATFORM: mlperf.platform or platform_of(group),
            constants.SUBMISSION_STATUS: mlperf.status,
        }
    )
    log.start(constants.INIT_START)
    cleared = mlperf.clear_caches and (local_rank != 0 or clear_caches())
    log.event(constants.CACHE_CLEAR, all(group.all_gather(cleared)))
    log.events(settings_of(config, ranks=group.size))
    log.stop(constants.INIT_STOP)
    log.start(constants.RUN_START)
    try:
        yield log
    finally:
        log.close()


def clear_caches() -> bool:
    """Let the kernel forget what it has read of files; true.

    Raises:
        InputError: Only root may.
    """
    os.sync()  # only what is on the disk can be forgotten
    try:
        DROP_CACHES.write_text("3\n", encoding="ascii")
    except OSError as error:
        raise InputError(
            f"mlperf.clear_caches: {DROP_CACHES}: cannot be written: {error.strerror}; start as "
            "root, or leave it false and clear them before: sysctl vm.drop_caches=3"
        ) from error
    return True


def platform_of(group: ProcessGroup) -> str:
    """A run's hosts, in a few words; all are taken for this one's kind."""
    count = len(set(group.hosts))
    return f"{count} {'host' if count == 1 else 'hosts'} of {processor_name()}"


def settings_of(config: Config, *, ranks: int) -> dict[str, Any]:
    """What a configuration sets, under MLPerf's names; optimizers' own numbers come later."""
    training, ranks_of_step = config.training, ranks // config.distributed.groups
    settings = {
        constants.SEED: config.run.seed,
        constants.GLOBAL_BATCH_SIZE: (
            ranks_of_step * training.batch_size * training.gradient_accumulation
        ),
        constants.GRADIENT_ACCUMULATION_STEPS: training.gradient_accumulation,
        constants.MAX_IMAGE_SIZE: config.data.image_size,
        constants.OPT_NAME: training.optimizer,
        constants.OPT_BASE_LR: training.learning_rate,
        constants.OPT_WEIGHT_DECAY: training.weight_decay,
        constants.OPT_LR_WARMUP_EPOCHS: training.warmup_epochs,
        constants.OPT_LR_WARMUP_FACTOR: training.warmup_factor,
        constants.OPT_LR_DECAY_SCHEDULE: training.schedule,
    }
    if training.clip_gradient_norm is not None:
        settings[constants.OPT_GRADIENT_CLIP_NORM] = training.clip_gradient_norm
    return settings


def begin_log(
    log: MlperfLog,
    *,
    model: nn.Module,
    optimizer: Optimizer,
    name: str,
    training_images: int,
    validation_images: int,
) -> None:
    """Say what is known of a run once it is built.

    Args:
        log: The run's.
        model: Its parameters' names are torchvision's.
        optimizer: Its own numbers, such as Adam's betas.
        name: The optimizer's, such as `adam`.
        training_images: That are trained on in an epoch.
        validation_images: That are evaluated.
    """
    numbers = optimizer.param_groups[0]
    if "betas" in numbers:
        first, second = numbers["betas"]
        log.event(f"opt_{name}_beta_1", first)
        log.event(f"opt_{name}_beta_2", second)
        log.event(f"opt_{name}_epsilon", numbers["eps"])
    if "momentum" in numbers:
        log.event(f"opt_{name}_momentum", numbers["momentum"])
    for key, _ in model.named_parameters():
        log.event(constants.WEIGHTS_INITIALIZATION, tensor=mlperf_key(key))
    log.event(constants.TRAIN_SAMPLES, training_images)
    log.event(constants.EVAL_SAMPLES, validation_images)
