"""A model arranged for the ranks of a run: engine, split of batches, averaging, epochs.

Here it is decided whether all ranks take every step together, or compute groups train without
waiting for one another (`distributed.groups`).
"""

from collections.abc import Callable
from functools import partial

from torch.optim import Optimizer

from launch.pinning import RankContext
from launch.process_group import ProcessGroup
from retinanet.config import Config
from retinanet.engine.engines import prepare_training
from retinanet.model.retinanet import RetinaNet
from retinanet.training.async_groups.epoch import GroupEpochs
from retinanet.training.async_groups.groups import compute_group, make_compute_groups
from retinanet.training.checkpointer import Checkpointer
from retinanet.training.data import Loading
from retinanet.training.distributed import make_exchange, share_weights
from retinanet.training.epoch import EpochContext, EpochStrategy, SynchronousEpoch
from retinanet.training.evaluation import Evaluator
from retinanet.training.loop import StepProfiler, train_one_epoch
from retinanet.training.nonfinite import NonFiniteGuard
from retinanet.training.rank_speed import (
    BackgroundLoad,
    SlowRank,
    advice_on_slow_rank,
    settle_batches,
)
from retinanet.training.schedule import StepPlan, learning_rate


def averaging_ranks(config: Config, group: ProcessGroup, place: RankContext) -> ProcessGroup:
    """Return the ranks that average their gradients with this one; all ranks call it."""
    settings = config.distributed
    if settings.groups == 1:
        return group
    comm_cpus, timeout_s = place.pinned.share.comm_cpus, settings.timeout_s
    return compute_group(group, settings.groups, comm_cpus=comm_cpus, timeout_s=timeout_s)


class ParallelModel:
    """A model with rank 0's weights on all ranks, arranged for training; all ranks make one."""

    def __init__(
        self,
        config: Config,
        model: RetinaNet,
        optimizer: Optimizer,
        *,
        engine: str,
        group: ProcessGroup,
        averaging: ProcessGroup,
        place: RankContext,
        recorded_split: tuple[int, ...],
        profiler: StepProfiler,
    ) -> None:
        """Arrange it.

        Args:
            config: The run's.
            model: On rank 0 with the weights to start from.
            optimizer: On rank 0 with the state to start from.
            engine: `torch` or `ipex`.
            group: All ranks.
            averaging: Those that average their gradients with this one.
            place: Where this rank runs.
            recorded_split: See `resume.recorded_split`.
            profiler: Is called around steps and phases.

        Raises:
            InputError: The engine, the split or the exchange does not work here.
        """
        self._config, self._group, self._averaging = config, group, averaging
        self._share, self._profiler = place.pinned.share, profiler
        settings = config.distributed
        share_weights(group, model, optimizer)
        self.prepared = prepare_training(
            model,
            optimizer,
            engine=engine,
            precision=config.engine.precision,
            convolutions=config.engine.convolutions,
        )
        """As the engine has arranged it: use its model and optimizer instead of the originals."""
        self.batches = settle_batches(
            config,
            self.prepared,
            group=averaging,
            local_ranks=place.ranks.local_size,
            recorded=recorded_split,
        )
        """How a batch is split among the ranks that average."""
        self._exchange = make_exchange(
            averaging,
            self.prepared,
            backend=settings.backend,
            compress=settings.compress,
            focal_form=config.engine.focal_loss,
            timeout_s=settings.timeout_s,
            weight=self.batches.weight(averaging.rank),
            profiler=profiler,
        )

    @property
    def way(self) -> str:
        """What averages gradients: `shared memory`, `gloo`, `ccl`; `none` for one rank."""
        return self._exchange.way if self._exchange else "none"

    def make_strategy(
        self,
        loading: Loading,
        plan: StepPlan,
        guard: NonFiniteGuard,
        *,
        checkpointer: Checkpointer,
        evaluator: Evaluator,
        print_note: Callable[[str], None],
    ) -> EpochStrategy:
        """Return the way in which ranks take the steps of an epoch; see `EpochContext`."""
        config, group, share = self._config, self._group, self._share
        host = group.hosts[group.rank]
        context = EpochContext(
            take_steps=partial(
                train_one_epoch,
                self.prepared,
                gradient_accumulation=config.training.gradient_accumulation,
                max_grad_norm=config.training.clip_gradient_norm,
                focal_form=config.engine.focal_loss,
                exchange=self._exchange,
                profiler=self._profiler,
                main_cpus=share.main_cpus,
            ),
            loading=loading,
            plan=plan,
            learning_rate=partial(learning_rate, config.training, plan),
            guard=guard,
            background_load=BackgroundLoad(share.cpus, place=f"rank {group.rank} on {host}"),
            checkpointer=checkpointer,
            evaluator=evaluator,
            print_note=print_note,
        )
        if config.distributed.groups == 1:
            slow_rank = SlowRank(group.hosts, advice=advice_on_slow_rank(config))
            return SynchronousEpoch(context, group=group, slow_rank=slow_rank)
        groups = make_compute_groups(
            config,
            self.prepared,
            everybody=group,
            own=self._averaging,
            comm_cpus=share.comm_cpus,
        )
        return GroupEpochs(context, groups, prepared=self.prepared, settings=config.training)
