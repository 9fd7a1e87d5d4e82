"""`python -m profiling ablate list | run | report`: the command line, and tables on a terminal."""

import argparse
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from rich.console import Console

from common.charts import Column, Table, text_column
from common.cli import positive
from common.console import make_console, significant
from common.errors import FINISHED, OUR_BUG, WorkerDiedError
from profiling.ablate.analysis import NAMED, by_reason, outcomes_of, shown, variant_numbers
from profiling.ablate.definition import ChartChoice, SizeName, chosen, measured_by, read_all
from profiling.ablate.measure import (
    Photos,
    alone_on_this_machine,
    begun_result,
    measure,
    measured_on,
    with_photos_described,
)
from profiling.ablate.report import make_report
from profiling.ablate.result import (
    Plan,
    Result,
    command_of,
    default_folder,
    folder_options,
    plan_of,
    read_result,
    result_file,
)
from profiling.bench.job import JobFailedError
from profiling.bench.results import disturbance
from profiling.report.page import listed

ABOUT = """\
The paper's ablations (Fu et al., 2023; Awan et al., 2017), each as a measurement that anyone can
repeat. A file in configs/ablations states one question, a baseline, a change and the paper's
figure. Baseline and change run in turn, A B A B, each in a process of its own; ratios are taken
round by round. Results are files with the machine, the versions and the command in them, and the
report is made from these files alone. What was interrupted goes on where it stopped.
Use a machine on which nothing else runs."""

EXAMPLES = """\
examples:
  python -m profiling ablate list
  python -m profiling ablate run frozen-layers --quick           # a minute or two
  python -m profiling ablate run --quick                         # all of them, 320x320
  python -m profiling ablate run                                 # all, 800x800: hours
  python -m profiling ablate run decoders --photos /data/coco/train2017
  python -m profiling ablate run --quick --out runs/ablations/quick/second
  python -m profiling ablate report --quick                      # says also what holds"""


def add_ablate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `ablate list | run | report` to the commands of a command line."""
    parser = add_parser(commands, "ablate", "the paper's ablations, measured here", ABOUT)
    kinds = parser.add_subparsers(required=True, metavar="COMMAND")

    about = "which there are, what the paper says, what is measured"
    parser = add_parser(kinds, "list", about, f"List the ablations: {about}.", run=list_ablations)
    add_place(parser)

    parser = add_parser(kinds, "run", "measure them, or go on measuring", ABOUT, run=run)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which (default: all)")
    add_place(parser)
    parser.add_argument(
        "--photos",
        type=Path,
        metavar="DIR",
        help="decoders read the photos of this folder (default: drawn scenes)",
    )
    parser.add_argument(
        "--rounds",
        type=positive,
        metavar="N",
        help="counted runs of each variant (default: as each file says, else 8 or 5); more than "
        "there are go on from these",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="measure anew what was measured before"
    )

    description = (
        "Make ablations.html (one file that loads nothing) and ablations.md with its pictures, "
        "from result files alone."
    )
    about = "one page for a browser, and one in Markdown"
    parser = add_parser(kinds, "report", about, description, run=make_report)
    add_place(parser)
    parser.add_argument(
        "--again",
        type=Path,
        metavar="DIR",
        help="results of a second run: says of each conclusion whether it holds (default: the "
        "folder `second` among the results, if it is there)",
    )
    parser.add_argument(
        "--to", type=Path, metavar="DIR", help="where the report goes (default: beside the results)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a report that is there")


def add_parser(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    about: str,
    description: str,
    **defaults: Callable[..., int],
) -> argparse.ArgumentParser:
    """Add a command with the examples of all."""
    parser = commands.add_parser(
        name,
        help=about,
        description=description,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(**defaults)
    return parser


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add `--quick` and `--out`."""
    parser.add_argument(
        "--quick", action="store_true", help="320x320 instead of 800x800, and fewer rounds"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of results (default: runs/ablations/quick, or full)",
    )


def list_ablations(*, quick: bool, out: Path | None) -> int:
    """Print them all; return the exit code.

    Raises:
        InputError: A file is not what it should be.
    """
    size: SizeName = "quick" if quick else "full"
    folder = out or default_folder(size)
    console = make_console(pipe_width=140)
    headings = map(text_column, ("ablation", "question", "the paper"))
    columns = (*headings, text_column(f"measured ({size})", no_wrap=True))
    rows = []
    lacking: dict[str, str] = {}
    for name, ablation in read_all().items():
        plan = plan_of(name, ablation, size=size)
        lacking |= {f"{name}: {variant}": reason for variant, reason in plan.left_out.items()}
        figures = dict.fromkeys(
            shown(comparison.paper, comparison.ratio)
            for comparison in ablation.comparisons
            if comparison.paper
        )
        says = ", ".join(figures) or ablation.says
        file, progress = result_file(folder, ablation.runs_of or name), "no"
        if file.exists():
            result = read_result(file)
            progress = f"{len(result.rounds)} of {result.rounds_wanted} rounds"
            if result.is_complete:
                progress = "yes" if result.rounds else "nothing can be"
        rows.append((name, ablation.question, says, progress))
    console.print(Table("", columns, rows).for_console(show_lines=True))
    print_left_out(console, "cannot be measured here", lacking)
    return FINISHED


