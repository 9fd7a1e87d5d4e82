"""The command lines of `python -m retinanet mlperf`."""

import argparse
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from common.cli import LONGEST_SHOWN, add_json_option, chart_file, positive
from retinanet.commands import DIR, Commands, add_command, call
from retinanet.mlperf.rules import NEWEST, RULES

if TYPE_CHECKING:
    from retinanet.mlperf.timeline import Machine

POINTS_DESCRIPTION = """\
Print MLPerf's reference convergence points: the epochs of the reference implementation to mAP 0.34,
by global batch size (images per step, of all ranks). They are part of MLCommons' package, and
submissions are compared with them. Larger batches need more epochs, which costs part of the
speed-up of a cluster. For other batch sizes, epochs, learning rate and warm-up are interpolated."""

POINTS_EXAMPLES = """\
examples:
  python -m retinanet mlperf points
  python -m retinanet mlperf points --batch-size 128 448 1536 --chart points.png"""

CHECK_DESCRIPTION = """\
Run MLCommons' compliance checker on the log of a run, and list all violations. Exit status 0: it
passes, 4: it does not. The division is in the log (mlperf.division). Logs of other programs work
too: prefixes with ranks are removed, incomplete lines are listed."""

RCP_DESCRIPTION = """\
Run MLCommons' RCP checker on runs of one global batch size: whether they need as many epochs to the
target as the reference implementation, which shows that only speed was changed. The fastest and the
slowest run do not count. A line names what the checker does not examine: equal seeds, and runs of
different submitters, systems or divisions. Exit status 0: it passes, 4: it does not."""

COMPARE_DESCRIPTION = """\
Compare the speed and the convergence of runs with each other and with logs that others published:
time to the first step, time of epochs and evaluations, images per second in all and per host, rank
and core, mAP after each epoch, and time to the target, on MLPerf's clock. Logs differ in what they
count and leave out. What a log does not say stays empty, and a line says so; so does a line for
each number that was calculated, and for targets and data sets that differ.

MLCommons publishes the logs of all submissions in its repositories training_results_v2.0 to
v5.1, as SUBMITTER/results/SYSTEM/ssd/result_0.txt, from v5.0 on in retinanet/. Lines in them that
are cut are left out. Times are medians, with the range in parentheses."""

COMPARE_EXAMPLES = """\
examples:
  python -m retinanet mlperf compare runs/first runs/second
  python -m retinanet mlperf compare runs/demo intel.txt --size intel.txt=16x4x28
  python -m retinanet mlperf compare published/*.txt --chart compare.png --json compare.json

docs/mlperf.md shows the result for Intel's and NVIDIA's logs."""

SUBMISSION_DESCRIPTION = """\
Add runs to the folder of a submission: their logs as results, a description of the system filled in
from this machine, and a reference to the code. Run it on the machine that trained. Then MLCommons'
package checker checks the folder. Existing files are not changed: complete the description by hand,
and add runs one by one. Exit status 0: the checker passes, 4: it does not."""

RUN_FOLDER = "folder of a run, such as runs/demo"
RUN_LOG = f"{RUN_FOLDER}, its mlperf.log, or a folder of result_0.txt, result_1.txt, …"


def size_of_log(text: str) -> tuple[str, "Machine"]:
    """Parse `LOG=HOSTSxRANKSxCORES`: ranks of a host, cores of a rank, which may be left out."""
    # Imported here, because it loads MLCommons' package.
    from retinanet.mlperf.timeline import Machine  # noqa: PLC0415

    path, _, numbers = text.rpartition("=")
    match = re.fullmatch(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})(?:x([1-9][0-9]{0,5}))?", numbers)
    if not path or match is None:
        expected = "expected LOG=HOSTSxRANKSxCORES, such as intel.txt=16x4x28"
        raise argparse.ArgumentTypeError(f"{expected}, found {text[-LONGEST_SHOWN:]!r}")
    hosts, ranks, cores = (int(number or 0) for number in match.groups())
    ranks *= hosts
    return path, Machine(hosts=hosts, ranks=ranks, cores=ranks * cores or None)


def add_compare(kinds: Commands) -> None:
    """Add `mlperf compare`."""
    compare = add_command(
        kinds,
        "compare",
        summary="speed and convergence of runs and published logs",
        description=COMPARE_DESCRIPTION,
        epilog=COMPARE_EXAMPLES,
        run=partial(call, "retinanet.mlperf.compare:compare"),
    )
    compare.add_argument("paths", type=Path, nargs="+", metavar="RUN", help=RUN_LOG)
    compare.add_argument(
        "--size",
        dest="sizes",
        type=size_of_log,
        action="append",
        default=[],
        metavar="LOG=HxRxC",
        help="hosts, ranks of a host and cores of a rank, such as intel.txt=16x4x28, for a log "
        "that does not say; the cores may be left out; may be repeated",
    )
    compare.add_argument(
        "--chart",
        type=chart_file,
        metavar="FILE.png",
        help="draw mAP against time, and the time of an epoch",
    )
    add_json_option(compare)


def add_mlperf(commands: Commands) -> None:
    """Add `mlperf` and its commands."""
    mlperf = commands.add_parser(
        "mlperf",
        description="MLPerf training: RetinaNet. Each run writes mlperf.log beside its metrics.",
    )
    kinds = mlperf.add_subparsers(required=True, metavar="COMMAND")
    points = add_command(
        kinds,
        "points",
        summary="epochs and settings by global batch size",
        description=POINTS_DESCRIPTION,
        epilog=POINTS_EXAMPLES,
        run=partial(call, "retinanet.mlperf.rules:points"),
    )
    points.add_argument(
        "--batch-size",
        dest="batch_sizes",
        type=positive,
        nargs="+",
        default=[],
        metavar="N",
        help="global batch sizes to interpolate: ranks × training.batch_size × "
        "training.gradient_accumulation",
    )
    points.add_argument(
        "--rules", choices=RULES, default=NEWEST, help=f"rule set (default: {NEWEST})"
    )
    points.add_argument(
        "--chart", type=chart_file, metavar="FILE.png", help="draw a chart of the points"
    )
    add_json_option(points)
    check = add_command(
        kinds,
        "check",
        summary="the official compliance checker on a run",
        description=CHECK_DESCRIPTION,
        run=partial(call, "retinanet.mlperf.official:check"),
    )
    check.add_argument("path", type=Path, metavar="RUN", help=RUN_LOG)
    rcp = add_command(
        kinds,
        "rcp",
        summary="the official RCP checker on a set of runs",
        description=RCP_DESCRIPTION,
        run=partial(call, "retinanet.mlperf.official:rcp"),
    )
    rcp.add_argument("runs", type=Path, nargs="+", metavar="RUN", help=RUN_LOG)
    add_compare(kinds)
    submission = add_command(
        kinds,
        "submission",
        summary="the folder of a submission",
        description=SUBMISSION_DESCRIPTION,
        run=partial(call, "retinanet.mlperf.submission:submission"),
    )
    submission.add_argument("runs", type=Path, nargs="+", metavar="RUN", help=RUN_FOLDER)
    submission.add_argument("--out", required=True, **DIR, help="the submission's folder")
    for parser in (check, rcp, submission):
        parser.add_argument(
            "--rules",
            choices=RULES,
            help="rule set (default: the newest that has the log's benchmark)",
        )
    for parser in (check, rcp):
        add_json_option(parser, "also write the verdict to this file")
