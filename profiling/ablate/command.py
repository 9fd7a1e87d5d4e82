"""`retinanet profile ablate list | run | report`: the command line, and tables on a terminal."""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from common.charts import Table, text_column
from common.cli import add_command, positive
from common.console import make_console
from common.errors import FINISHED, OUR_BUG, WorkerDiedError
from common.options import argument, included, option, overwrite_option
from profiling.ablate.analysis import (
    OUTCOME_COLUMNS,
    compare_variants,
    format_figure,
    left_out_lines,
    variants_table,
)
from profiling.ablate.definition import chosen, measured_by, read_all
from profiling.ablate.measure import (
    Photos,
    alone_on_this_machine,
    begun_result,
    measure,
    measured_on,
    with_photo_description,
)
from profiling.ablate.report import ReportOptions, make_report
from profiling.ablate.result import Place, Plan, Result, read_result, resolve_plan
from profiling.bench.job import JobFailedError
from profiling.bench.results import disturbance

ABOUT = """\
Reproduce the papers' ablations (Fu et al., 2023; Awan et al., 2017). A file in configs/ablations
defines a question, a baseline, a change and the paper's figure. Baseline and change run in turn
(A B A B), each in its own process; ratios are computed in each round. Result files contain the
machine, the versions and the command, and the report is made from these files alone. An interrupted
measurement continues where it stopped. Run it on an otherwise idle machine."""

EXAMPLES = """\
examples:
  retinanet profile ablate list
  retinanet profile ablate run frozen-layers --quick           # a minute or two
  retinanet profile ablate run --quick                         # all, 320x320, minutes each
  retinanet profile ablate run                                 # all, 800x800: hours
  retinanet profile ablate run decoders --photos /data/coco/train2017
  retinanet profile ablate run --quick --out runs/ablations/quick/second
  retinanet profile ablate report --quick                      # includes the second run"""


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """The options of `ablate list`."""

    place: Place = included(Place)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of `ablate run`."""

    names: list[str] = argument("ablations (default: all)", metavar="NAME", nargs="*")
    place: Place = included(Place)
    photos: Path | None = option(
        "photos for the decoders (default: synthetic images)", default=None, metavar="DIR"
    )
    rounds: int | None = option(
        "measured runs of each variant (default: from the ablation's file, else 8 or 5); a larger "
        "number adds rounds to a result",
        default=None,
        parse=positive,
        metavar="N",
    )
    overwrite: bool = overwrite_option("replace earlier results")


def add_ablate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `ablate list | run | report` to the commands of a command line."""
    kinds = add_command(commands, "ablate", about=ABOUT, examples=EXAMPLES).add_subparsers(
        required=True, metavar="COMMAND"
    )
    about = "list the ablations, the papers' figures and what is measured"
    add_command(
        kinds, "list", summary=about, about=f"{about.capitalize()}.", examples=EXAMPLES,
        options=ListOptions, run=list_ablations,
    )  # fmt: skip
    add_command(
        kinds, "run", summary="measure ablations, or continue measuring", about=ABOUT,
        examples=EXAMPLES, options=RunOptions, run=run,
    )  # fmt: skip
    add_command(
        kinds, "report", summary="write a report as HTML and as Markdown",
        about="Write ablations.html (self-contained) and ablations.md with pictures from the "
        "results.", examples=EXAMPLES, options=ReportOptions, run=make_report,
    )  # fmt: skip


