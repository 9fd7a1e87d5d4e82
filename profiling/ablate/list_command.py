"""`python -m profiling ablate list`."""

from pathlib import Path

from rich.table import Table

from profiling.ablate.ablation import Ablation, SizeName
from profiling.ablate.outcome import NAMED, by_reason, shown
from profiling.ablate.plan import plan_of
from profiling.ablate.read import read_all
from profiling.ablate.result import read_result
from profiling.ablate.run_command import default_folder, result_file
from profiling.report.words import listed
from retinanet.exit_codes import FINISHED
from retinanet.terminal import make_console


def list_ablations(*, quick: bool, out: Path | None) -> int:
    """Print them all; returns the exit code.

    Raises:
        InputError: A file is not what it should be.
    """
    size: SizeName = "quick" if quick else "full"
    folder = out or default_folder(size)
    console = make_console(pipe_width=140)
    table = Table(show_lines=True)
    for heading in ("ablation", "question", "the paper"):
        table.add_column(heading, overflow="fold")
    table.add_column(f"measured ({size})", no_wrap=True)
    lacking: dict[str, str] = {}
    for name, ablation in read_all().items():
        plan = plan_of(name, ablation, size=size)
        lacking |= {f"{name}: {variant}": reason for variant, reason in plan.left_out.items()}
        done = progress_of(result_file(folder, ablation.runs_of or name))
        table.add_row(name, ablation.question, figures_of(ablation), done)
    console.print(table)
    for reason, left_out in by_reason(lacking).items():
        names = listed(left_out, NAMED)
        console.print(f"cannot be measured here: {names}: {reason}", soft_wrap=True)
    return FINISHED


def figures_of(ablation: Ablation) -> str:
    """The paper's numbers, else what it says."""
    figures = [shown(one.paper, one.ratio) for one in ablation.comparisons if one.paper]
    return ", ".join(dict.fromkeys(figures)) or ablation.says


def progress_of(file: Path) -> str:
    """How much of a result is there."""
    if not file.exists():
        return "no"
    result = read_result(file)
    if result.is_complete:
        return "yes" if result.rounds else "nothing can be"
    return f"{len(result.rounds)} of {result.rounds_wanted} rounds"
