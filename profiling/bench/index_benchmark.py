"""What annotations of OpenImages' size cost: converting them once, opening them in every rank."""

import argparse
import multiprocessing
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import NamedTuple

from launch.resources import private_mb
from profiling.bench.finding import Finding
from profiling.bench.findings_output import put_out
from profiling.bench.generated_annotations import write_annotations
from profiling.significant import significant
from retinanet.command_line import add_json_option, positive
from retinanet.errors import InputError
from retinanet.exit_codes import FINISHED
from retinanet.output_files import require_free_json
from retinanet.progress import MEGABYTE, progress
from retinanet.terminal import make_console

IMAGES, BOXES, RANKS = 1_170_301, 10_000_000, 8
"""MLPerf's training images, boxes about as many as theirs, and ranks of a host."""
BYTES_NEEDED = 500
"""Of disk for each box: its JSON, its row in the index, and what comes with the images."""

ABOUT = """\
Writes annotations with the fields of MLPerf's export and random boxes to a temporary folder,
converts them by `python -m data convert`, and lets several processes open the index at once."""


class Conversion(NamedTuple):
    """What `python -m data convert` took."""

    seconds: float
    peak_mb: float


class Opening(NamedTuple):
    """What opening took one rank."""

    seconds: float
    private_mb: float
    """By how much its private memory grew."""
    epoch_private_mb: float
    """The same after it has chosen the images to train on and an epoch's order."""


def add_index_benchmark(kinds: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `index` to the benchmarks of a command line."""
    about = "converting annotations of OpenImages' size, and opening their index"
    parser = kinds.add_parser("index", help=about, description=f"Time {about}.\n\n{ABOUT}")
    for name, default, what in (
        ("--images", IMAGES, "images"),
        ("--boxes", BOXES, "boxes"),
        ("--ranks", RANKS, "processes that open the index at the same time"),
    ):
        help_text = f"{what} (default: {default:,})"
        parser.add_argument(name, type=positive, default=default, metavar="N", help=help_text)
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="where the temporary folder is made (default: where the system has temporary files)",
    )
    add_json_option(parser)
    parser.set_defaults(run=index_command)


def index_command(
    *, images: int, boxes: int, ranks: int, folder: Path | None, json_file: Path | None
) -> int:
    """Run the benchmark; returns the exit code.

    Raises:
        InputError: There is no room for the files.
    """
    require_free_json(json_file)
    console = make_console()
    with tempfile.TemporaryDirectory(dir=folder, prefix="index-benchmark-") as temporary:
        require_room(Path(temporary), boxes + images)
        source = Path(temporary, "generated.json")
        with progress(console, "generating, images", total=images) as advance:
            write_annotations(source, images=images, boxes=boxes, advance=advance)
        size = source.stat().st_size / MEGABYTE
        console.print(f"{images:,} images, {boxes:,} boxes: {size:,.0f} MB of JSON")
        conversion = convert(source)
        openings = open_by_ranks(source, ranks)
    standard = (images, boxes) == (IMAGES, BOXES)
    put_out(
        describe(conversion, openings, with_targets=standard),
        benchmark="index",
        workload={"images": images, "boxes": boxes, "ranks": ranks},
        with_targets=standard,
        json_file=json_file,
    )
    return FINISHED


def require_room(folder: Path, rows: int) -> None:
    """Refuse to begin what the disk cannot hold."""
    free, needed = shutil.disk_usage(folder).free, rows * BYTES_NEEDED
    if free < needed:
        raise InputError(
            f"{folder.parent}: {free / 1e9:.1f} GB are free and {needed / 1e9:.1f} GB needed; "
            "name another place by --folder, or fewer --boxes"
        )


def convert(source: Path) -> Conversion:
    """Make the index in a process of its own, as a user does."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "data", "convert", str(source)], check=True)
    seconds = time.perf_counter() - began
    return Conversion(seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6)


def open_by_ranks(source: Path, ranks: int) -> list[Opening]:
    """Open the index in so many processes at once, which all hold it until the last has it."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    together = context.Barrier(ranks)
    processes = [
        context.Process(target=open_as_rank, args=(source, together, results)) for _ in range(ranks)
    ]
    for process in processes:
        process.start()
    openings = [results.get() for _ in processes]
    for process in processes:
        process.join()
    return openings


def open_as_rank(
    source: Path, together: Barrier, results: "multiprocessing.queues.SimpleQueue[Opening]"
) -> None:
    """What each process does."""
    from data.index_cache import find_or_make_index
    from data.sampler import training_keys  # loads torch, of which opening must not be the price

    together.wait()
    before = private_mb()
    began = time.perf_counter()
    annotations = find_or_make_index(source).annotations
    seconds = time.perf_counter() - began
    together.wait()  # so that pages of the index count as shared, as they are among ranks
    opened = private_mb()
    rows = annotations.images_with_objects()
    keys = training_keys(len(rows), seed=0, epoch=0, batch_size=2, rank=0, ranks=8)
    for key in next(keys):
        _ = annotations.boxes[annotations.boxes_of(int(rows[key.index]))].sum()
    together.wait()
    results.put(Opening(seconds, opened - before, private_mb() - before))
    together.wait()


def describe(
    conversion: Conversion, openings: list[Opening], *, with_targets: bool
) -> list[Finding]:
    """The numbers beside what is wanted."""

    def finding(what: str, value: float, *, unit: str, at_most: float | None) -> Finding:
        shown = f"{significant(value, 3)} {unit}" if value < 100 else f"{value:,.0f} {unit}"
        return Finding(
            what=what, value=value, shown=shown, at_most=at_most if with_targets else None
        )

    slowest = max(opening.seconds for opening in openings)
    private = max(opening.private_mb for opening in openings)
    with_order = max(opening.epoch_private_mb for opening in openings)
    return [
        finding("converting, seconds", conversion.seconds, unit="s", at_most=300),
        finding("converting, memory at the most", conversion.peak_mb, unit="MB", at_most=2000),
        finding(f"opening, slowest of {len(openings)} ranks", slowest, unit="s", at_most=1),
        finding("opening, private memory of a rank", private, unit="MB", at_most=50),
        finding("the same with an epoch's order", with_order, unit="MB", at_most=None),
    ]
