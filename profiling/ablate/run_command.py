"""`python -m profiling ablate run`."""

import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from profiling.ablate.ablation import SizeName
from profiling.ablate.alone import alone_on_this_machine
from profiling.ablate.measuring import begun_result, measure, measured_on
from profiling.ablate.outcome import NAMED, by_reason, outcomes_of
from profiling.ablate.outcome_tables import outcomes_table, variants_table
from profiling.ablate.photos import Photos, with_photos_told
from profiling.ablate.plan import Plan, plan_of
from profiling.ablate.read import chosen, measured_by, read_all
from profiling.ablate.result import Result, read_result
from profiling.bench.measured_job import JobFailedError
from profiling.bench.other_load import disturbance
from profiling.bench.worker_process import WorkerDiedError
from profiling.report.words import listed
from retinanet.exit_codes import FINISHED
from retinanet.terminal import make_console

WORKER_DIED = 1


def run(
    names: Sequence[str],
    *,
    quick: bool,
    out: Path | None,
    photos: Path | None,
    rounds: int | None,
    overwrite: bool,
) -> int:
    """Measure ablations one after another; returns the exit code.

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
        read = Photos(photos, Path(scratch), console)
        if photos is not None:
            read.listed()
        plans = [with_photos_told(plan, read) for plan in plans]
        # Before minutes of work: that all of it can go on where it stopped.
        on = measured_on()
        begun = [
            begun_result(
                plan,
                result_file(folder, plan.name),
                command=command_of(plan.name, size, out=out, photos=photos),
                on=on,
                overwrite=overwrite,
            )
            for plan in plans
        ]
        code = measure_all(plans, begun, folder, photos=read, console=console)
    words = ["python", "-m", "profiling", "ablate", "report", *where(size, out=out)]
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
            say_result(plan, done, console=console)
        except (WorkerDiedError, JobFailedError) as error:
            print(f"error: {plan.name}: {error}", file=sys.stderr)
            code = WORKER_DIED
        except KeyboardInterrupt:
            say_kept(file, console=console)
            raise
    return code


def say_result(plan: Plan, result: Result, *, console: Console) -> None:
    """Print what was measured, and what could not be."""
    if result.rounds:
        console.print(variants_table(result, plan.ablation.chart))
        console.print(outcomes_table(outcomes_of(plan.ablation, result)))
    for reason, left_out in by_reason(result.left_out).items():
        console.print(f"not measured: {listed(left_out, NAMED)}: {reason}", soft_wrap=True)
    disturbed = disturbance(max(result.busy_cores, default=0.0))
    if disturbed:
        console.print(disturbed, soft_wrap=True)


def say_kept(file: Path, *, console: Console) -> None:
    """Print how far an interrupted measurement had come."""
    count = len(read_result(file).rounds) if file.exists() else 0
    console.print(
        f"stopped in {file.parent.name}: {count} rounds of it are kept; the same command goes on"
    )


def default_folder(size: SizeName) -> Path:
    """Where results go unless told otherwise."""
    return Path("runs", "ablations", size)


def result_file(folder: Path, name: str) -> Path:
    """Of an ablation."""
    return folder / name / "result.json"


def where(size: SizeName, *, out: Path | None) -> list[str]:
    """The options that name a folder of results."""
    quick = ["--quick"] if size == "quick" else []
    return [*quick, *(["--out", str(out)] if out else [])]


def command_of(name: str, size: SizeName, *, out: Path | None, photos: Path | None) -> str:
    """What measures one ablation."""
    pictures = ["--photos", str(photos)] if photos else []
    words = ["python", "-m", "profiling", "ablate", "run", name, *where(size, out=out), *pictures]
    return shlex.join(words)
