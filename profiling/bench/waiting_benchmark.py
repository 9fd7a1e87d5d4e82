"""What training waits for data: real steps on real images, in as many processes as there are ranks.

The ranks share the order of images, not gradients: each has its own cores, reads its own part and
trains its own model, so that reading is disturbed as it is on a host with several ranks.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from rich.table import Table

from profiling.bench.finding import Finding
from profiling.bench.findings_output import put_out
from profiling.bench.waiting_ranks import WARM_UP, RankDiedError, Waiting, train_ranks
from retinanet.command_line import add_json_option, add_overrides, positive
from retinanet.config_file import load_config
from retinanet.errors import InputError
from retinanet.exit_codes import FINISHED
from retinanet.output_files import require_free_json
from retinanet.progress import make_console

LARGEST_SHARE = 0.01
RANK_DIED = 1
DEFAULT_SIZE = 800

ABOUT = """\
Trains a few steps of a configuration in several processes at once, each on its part of the cores,
with weights from random numbers, and says which share of a step was waiting for data.

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
        ("--ranks", 2, "processes that train at the same time"),
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
        runs = {
            count: train_ranks(settings, ranks=ranks, steps=steps, workers=count)
            for count in counts
        }
    except RankDiedError as error:
        print(f"error: {error}", file=sys.stderr)
        return RANK_DIED
    make_console().print(waiting_table(runs))
    standard = settings.data.image_size == DEFAULT_SIZE and ranks == 2
    findings = [
        Finding(
            what=f"waiting for data, share of a step, {count} loading processes a rank",
            value=max(one.share for one in run),
            shown=f"{max(one.share for one in run):.4f}",
            at_most=LARGEST_SHARE if standard else None,
        )
        for count, run in runs.items()
    ]
    put_out(
        findings,
        benchmark="waiting",
        workload={
            "image_size": settings.data.image_size,
            "batch_size": settings.training.batch_size,
            "ranks": ranks,
            "steps": steps,
            "runs": {str(count): [one._asdict() for one in run] for count, run in runs.items()},
        },
        with_targets=standard,
        json_file=json_file,
    )
    return FINISHED


def worker_count(text: str) -> int:
    """A number of `--workers`."""
    if not text.isdigit():
        raise InputError(f"--workers: expected numbers such as 0,1, found {text!r}")
    return int(text)


def waiting_table(runs: dict[int, list[Waiting]]) -> Table:
    """One row for each rank of each run."""
    table = Table()
    for heading in ("loading processes", "rank", "step, median", "waiting, median", "share"):
        table.add_column(heading, justify="right")
    for count, run in runs.items():
        table.add_section()
        for one in run:
            waited = median(one.data_seconds) * 1000
            step = f"{median(one.seconds):.2f} s"
            table.add_row(str(count), str(one.rank), step, f"{waited:.1f} ms", f"{one.share:.2%}")
    return table