def list_ablations(options: ListOptions) -> int:
    """Print all ablations; return the exit code.

    Raises:
        InputError: A file is not what it should be.
    """
    size = options.place.size
    console = make_console(pipe_width=140)
    headings = map(text_column, ("ablation", "question", "paper"))
    columns = (*headings, text_column(f"measured ({size})", no_wrap=True))
    rows = []
    lacking: dict[str, str] = {}
    for name, ablation in read_all().items():
        plan = resolve_plan(name, ablation, size=size)
        lacking |= {f"{name}: {variant}": reason for variant, reason in plan.left_out.items()}
        figures = dict.fromkeys(
            format_figure(comparison.paper, comparison.ratio)
            for comparison in ablation.comparisons
            if comparison.paper
        )
        paper = ", ".join(figures) or ablation.says
        file, progress = options.place.file(ablation.runs_of or name), "no"
        if file.exists():
            result = read_result(file)
            progress = f"{len(result.rounds)} of {result.rounds_wanted} rounds"
            if result.is_complete:
                progress = "yes" if result.rounds else "not possible"
        rows.append((name, ablation.question, paper, progress))
    console.print(Table("", columns, rows).for_console(show_lines=True))
    print_left_out(console, "not possible on this machine", lacking)
    return FINISHED


def print_left_out(console: Console, what: str, left_out: Mapping[str, str]) -> None:
    """Print the variants that cannot run, a line for each reason."""
    for names, reason in left_out_lines(left_out):
        console.print(f"{what}: {names}: {reason}", soft_wrap=True)


def run(options: RunOptions) -> int:
    """Measure ablations one after another; return the exit code.

    Raises:
        InputError: A name is not known, a file is of another machine, there are no photos.
    """
    place, photos = options.place, options.photos
    console = make_console(pipe_width=140)
    known = read_all()
    plans = [
        resolve_plan(name, ablation, size=place.size, rounds=options.rounds)
        for name, ablation in measured_by(chosen(options.names, known), known).items()
    ]
    with alone_on_this_machine(), tempfile.TemporaryDirectory(prefix="ablations-") as scratch:
        source = Photos(photos, Path(scratch), console)
        if photos is not None:
            source.list_file()
        plans = [with_photo_description(plan, source) for plan in plans]
        # Checks all existing results first: an error must not come after minutes of work.
        on = measured_on()
        begun = []
        for plan in plans:
            command = place.command("run", plan.name, photos=photos)
            begun.append(
                begun_result(
                    plan, place.file(plan.name), command=command, on=on, overwrite=options.overwrite
                )
            )
        code = measure_all(plans, begun, place, photos=source, console=console)
    report = place.command("report")
    console.print(f"\nresults: {place.folder}; report: {report}", soft_wrap=True)
    return code


def measure_all(
    plans: Sequence[Plan],
    begun: Sequence[Result],
    place: Place,
    *,
    photos: Photos,
    console: Console,
) -> int:
    """Measure the missing rounds of each ablation; a failed one does not stop the next."""
    code = FINISHED
    for number, (plan, result) in enumerate(zip(plans, begun, strict=True), start=1):
        console.print(f"\n{number} of {len(plans)}: {plan.name}: {plan.ablation.question}")
        file = place.file(plan.name)
        try:
            done = measure(plan, result, file, photos=photos, console=console)
            print_result(plan, done, console=console)
        # The remaining ablations can often be measured, so only the exit code keeps the failure.
        except (WorkerDiedError, JobFailedError) as error:
            print(f"error: {plan.name}: {error}", file=sys.stderr)
            code = OUR_BUG
        except KeyboardInterrupt:
            count = len(read_result(file).rounds) if file.exists() else 0
            saved = f"{count} rounds are saved"
            console.print(f"stopped in {file.parent.name}: {saved}; repeat the command to continue")
            raise
    return code


def print_result(plan: Plan, result: Result, *, console: Console) -> None:
    """Print the measurements, and the variants that could not be measured."""
    if result.rounds:
        console.print(variants_table(plan.ablation, result, for_page=False).for_console())
        rows = [outcome.cells() for outcome in compare_variants(plan.ablation, result)]
        console.print(Table("", OUTCOME_COLUMNS, rows).for_console())
    print_left_out(console, "not measured", result.left_out)
    disturbed = disturbance(max(result.busy_cores, default=0.0))
    if disturbed:
        console.print(disturbed, soft_wrap=True)
