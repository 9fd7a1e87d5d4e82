"""Train RetinaNet-ResNeXt50 on CPUs: configuration → ranks → data → model → steps → evaluation.

retinanet train                                          # synthetic data, minutes
retinanet train --config coco.yaml data.root=/data/coco  # COCO 2017
retinanet train --config coco.yaml --resume              # continue after an interruption
mpirun -np 8 retinanet train --config openimages.yaml    # 8 ranks, each pins itself to its cores
"""

import os
import sys
from collections.abc import Sequence

from common.cli import run_command
from common.errors import FINISHED
from common.processes import end_with_caller
from common.streams import make_output_optional
from launch.pinning import RankContext
from launch.ranks import read_ranks
from launch.rendezvous import rank0_only_errors
from retinanet.config import Config
from retinanet.config_file import (
    RunOptions,
    load_config,
    parse_run_arguments,
    print_config,
)
from retinanet.placement import place_on_host, print_plan_here
from retinanet.training.signals import hold_signal


def main(*, prog: str | None = None, words: Sequence[str] | None = None) -> int:
    """Run the command line, or the `words` after `prog`; return the exit code."""
    end_with_caller()
    hold_signal()
    ranks = read_ranks(os.environ)
    # All ranks read the same input, so each of them would print the same error.
    with rank0_only_errors(ranks):
        arguments = parse_run_arguments(__doc__ or "", prog=prog, words=words)
        config = load_config(arguments.config, arguments.overrides)
        if arguments.dry_run:
            print_config(config)
            print_plan_here(config, ranks)
            return FINISHED
        place = place_on_host(config, ranks, binding=not arguments.check)
    return run(config, arguments, place)


def run(config: Config, arguments: RunOptions, place: RankContext) -> int:
    """Check or train as one of the ranks; return the exit code."""
    # torch is loaded only now: cores, memory policy and environment must be settled before.
    from retinanet.training.start import check_or_train

    if not arguments.check:
        make_output_optional()
    return check_or_train(config, arguments, place, profiler="profiling.capture.hooks:capturing")


if __name__ == "__main__":
    sys.exit(run_command(main))
