"""A rank that times a few training steps: `python -m profiling.bench.measured_rank`, under mpirun.

It takes its place as a rank of train.py does, on the same cores, and trains MLPerf's model, or with
`--own-model` the configuration's, with weights from random numbers on the configuration's data.
Rank 0 prints a line of JSON after every step, and one with what all ranks measured at the end; see
`profiling.bench.job`.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from common.cli import add_overrides, positive, run_command
from common.errors import FINISHED
from launch.pinning import RankContext
from launch.ranks import read_ranks
from launch.rendezvous import rank0_only_errors
from profiling.bench.job import MARK
from retinanet.config import Config, ModelConfig
from retinanet.config_file import load_config
from retinanet.placement import place_on_host


def main() -> int:
    """Take a place among the ranks, measure; returns the exit code."""
    ranks = read_ranks(os.environ)
    with rank0_only_errors(ranks):
        arguments = parse_arguments()
        config = load_config(arguments.config, arguments.overrides)
        place = place_on_host(config, ranks)
    return measure_here(config, arguments, place=place)


def parse_arguments() -> argparse.Namespace:
    """`config`, `overrides`, `warm_up`, `steps`, `alternate`, `own_model`, `scenes`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="demo.yaml", metavar="NAME")
    add_overrides(parser)
    parser.add_argument("--warm-up", type=positive, default=3, metavar="N")
    parser.add_argument("--steps", type=positive, default=5, metavar="N")
    parser.add_argument(
        "--alternate",
        action="store_true",
        help="after each counted step, one whose gradients stay with their rank",
    )
    parser.add_argument(
        "--own-model", action="store_true", help="the configuration's model, not MLPerf's"
    )
    parser.add_argument(
        "--scenes", type=Path, required=True, metavar="FOLDER", help="drawn scenes go here"
    )
    return parser.parse_args()


def measure_here(config: Config, arguments: argparse.Namespace, *, place: RankContext) -> int:
    """Join the other ranks, measure with them; rank 0 tells.

    Raises:
        InputError: The data is not there, or not what the configuration says.
    """
    # torch is loaded only now: cores, memory policy and environment must be settled before.
    from launch.process_group import joined
    from profiling.bench.measured_steps import measure, open_training, steps_without_end
    from retinanet.training.distributed import make_exchange
    from retinanet.training.rank_speed import settle_batches

    with joined(place, timeout_s=config.distributed.timeout_s) as group:
        settings = config.model if arguments.own_model else ModelConfig()
        loading, prepared = open_training(
            config, arguments.scenes, model_settings=settings, group=group, place=place
        )
        local_ranks = place.ranks.local_size
        batches = settle_batches(config, prepared, group=group, local_ranks=local_ranks)
        loading.batches.split = batches.images
        exchange = make_exchange(
            group,
            prepared,
            backend=config.distributed.backend,
            compress=config.distributed.compress,
            focal_form=config.engine.focal_loss,
            timeout_s=config.distributed.timeout_s,
            weight=batches.weight(group.rank),
        )
        own = measure(
            steps_without_end(
                config,
                loading,
                prepared,
                exchange=exchange,
                group=group,
                main_cpus=place.pinned.share.main_cpus,
            ),
            exchange=exchange,
            group=group,
            warm_up=arguments.warm_up,
            counted=arguments.steps,
            alternate=arguments.alternate,
            tell_step=lambda step: tell({"step": step}) if group.is_first else None,
        )
        found = group.gather(own)
        if found is not None:
            tell({"ranks": [asdict(one) for one in found]})
    return FINISHED


def tell(message: dict[str, object]) -> None:
    """A line for whoever started the job."""
    print(MARK + json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.exit(run_command(main))
