"""How the ranks train together: the split of a batch, and synchronous training or compute groups.

Only this module depends on both strategies. With `distributed.groups=1`, the default, no code of
`retinanet.training.async_groups` runs.
"""

from collections.abc import Callable
from functools import partial

from launch.pinning import RankContext
from launch.process_group import ProcessGroup
from retinanet.config import Config
from retinanet.engine.engines import PreparedTraining
from retinanet.engine.gradient_sync import GradientExchange
from retinanet.training.async_groups.epoch import GroupEpochs
from retinanet.training.async_groups.groups import make_compute_groups
from retinanet.training.checkpointer import Checkpointer
from retinanet.training.data import Loading
from retinanet.training.ema import WeightAverage
from retinanet.training.epoch import EpochContext, EpochStrategy, SynchronousEpoch
from retinanet.training.loop import StepProfiler, train_one_epoch
from retinanet.training.nonfinite import NonFiniteGuard
from retinanet.training.schedule import StepPlan, learning_rate
from retinanet.training.slow_hosts import BackgroundLoad, SlowRank, advice_on_slow_rank


def make_strategy(
    config: Config,
    prepared: PreparedTraining,
    *,
    group: ProcessGroup,
    averaging: ProcessGroup,
    exchange: GradientExchange | None,
    average: WeightAverage | None,
    place: RankContext,
    loading: Loading,
    plan: StepPlan,
    guard: NonFiniteGuard,
    checkpointer: Checkpointer,
    profiler: StepProfiler,
    metric_is_ready: Callable[[], bool],
    print_note: Callable[[str], None],
) -> EpochStrategy:
    """Return the strategy by which the ranks take the steps of an epoch.

    `group` has all ranks, `averaging` those of `averaging_ranks`, which share `exchange`; None for
    a single rank. `average` follows the weights. For the last two parameters see `EpochContext`.
    """
    share = place.pinned.share
    context = EpochContext(
        take_steps=partial(
            train_one_epoch,
            prepared,
            gradient_accumulation=config.training.gradient_accumulation,
            max_grad_norm=config.training.clip_gradient_norm,
            focal_form=config.engine.focal_loss,
            exchange=exchange,
            average=average,
            profiler=profiler,
            main_cpus=share.main_cpus,
        ),
        loading=loading,
        plan=plan,
        learning_rate=partial(learning_rate, config.training, plan),
        guard=guard,
        background_load=BackgroundLoad(
            share.cpus, place=f"rank {group.rank} on {group.hosts[group.rank]}"
        ),
        checkpoint_is_due=lambda step: checkpointer.is_due(step=step, epoch=plan.epochs_done(step)),
        metric_is_ready=metric_is_ready,
        print_note=print_note,
    )
    if config.distributed.groups == 1:
        slow_rank = SlowRank(group.hosts, advice=advice_on_slow_rank(config))
        return SynchronousEpoch(context, group=group, slow_rank=slow_rank)
    groups = make_compute_groups(
        config, prepared, all_ranks=group, averaging=averaging, comm_cpus=share.comm_cpus
    )
    return GroupEpochs(context, groups, prepared=prepared, settings=config.training)