def print_left_out(console: Console, what: str, left_out: Mapping[str, str]) -> None:
    """Print the variants that cannot run, a line for each reason."""
    for reason, names in by_reason(left_out).items():
        console.print(f"{what}: {listed(names, NAMED)}: {reason}", soft_wrap=True)


def run(
    names: Sequence[str],
    *,
    quick: bool,
    out: Path | None,
    photos: Path | None,
    rounds: int | None,
    overwrite: bool,
) -> int:
    """Measure ablations one after another; return the exit code.

    Raises:
        InputError: A name is not known, a file is of another machine, there are no photos.
    """
    size: SizeName = "quick" if quick else "full"
    folder = out or default_folder(size)
    console = make_console(pipe_width=140)
    known = read_all()
    plans = [
        plan_of(name, ablation, size=size, rounds=rounds)
        for name, ablation in measured_by(chosen(names, known), known).items()
    ]
    with alone_on_this_machine(), tempfile.TemporaryDirectory(prefix="ablations-") as scratch:
        source = Photos(photos, Path(scratch), console)
        if photos is not None:
            source.listed()
        plans = [with_photos_described(plan, source) for plan in plans]
        # Before minutes of work: that all of it can go on where it stopped.
        on = measured_on()
        begun = []
        for plan in plans:
            file = result_file(folder, plan.name)
            command = command_of(plan.name, size, out=out, photos=photos)
            begun.append(begun_result(plan, file, command=command, on=on, overwrite=overwrite))
        code = measure_all(plans, begun, folder, photos=source, console=console)
    words = ["python", "-m", "profiling", "ablate", "report", *folder_options(size, out=out)]
    console.print(f"\nresults: {folder}; as a page: {shlex.join(words)}", soft_wrap=True)
    return code


def measure_all(
    plans: Sequence[Plan],
    begun: Sequence[Result],
    folder: Path,
    *,
    photos: Photos,
    console: Console,
) -> int:
    """Measure what is missing of each; one that cannot go on does not stop the next."""
    code = FINISHED
    for number, (plan, result) in enumerate(zip(plans, begun, strict=True), start=1):
        console.print(f"\n{number} of {len(plans)}: {plan.name}: {plan.ablation.question}")
        file = result_file(folder, plan.name)
        try:
            done = measure(plan, result, file, photos=photos, console=console)
            print_result(plan, done, console=console)
        except (WorkerDiedError, JobFailedError) as error:
            print(f"error: {plan.name}: {error}", file=sys.stderr)
            code = OUR_BUG
        except KeyboardInterrupt:
            count = len(read_result(file).rounds) if file.exists() else 0
            rounds = f"{count} rounds of it are kept"
            console.print(f"stopped in {file.parent.name}: {rounds}; the same command goes on")
            raise
    return code


def print_result(plan: Plan, result: Result, *, console: Console) -> None:
    """Print what was measured, and what could not be."""
    if result.rounds:
        console.print(variants_table(result, plan.ablation.chart).for_console())
        rows = [outcome.cells() for outcome in outcomes_of(plan.ablation, result)]
        console.print(Table("", OUTCOME_COLUMNS, rows).for_console())
    print_left_out(console, "not measured", result.left_out)
    disturbed = disturbance(max(result.busy_cores, default=0.0))
    if disturbed:
        console.print(disturbed, soft_wrap=True)


OUTCOME_COLUMNS = (
    text_column("what"),
    *map(Column, ("ours", "interval", "paper")),
    text_column("is", no_wrap=True),
)


def variants_table(result: Result, choice: ChartChoice) -> Table:
    """Return a row for each variant that ran: what the chart draws, its spread, memory."""
    unit, variants = variant_numbers(result, choice)
    columns = (
        text_column("variant"),
        text_column("allocator"),
        Column(f"median {unit}", significant),
        Column("lowest–highest"),
        Column("page faults", ",.0f"),
        Column("peak MB", ",.0f"),
    )
    rows = []
    for name, allocator, values, page_faults, peak_mb in variants:
        spread = f"{significant(min(values))}–{significant(max(values))}"
        rows.append((name, allocator, median(values), spread, page_faults, peak_mb))
    return Table("", columns, rows)
