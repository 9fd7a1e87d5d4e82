"""`python -m retinanet mlperf`: its command line."""

import argparse
from pathlib import Path

from retinanet.command_line import add_json_option, positive
from retinanet.mlperf.points_command import points
from retinanet.mlperf.rules import NEWEST, RULES

POINTS = """\
MLPerf's reference convergence points: how many epochs the reference implementation took to mAP
0.34 at several global batch sizes (images a step, of all ranks). They come inside MLCommons'
package, and submissions are compared with them. Larger batches take more epochs: what a cluster
gains in speed it must give back in part. For other batch sizes epochs, learning rate and warm-up
are interpolated between the points."""

EXAMPLES = """\
examples:
  python -m retinanet mlperf points
  python -m retinanet mlperf points --batch-size 128 448 1536 --chart points.png"""


def add_mlperf(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `mlperf` and its commands to a command line; each sets `run`."""
    mlperf = commands.add_parser(
        "mlperf", help="MLPerf's reference points", description="MLPerf training: RetinaNet."
    )
    kinds = mlperf.add_subparsers(required=True, metavar="COMMAND")
    command = kinds.add_parser(
        "points",
        help="epochs, learning rate and warm-up by global batch size",
        description=POINTS,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "--batch-size",
        dest="batch_sizes",
        type=positive,
        nargs="+",
        default=[],
        metavar="N",
        help="global batch sizes to look up: ranks × training.batch_size × "
        "training.gradient_accumulation",
    )
    command.add_argument(
        "--rules", choices=RULES, default=NEWEST, help=f"rule set (default: {NEWEST})"
    )
    command.add_argument("--chart", type=Path, metavar="FILE.png", help="draw them: a PNG")
    add_json_option(command)
    command.set_defaults(run=points)
