"""What annotations of OpenImages' size cost: converting them once, opening them in every rank.

TODO-DOC What reading a long oneDNN log costs.
"""

import argparse
import json
import math
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

from common.cli import add_json_option, positive
from common.console import MEGABYTE, make_console, progress, significant
from common.errors import FINISHED, OUR_BUG, InputError
from common.files import require_free_json
from common.machine import private_mb
from profiling.bench.generated import write_annotations, write_log
from profiling.bench.report import put_out
from profiling.bench.results import Finding

IMAGES, BOXES, RANKS = 1_170_301, 10_000_000, 8
"""MLPerf's training images, boxes about as many as theirs, and ranks of a host."""
BYTES_NEEDED = 500
"""Of disk for each box: its JSON, its row in the index, and what comes with the images."""

INDEX_ABOUT = """\
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
    parser = kinds.add_parser("index", help=about, description=f"Time {about}.\n\n{INDEX_ABOUT}")
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
        describe_index_benchmark(conversion, openings, with_targets=standard),
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
    from data.index import find_or_make_index
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


def describe_index_benchmark(
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


LINES, PROBLEMS = 1_000_000, 1000

LOG_ABOUT = """\
Writes a log with time stamps and other programs' lines in between to a temporary folder, and reads
it in a process of its own. The sum that is read must be the sum that was written."""

READ = """\
import json, sys, time
from pathlib import Path
from common.machine import peak_resident_mb
from profiling.onednn_log.log import read_logs
began = time.perf_counter()
log = read_logs([Path(sys.argv[1])])
seconds = time.perf_counter() - began
print(json.dumps({"seconds": seconds, "peak_mb": peak_resident_mb(), "total_ms": log.total_ms,
                  "problems": len(log.calls()), "not_understood": log.not_understood_count}))
"""


def add_log_benchmark(kinds: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `log` to the benchmarks of a command line."""
    about = "reading a long oneDNN log"
    parser = kinds.add_parser("log", help=about, description=f"Time {about}.\n\n{LOG_ABOUT}")
    for name, default, what in (
        ("--lines", LINES, "executions in the log"),
        ("--problems", PROBLEMS, "distinct problems among them"),
    ):
        help_text = f"{what} (default: {default:,})"
        parser.add_argument(name, type=positive, default=default, metavar="N", help=help_text)
    add_json_option(parser)
    parser.set_defaults(run=log_command)


def log_command(*, lines: int, problems: int, json_file: Path | None) -> int:
    """Run the benchmark; returns the exit code."""
    require_free_json(json_file)
    console = make_console()
    with tempfile.TemporaryDirectory(prefix="log-benchmark-") as folder:
        file = Path(folder, "onednn.log")
        written_ms = write_log(file, lines=lines, problems=problems)
        size = file.stat().st_size / MEGABYTE
        console.print(f"{lines:,} executions of {problems:,} problems: {size:,.0f} MB")
        command = [sys.executable, "-c", READ, str(file)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    read = json.loads(output)
    standard = lines == LINES
    put_out(
        describe_log_benchmark(read, with_targets=standard),
        benchmark="log",
        workload={"lines": lines, "problems": problems},
        with_targets=standard,
        json_file=json_file,
    )
    if not math.isclose(read["total_ms"], written_ms, rel_tol=1e-12) or read["not_understood"]:
        console.print(f"WRONG: {written_ms} ms were written: {read}", soft_wrap=True)
        return OUR_BUG
    return FINISHED


def describe_log_benchmark(read: dict[str, float], *, with_targets: bool) -> list[Finding]:
    """The numbers beside what is wanted."""
    seconds, peak_mb = read["seconds"], read["peak_mb"]
    return [
        Finding(
            what="reading, seconds",
            value=seconds,
            shown=f"{seconds:.1f} s",
            at_most=12 if with_targets else None,
        ),
        Finding(
            what="reading, memory at the most",
            value=peak_mb,
            shown=f"{peak_mb:.0f} MB",
            at_most=300 if with_targets else None,
        ),
    ]
