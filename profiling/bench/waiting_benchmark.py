"""What training waits for data: real steps on real images, on as many ranks as are asked for."""

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median

from rich.table import Table

from launch.start.mpirun import choose_mpirun
from profiling.bench.finding import Finding
from profiling.bench.findings_output import put_out
from profiling.bench.measured_job import JobFailedError, MeasuredJob, measure_ranks
from profiling.bench.rank_steps import RankSteps
from retinanet.command_line import add_json_option, add_overrides, positive
from retinanet.config_file import load_config
from retinanet.errors import InputError
from retinanet.exit_codes import FINISHED
from retinanet.output_files import require_free_json
from retinanet.progress import Advance, progress
from retinanet.terminal import make_console

LARGEST_SHARE = 0.01
WARM_UP = 3
DEFAULT_SIZE = 800

ABOUT = """\
Trains a few steps of a configuration on several ranks, started by mpirun and pinned as those of
train.py, with weights from random numbers, and says which share of a step was waiting for data.
A rank that has its images waits for the others to have theirs, and that counts too.

  python -m profiling bench waiting --config coco.yaml data.root=/data/coco
  python -m profiling bench waiting data.image_size=800           drawn scenes"""


def add_waiting_benchmark(kinds: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `waiting` to the benchmarks of a command line."""
    about = "how long training steps wait for data"
    parser = kinds.add_parser(
        "waiting",
        help=about,
        description=f"Time {about}.\n\n{ABOUT}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config", default="demo.yaml", metavar="NAME", help="as train.py's (default: demo.yaml)"
    )
    add_overrides(parser)
    for name, default, what in (
        ("--ranks", 2, "ranks that train together"),
        ("--steps", 5, f"steps that count, after {WARM_UP} that do not"),
    ):
        help_text = f"{what} (default: {default})"
        parser.add_argument(name, type=positive, default=default, metavar="N", help=help_text)
    parser.add_argument(
        "--workers",
        default="0,1",
        metavar="A,B",
        help="loading processes of a rank, one run for each number (default: 0,1)",
    )
    add_json_option(parser)
    parser.set_defaults(run=waiting_command)


def waiting_command(
    *,
    config: str,
    overrides: Sequence[str],
    ranks: int,
    steps: int,
    workers: str,
    json_file: Path | None,
) -> int:
    """Run the benchmark; returns the exit code.

    Raises:
        InputError: The configuration or its data are not there, or cores are fewer than ranks.
    """
    require_free_json(json_file)
    settings = load_config(config, overrides)
    counts = [worker_count(text) for text in workers.split(",")]
    if len(os.sched_getaffinity(0)) < ranks:
        raise InputError(f"--ranks: {ranks} are more than the cores that this process may use")
    try:
        runs = measure_runs(config, overrides, ranks=ranks, steps=steps, counts=counts)
    except JobFailedError as error:
        return error.code
    make_console().print(waiting_table(runs))
    standard = settings.data.image_size == DEFAULT_SIZE and ranks == 2
    put_out(
        findings(runs, with_targets=standard),
        benchmark="waiting",
        workload={
            "image_size": settings.data.image_size,
            "batch_size": settings.training.batch_size,
            "ranks": ranks,
            "steps": steps,
            "runs": {str(count): [asdict(one) for one in run] for count, run in runs.items()},
        },
        with_targets=standard,
        json_file=json_file,
    )
    return FINISHED


def measure_runs(
    config: str, overrides: Sequence[str], *, ranks: int, steps: int, counts: Sequence[int]
) -> dict[int, list[RankSteps]]:
    """A job for each number of loading processes, by that number.

    Raises:
        JobFailedError: One of them could not go on.
        InputError: There is no mpirun.
    """
    mpirun, console = choose_mpirun(None), make_console()
    runs = {}
    with tempfile.TemporaryDirectory(prefix="waiting-benchmark-") as folder:
        for count in counts:
            job = MeasuredJob(
                ranks=ranks,
                config=config,
                overrides=(*overrides, f"data.workers={count}"),
                warm_up=WARM_UP,
                steps=steps,
                alternate=False,
                scenes=Path(folder, "scenes"),
            )
            title = f"{count} loading processes a rank, {ranks} ranks; steps"
            with progress(console, title, total=job.all_steps) as advance:
                runs[count] = measure_ranks(
                    job,
                    mpirun=mpirun,
                    advance=partial(show, advance),
                    say=partial(console.print, markup=False, soft_wrap=True),
                )
    return runs


def show(advance: Advance, step: int) -> None:
    """Show how many steps are done."""
    advance(step, "")


def findings(runs: dict[int, list[RankSteps]], *, with_targets: bool) -> list[Finding]:
    """Of each run, the share of the rank that waited longest."""
    return [
        Finding(
            what=f"waiting for data, share of a step, {count} loading processes a rank",
            value=max(map(waiting_share, run)),
            shown=f"{max(map(waiting_share, run)):.4f}",
            at_most=LARGEST_SHARE if with_targets else None,
        )
        for count, run in runs.items()
    ]


def waiting_share(one: RankSteps) -> float:
    """Of all steps together, what was waiting for data."""
    return sum(one.data_seconds) / sum(one.seconds)


def worker_count(text: str) -> int:
    """A number of `--workers`."""
    if not text.isdigit():
        raise InputError(f"--workers: expected numbers such as 0,1, found {text!r}")
    return int(text)


def waiting_table(runs: dict[int, list[RankSteps]]) -> Table:
    """One row for each rank of each run."""
    table = Table()
    for heading in ("loading processes", "rank", "step, median", "waiting, median", "share"):
        table.add_column(heading, justify="right")
    for count, run in runs.items():
        table.add_section()
        for one in run:
            waited = median(one.data_seconds) * 1000
            share = f"{waiting_share(one):.2%}"
            step = f"{median(one.seconds):.2f} s"
            table.add_row(str(count), str(one.rank), step, f"{waited:.1f} ms", share)
    return table
