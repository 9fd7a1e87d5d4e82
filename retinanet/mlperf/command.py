"""`python -m retinanet mlperf`: its command line."""

import argparse
from pathlib import Path
from typing import Any

from common.cli import add_json_option, positive
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

CHECK = """\
Run MLCommons' compliance checker on a run's log, and say what falls short: 0 where it passes, 4
where it does not. Which division the run was for, its log says (mlperf.division). Logs of others
are taken too: names of ranks before the lines are left out, lines that were cut are named."""

RCP = """\
Run MLCommons' RCP checker on runs of one global batch size: whether they take as many epochs to
the target as the reference implementation does, which shows that nothing but speed was changed. The
fastest and the slowest run do not count. 0 where it passes, 4 where it does not."""

SUBMISSION = """\
Put runs into the folder of a submission: their logs as results, a description of the system filled
from this machine, and a reference to the code. Run it on the machine that trained. Then MLCommons'
package checker looks at the folder. What is in the folder stays as it is: fill in what the
description cannot know, add runs one by one. 0 where the checker passes, 4 where it does not."""

A_RUN = "folder of a run, such as runs/demo"
ITS_LOG = f"{A_RUN}, its mlperf.log, or a folder of result_0.txt, result_1.txt, …"


def add_mlperf(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `mlperf` and its commands to a command line; each sets `mlperf_command`."""
    mlperf = commands.add_parser(
        "mlperf",
        help="check a run by MLPerf's rules, its reference points, a submission's folder",
        description="MLPerf training: RetinaNet. Each run writes mlperf.log beside its metrics.",
    )
    kinds = mlperf.add_subparsers(required=True, metavar="COMMAND")
    add_points(kinds)
    check = command_of(kinds, "check", "the official compliance checker on a run", CHECK)
    check.add_argument("run", type=Path, metavar="RUN", help=ITS_LOG)
    rcp = command_of(kinds, "rcp", "the official RCP checker on a set of runs", RCP)
    rcp.add_argument("runs", type=Path, nargs="+", metavar="RUN", help=ITS_LOG)
    submission = command_of(kinds, "submission", "the folder of a submission", SUBMISSION)
    submission.add_argument("runs", type=Path, nargs="+", metavar="RUN", help=A_RUN)
    submission.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the submission's folder"
    )
    for parser, name in ((check, "check"), (rcp, "rcp"), (submission, "submission")):
        parser.add_argument(
            "--rules",
            choices=RULES,
            help="rule set (default: the newest that has the log's benchmark)",
        )
        parser.set_defaults(mlperf_command=name)
    for parser in (check, rcp):
        add_json_option(parser, "write the verdict here too")


def command_of(
    kinds: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    about: str,
    description: str,
) -> argparse.ArgumentParser:
    """A command whose description keeps its lines."""
    return kinds.add_parser(
        name,
        help=about,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_points(kinds: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `points`."""
    command = command_of(kinds, "points", "epochs and settings by global batch size", POINTS)
    command.epilog = EXAMPLES
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
    command.set_defaults(mlperf_command="points")


def run_mlperf(arguments: dict[str, Any]) -> int:
    """Run the command that was named; returns the exit code."""
    name = arguments.pop("mlperf_command")
    # The official checkers need scipy and pandas, a second to load.
    if name == "points":
        from retinanet.mlperf.convergence import points

        return points(**arguments)
    if name == "check":
        from retinanet.mlperf.official import check

        return check(**arguments)
    if name == "rcp":
        from retinanet.mlperf.convergence import rcp

        return rcp(**arguments)
    from retinanet.mlperf.submission import submission

    return submission(**arguments)
