"""The command lines of `retinanet mlperf`."""

import argparse
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from common.cli import LONGEST_SHOWN, add_command, chart_file, positive
from common.options import argument, json_option, option
from retinanet.commands import Commands, run_target
from retinanet.mlperf.rules import NEWEST, RULES, Rules

POINTS_DESCRIPTION = """\
Print MLPerf's reference convergence points: the epochs of the reference implementation to mAP 0.34,
by global batch size (images per step, of all ranks). They are part of MLCommons' package, and
submissions are compared with them. Larger batches need more epochs, which costs part of the
speed-up of a cluster. For other batch sizes, epochs, learning rate and warm-up are interpolated."""

POINTS_EXAMPLES = """\
examples:
  retinanet mlperf points
  retinanet mlperf points --batch-size 128 448 1536 --chart points.png"""

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
  retinanet mlperf compare runs/first runs/second
  retinanet mlperf compare runs/demo intel.txt --size intel.txt=16x4x28
  retinanet mlperf compare published/*.txt --chart compare.png --json compare.json

docs/mlperf.md shows the result for Intel's and NVIDIA's logs."""

SUBMISSION_DESCRIPTION = """\
Add runs to the folder of a submission: their logs as results, a description of the system filled in
from this machine, and a reference to the code. Run it on the machine that trained. Then MLCommons'
package checker checks the folder. Existing files are not changed: complete the description by hand,
and add runs one by one. Exit status 0: the checker passes, 4: it does not."""

RUN_FOLDER = "folder of a run, such as runs/demo"
RUN_LOG = f"{RUN_FOLDER}, its mlperf.log, or a folder of result_0.txt, result_1.txt, …"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The number of hosts, ranks and cores of a run, of all hosts together; None: unknown."""

    hosts: int | None = None
    ranks: int | None = None
    cores: int | None = None


def size_of_log(text: str) -> tuple[str, Machine]:
    """Parse `LOG=HOSTSxRANKSxCORES`: ranks of a host, cores of a rank, which may be left out."""
    path, _, numbers = text.rpartition("=")
    match = re.fullmatch(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})(?:x([1-9][0-9]{0,5}))?", numbers)
    if not path or match is None:
        expected = "expected LOG=HOSTSxRANKSxCORES, such as intel.txt=16x4x28"
        raise argparse.ArgumentTypeError(f"{expected}, found {text[-LONGEST_SHOWN:]!r}")
    hosts, ranks, cores = (int(number or 0) for number in match.groups())
    ranks *= hosts
    return path, Machine(hosts=hosts, ranks=ranks, cores=ranks * cores or None)


RULES_OF_LOG = "rule set (default: the newest that has the log's benchmark)"


@dataclass(frozen=True, kw_only=True)
class PointsOptions:
    """The options of `retinanet mlperf points`."""

    batch_size: list[int] | None = option(
        "global batch sizes to interpolate: ranks × training.batch_size × "
        "training.gradient_accumulation",
        default=None,
        parse=positive,
        nargs="+",
        metavar="N",
    )
    rules: Rules = option("rule set", default=NEWEST)
    chart: Path | None = option(
        "draw a chart of the points",
        default=None,
        parse=chart_file,
        metavar="FILE.png",
        writes=True,
    )
    json: Path | None = json_option()


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """The options of `retinanet mlperf check`."""

    path: Path = argument(RUN_LOG, metavar="RUN")
    rules: Rules | None = option(RULES_OF_LOG, default=None, choices=RULES)
    json: Path | None = json_option("also write the verdict to this file")


@dataclass(frozen=True, kw_only=True)
class RcpOptions:
    """The options of `retinanet mlperf rcp`."""

    runs: list[Path] = argument(RUN_LOG, metavar="RUN", nargs="+")
    rules: Rules | None = option(RULES_OF_LOG, default=None, choices=RULES)
    json: Path | None = json_option("also write the verdict to this file")


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """The options of `retinanet mlperf compare`."""

    runs: list[Path] = argument(RUN_LOG, metavar="RUN", nargs="+")
    size: list[tuple[str, Machine]] | None = option(
        "hosts, ranks of a host and cores of a rank, such as intel.txt=16x4x28, for a log that "
        "does not say; the cores may be left out; may be repeated",
        default=None,
        parse=size_of_log,
        action="append",
        metavar="LOG=HxRxC",
    )
    chart: Path | None = option(
        "draw mAP against time, and the time of an epoch",
        default=None,
        parse=chart_file,
        metavar="FILE.png",
        writes=True,
    )
    json: Path | None = json_option()


@dataclass(frozen=True, kw_only=True)
class SubmissionOptions:
    """The options of `retinanet mlperf submission`."""

    runs: list[Path] = argument(RUN_FOLDER, metavar="RUN", nargs="+")
    out: Path = option("the submission's folder", metavar="DIR")
    rules: Rules | None = option(RULES_OF_LOG, default=None, choices=RULES)


COMMANDS = (
    ("points", "epochs and settings by global batch size", PointsOptions, "points:points",
     POINTS_DESCRIPTION, POINTS_EXAMPLES),
    ("check", "the official compliance checker on a run", CheckOptions, "official:check",
     CHECK_DESCRIPTION, None),
    ("rcp", "the official RCP checker on a set of runs", RcpOptions, "official:rcp",
     RCP_DESCRIPTION, None),
    ("compare", "speed and convergence of runs and published logs", CompareOptions,
     "compare:compare", COMPARE_DESCRIPTION, COMPARE_EXAMPLES),
    ("submission", "the folder of a submission", SubmissionOptions, "submission:submission",
     SUBMISSION_DESCRIPTION, None),
)  # fmt: skip
"""Name, summary, options, function, description and examples."""


def add_mlperf(commands: Commands) -> None:
    """Add `mlperf` and its commands."""
    about = "MLPerf training: RetinaNet. Each run writes mlperf.log beside its metrics."
    parser = add_command(commands, "mlperf", about=about)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, summary, options, target, description, examples in COMMANDS:
        run = partial(run_target, f"retinanet.mlperf.{target}")
        add_command(commands, name, summary=summary, about=description, examples=examples,
                    options=options, run=run)  # fmt: skip
