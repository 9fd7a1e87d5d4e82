"""The command line of `python -m launch tune`."""

import argparse
from pathlib import Path
from typing import Any

from launch.tune.asynchrony import WithGroups
from launch.tune.network import Network
from launch.tune.parse_network import parse_network
from retinanet.command_line import add_json_option, add_overrides, number_of_ranks, positive
from retinanet.mlperf.rules import NEWEST, RULES

ABOUT = """\
Choose how many hosts, ranks, threads and images reach the target soonest, or cheapest.

More ranks train more images a second, but their larger batches need more epochs. This command
measures this host in minutes: steps by ranks, threads and local batch, evaluation, all-reduces. It
fits a model, predicts a third of the measurements without having seen them, and says how wrong it
was. With the epochs that the target takes at each global batch size it then forecasts the time
until the target of every allocation of up to --hosts hosts like this one.

The epochs on OpenImages are those of MLPerf's reference runs. With other data, --data CONFIG.yaml,
train.py itself is run until --probe-target with each global batch size of --probe, from several
seeds; that takes as long as such trainings take here, in a folder beside the plan's file.

What joins the hosts is told by --network, or measured between hosts that --measure-hosts or
--hostfile names, by one rank on each.

--plan FILE keeps what was measured, while it is measured: after Ctrl-C the same command goes on.
What the file has is not measured again: another question takes a second, on a laptop too."""

EXAMPLES = """\
examples:
  python -m launch tune --plan here.json                                    # this host alone
  python -m launch tune --plan here.json --hosts 64 --network 25Gbit/s,20us
  python -m launch tune --plan here.json --hosts 64 --network 25Gbit/s,20us --deadline 24
  python -m launch tune --plan here.json --hosts 64 --network 25Gbit/s,20us --budget 20000 \\
      --chart landscape.png --slurm job.sbatch
  python -m launch tune --plan here.json --hosts 64 --measure-hosts node1,node2
  python -m launch tune --plan coco.json --data coco.yaml data.root=/data/coco \\
      --probe 16,32,64 --probe-target 0.3                                   # days, see above"""


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
        "--hosts",
        type=number_of_ranks,
        default=1,
        metavar="H",
        help="hosts that there are (default: 1)",
    )
    add_network(parser)
    add_data(parser)
    add_overrides(parser)
    add_wishes(parser)
    add_outputs(parser)
    parser.set_defaults(run=run)


def run(**chosen: Any) -> int:
    """`tune_command`, loaded where it runs: other commands need not wait for numpy."""
    from launch.tune.command import tune_command  # noqa: PLC0415
    from launch.tune.question import Question  # noqa: PLC0415

    return tune_command(Question(**chosen))


def add_network(parser: argparse.ArgumentParser) -> None:
    """What joins the hosts: told, or measured."""
    parser.add_argument(
        "--network",
        type=network,
        metavar="BANDWIDTH,LATENCY",
        help="of each host's link and of a message, such as 25Gbit/s,20us; counts more than what "
        "was measured",
    )
    hosts = parser.add_mutually_exclusive_group()
    hosts.add_argument(
        "--measure-hosts",
        metavar="A,B",
        help="measure it between these hosts, which ssh reaches as for launch run --hosts",
    )
    hosts.add_argument(
        "--hostfile",
        type=Path,
        metavar="FILE",
        help="the same with the hosts of a file, as for launch run",
    )


def add_data(parser: argparse.ArgumentParser) -> None:
    """What is trained, and how its epochs become known."""
    parser.add_argument(
        "--data",
        metavar="NAME",
        help="what is trained: openimages (default), with the epochs of MLPerf's reference runs, "
        "or a configuration of train.py, such as coco.yaml, with --probe",
    )
    parser.add_argument(
        "--rules",
        choices=RULES,
        default=NEWEST,
        help=f"MLPerf's rule set whose reference runs count (default: {NEWEST})",
    )
    parser.add_argument(
        "--probe",
        type=batch_sizes,
        metavar="B,B",
        help="train with these global batch sizes until the target, at least two",
    )
    parser.add_argument(
        "--probe-target",
        type=share,
        metavar="mAP",
        help="the target of --probe and of the plan (default: training.target_map)",
    )
    parser.add_argument(
        "--probe-seeds",
        type=positive,
        metavar="N",
        help="trainings of each batch size, whose spread becomes the range (default: 2)",
    )


def add_wishes(parser: argparse.ArgumentParser) -> None:
    """What may be chosen, and what the choice has to keep to."""
    parser.add_argument(
        "--groups",
        type=groups,
        default=WithGroups(),
        metavar="G,TIMES",
        help="also up to so many compute groups, which need so many times the epochs of plain "
        "training at a group's batch, such as 4,1.2; launch groups --whole trains with both",
    )
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


def batch_sizes(text: str) -> tuple[int, ...]:
    """At least two different ones, ascending."""
    found = sorted({positive(word) for word in text.split(",")})
    if len(found) < 2:
        raise argparse.ArgumentTypeError(
            f"expected two global batch sizes or more, such as 8,16,32, found {text!r}"
        )
    return tuple(found)


def share(text: str) -> float:
    """Above 0, and at most 1."""
    found = amount(text)
    if found > 1:
        raise argparse.ArgumentTypeError(f"expected an mAP of 0 to 1, such as 0.3, found {text!r}")
    return found


def groups(text: str) -> WithGroups:
    """`4,1.2`."""
    most, comma, times = text.partition(",")
    if not comma:
        raise argparse.ArgumentTypeError(
            f"expected groups and times, such as 4,1.2, found {text!r}"
        )
    return WithGroups(most=positive(most), epochs=amount(times))


def amount(text: str) -> float:
    """A positive number."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a positive number, found {text!r}")
    return found
