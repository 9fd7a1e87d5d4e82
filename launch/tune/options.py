"""The command line of `python -m launch tune`."""

import argparse
from pathlib import Path
from typing import Any

from launch.tune.network import Network
from launch.tune.parse_network import parse_network
from retinanet.command_line import add_json_option, add_overrides, positive
from retinanet.mlperf.rules import NEWEST, RULES

ABOUT = """\
Choose how many hosts, ranks, threads and images reach the target soonest, or cheapest.

More ranks train more images a second, but their larger batches need more epochs. This command
measures this host in minutes: steps by ranks, threads and local batch, evaluation, all-reduces. It
fits a model, predicts a third of the measurements without having seen them, and says how wrong it
was. With the epochs that MLPerf's reference needed at each global batch size it then forecasts the
time until the target of every allocation of up to --hosts hosts like this one.

--plan FILE keeps what was measured. Where the file exists nothing is measured, so that another
question takes a second, on a laptop too."""

EXAMPLES = """\
examples:
  python -m launch tune --plan here.json                                    # this host alone
  python -m launch tune --plan here.json --hosts 64 --network 25Gbit/s,20us
  python -m launch tune --plan here.json --hosts 64 --network 25Gbit/s,20us --deadline 24
  python -m launch tune --plan here.json --hosts 64 --network 25Gbit/s,20us --budget 20000 \\
      --chart landscape.png --slurm job.sbatch"""


def add_tune(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `tune` to the commands of a command line."""
    parser = commands.add_parser(
        "tune",
        help="the planner: how many hosts, ranks, threads and images reach the target soonest",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--hosts", type=positive, default=1, metavar="H", help="hosts that there are (default: 1)"
    )
    parser.add_argument(
        "--network",
        type=network,
        metavar="BANDWIDTH,LATENCY",
        help="of each host's link and of a message, such as 25Gbit/s,20us",
    )
    parser.add_argument(
        "--data",
        choices=["openimages"],
        default="openimages",
        help="what is trained until which target (default: openimages, MLPerf's)",
    )
    parser.add_argument(
        "--rules",
        choices=RULES,
        default=NEWEST,
        help=f"MLPerf's rule set whose reference runs count (default: {NEWEST})",
    )
    add_overrides(parser)
    add_wishes(parser)
    add_outputs(parser)
    parser.set_defaults(run=run)


def run(**chosen: Any) -> int:
    """`tune_command`, loaded where it runs: other commands need not wait for numpy."""
    from launch.tune.command import tune_command  # noqa: PLC0415

    return tune_command(**chosen)


def add_wishes(parser: argparse.ArgumentParser) -> None:
    """What the choice has to keep to."""
    parser.add_argument(
        "--deadline",
        type=amount,
        metavar="HOURS",
        help="the cheapest allocation that even at its worst is done in so many hours",
    )
    parser.add_argument(
        "--budget",
        type=amount,
        metavar="CORE-HOURS",
        help="the soonest that even at its worst takes no more core-hours",
    )


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Where measurements and answers go."""
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="FILE",
        help="what was measured goes here, and comes from here where it exists",
    )
    parser.add_argument("--chart", type=Path, metavar="FILE.png", help="draw the landscape")
    parser.add_argument("--slurm", type=Path, metavar="FILE", help="write the winner's Slurm file")
    add_json_option(parser, "write every allocation's forecast here too")
    parser.add_argument(
        "--mpirun", type=Path, metavar="PATH", help="this one, and not the first that is found"
    )


def network(text: str) -> Network:
    """See `parse_network`."""
    try:
        return parse_network(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def amount(text: str) -> float:
    """A positive number."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a positive number, found {text!r}")
    return found
