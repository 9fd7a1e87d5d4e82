"""Benchmarks without variants, with targets: checkpoint, index, log and metric.

- `checkpoint`: the cost of saving: training waits for the copy, and continues during the write.
- `index`: the cost of annotations of OpenImages' size, converted once and opened in every rank.
- `log`: the cost of reading a long oneDNN log.
- `metric`: the cost of COCO's metric on a split of OpenImages' size, and whether its values equal
  pycocotools'.
"""

import math
import multiprocessing
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from common.cli import positive
from common.console import MEGABYTE, make_console, print_line, progress, three_digits
from common.errors import FINISHED, OUR_BUG, InputError
from common.machine import private_mb
from common.options import json_option, option
from common.outputs import require_space
from common.program import module_command, module_environment
from profiling.bench.generated import write_annotations, write_log
from profiling.bench.report import put_out
from profiling.bench.results import RECIPES, Finding
from profiling.bench.variant import STANDARD, Run, Variant, Workload
from profiling.bench.worker_pool import runs_alone
from retinanet.mlperf.rules import VALIDATION_IMAGES

CHECKPOINT_ABOUT = """\
Trains as a training does, in one process, and writes checkpoints of model and optimizer to a
temporary folder. Measures how long copying stops the training, and how much slower the steps are
until the checkpoint is on the disk. From both follows the share of a run with
checkpoint.every=10min."""
EVERY_SECONDS = 600.0  # `checkpoint.every: 10min`, for which the target is given

INDEX_ABOUT = """\
Writes annotations with the fields of MLPerf's export and random boxes to a temporary folder,
converts them with `retinanet data convert`, and opens the index in several processes at once."""
INDEX_IMAGES, INDEX_BOXES, INDEX_RANKS = 1_170_301, 10_000_000, 8
"""MLPerf's training images, boxes about as many as theirs, and ranks of a host."""
BYTES_NEEDED = 500
"""Disk space for each box: its JSON, its row in the index, and what comes with the images."""

LOG_ABOUT = """\
Writes a log with time stamps and lines of other programs to a temporary folder, and reads it in a
separate process. The sum of the times read must equal the sum written."""
LINES, PROBLEMS = 1_000_000, 1000

METRIC_ABOUT = """\
Generates ground truth and 300 detections in each of 24,781 images with the statistics of MLPerf's
validation split, and computes the metric in a separate process on one core. On a tenth of the
images both libraries compute it, and their numbers are compared. Takes two minutes."""
FOUND = 300  # The most boxes that the model's postprocessing keeps


def count(what: str, default: int) -> Any:
    """Return the field of an option that takes a positive number."""
    text = f"{what} (default: {default:,})"
    return option(text, default=default, parse=positive, metavar="N")


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """The options of `retinanet profile bench checkpoint`."""

    rounds: int = count("measured checkpoints", 5)
    images: int = count("images per batch", STANDARD.images)
    image_size: int = count("height and width of the images [pixels]", STANDARD.image_size)
    folder: Path | None = option(
        "folder on the disk of the runs (default: the system's temporary folder)", default=None
    )
    json: Path | None = json_option()


@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """The options of `retinanet profile bench index`."""

    images: int = count("images", INDEX_IMAGES)
    boxes: int = count("boxes", INDEX_BOXES)
    ranks: int = count("processes that open the index at the same time", INDEX_RANKS)
    folder: Path | None = option(
        "parent of the temporary folder (default: the system's temporary folder)",
        default=None,
        metavar="DIR",
    )
    json: Path | None = json_option()


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """The options of `retinanet profile bench log`."""

    lines: int = count("executions in the log", LINES)
    problems: int = count("distinct problems among them", PROBLEMS)
    json: Path | None = json_option()


@dataclass(frozen=True, kw_only=True)
class MetricOptions:
    """The options of `retinanet profile bench metric`."""

    images: int = count("images", VALIDATION_IMAGES)
    found: int = count("detections per image", FOUND)
    json: Path | None = json_option()


def bench_checkpoint(options: CheckpointOptions) -> int:
    """Run `checkpoint`; return the exit code."""
    rounds, folder = options.rounds, options.folder
    if folder is not None and not folder.is_dir():
        raise InputError(f"--folder: {folder} is not a folder; create it or give another")
    workload = Workload(images=options.images, image_size=options.image_size)
    with tempfile.TemporaryDirectory(prefix="checkpoint-benchmark-", dir=folder) as checkpoints:
        variant = Variant(
            "checkpoint", "", f"{RECIPES}.checkpoint", options={"folder": checkpoints}
        )
        measured = runs_alone(variant, workload, count=rounds + 1)
    # Without the first round, whose copy takes new memory from the system.
    findings = checkpoint_findings([run.details for run in measured[1:]])
    written = {**asdict(workload), "rounds": rounds}
    # Tensors are as large, whatever the images: the target holds for every workload.
    put_out(findings, "checkpoint", written, with_targets=True, json_file=options.json)
    return FINISHED


def checkpoint_findings(rounds: Sequence[dict[str, float]]) -> list[Finding]:
    """Return medians over the rounds, and the share of a run that follows from them."""
    medians = {name: median(numbers[name] for numbers in rounds) for name in rounds[0]}
    # Noise can make the slowdown negative, which is no gain.
    cost = medians["copying"] + max(0.0, medians["slower"])
    share = cost / (EVERY_SECONDS + cost)
    size = medians["bytes"] / MEGABYTE

    def seconds(what: str, name: str) -> Finding:
        return Finding(what, medians[name], f"{medians[name]:.2f} s")

    what = "share of a run with checkpoint.every=10min"
    return [
        seconds("step without a checkpoint", "quiet_step"),
        Finding("tensors of a checkpoint", size, f"{size:.0f} MB"),
        seconds("copying (training waits)", "copying"),
        seconds("writing (training continues)", "writing"),
        seconds("total slowdown of the steps while writing", "slower"),
        Finding(what, share, f"{share:.2%}", at_most=0.01),
    ]


Opening = tuple[float, float, float]
"""The cost of opening the index in one rank: seconds, growth of its private memory [MB], and the
same after it has chosen the images to train on and an epoch's order."""


def bench_index(options: IndexOptions) -> int:
    """Run `index`; return the exit code."""
    images, boxes, ranks = options.images, options.boxes, options.ranks
    console = make_console()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="index-benchmark-") as temporary:
        source = Path(temporary, "generated.json")
        needed, fix = (boxes + images) * BYTES_NEEDED, "give another --folder or fewer --boxes"
        require_space(source.parent.parent, needed, fix=fix)
        with progress(console, "generating, images", total=images) as advance:
            write_annotations(source, images=images, boxes=boxes, advance=advance)
        size = source.stat().st_size / MEGABYTE
        console.print(f"{images:,} images, {boxes:,} boxes: {size:,.0f} MB of JSON")
        # In a process of its own, as a user converts.
        began = time.perf_counter()
        command = [*module_command("data"), "convert", str(source)]
        subprocess.run(command, env=module_environment(), check=True)
        seconds = time.perf_counter() - began
        # Linux gives ru_maxrss in KiB: the largest of all children, so far only `convert`.
        peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6
        openings = open_by_ranks(source, ranks)

    def finding(what: str, value: float, unit: str, *, at_most: float | None) -> Finding:
        return Finding(what, value, f"{three_digits(value)} {unit}", at_most=at_most)

    slowest, private, with_order = map(max, zip(*openings, strict=True))
    findings = [
        finding("converting, time", seconds, "s", at_most=300),
        finding("converting, peak memory", peak_mb, "MB", at_most=2000),
        finding(f"opening, slowest of {len(openings)} ranks", slowest, "s", at_most=1),
        finding("opening, private memory per rank", private, "MB", at_most=50),
        finding(
            "private memory per rank, with the order of an epoch", with_order, "MB", at_most=None
        ),
    ]
    workload = {"images": images, "boxes": boxes, "ranks": ranks}
    standard = (images, boxes) == (INDEX_IMAGES, INDEX_BOXES)
    put_out(findings, "index", workload, with_targets=standard, json_file=options.json)
    return FINISHED


def open_by_ranks(source: Path, ranks: int) -> list[Opening]:
    """Open the index in a number of processes at once; all hold it until the last has opened it."""
    # Forked processes would share this process's pages; ranks are started by mpirun and share none.
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
    """Open the index in a rank's process, and send its `Opening` to `results`."""
    # The loader needs torch, whose loading must not count as a cost of opening.
    from data.index import find_or_make_index
    from data.loader import training_keys

    together.wait()
    before = private_mb()
    began = time.perf_counter()
    annotations = find_or_make_index(source).annotations
    seconds = time.perf_counter() - began
    # All hold the index now, so that its pages count as shared, as they are among ranks.
    together.wait()
    opened = private_mb()
    rows = annotations.images_with_objects()
    keys = training_keys(len(rows), seed=0, epoch=0, batch_size=2, rank=0, ranks=8)
    for key in next(keys):
        _ = annotations.boxes[annotations.box_slice(int(rows[key.index]))].sum()
    together.wait()
    results.put((seconds, opened - before, private_mb() - before))
    together.wait()


def bench_log(options: LogOptions) -> int:
    """Run `log`; return the exit code."""
    lines, problems = options.lines, options.problems
    console = make_console()
    with tempfile.TemporaryDirectory(prefix="log-benchmark-") as folder:
        file = Path(folder, "onednn.log")
        written_ms = write_log(file, lines=lines, problems=problems)
        size = file.stat().st_size / MEGABYTE
        console.print(f"{lines:,} executions of {problems:,} problems: {size:,.0f} MB")
        options_of_recipe = {"file": str(file)}
        variant = Variant(
            "log", "", f"{RECIPES}.log", allocator="system", options=options_of_recipe
        )
        [run] = runs_alone(variant, STANDARD)
    findings = [
        Finding("reading, time", run.seconds, f"{run.seconds:.1f} s", at_most=12),
        Finding("reading, peak memory", run.peak_rss_mb, f"{run.peak_rss_mb:.0f} MB", at_most=300),
    ]
    workload = {"lines": lines, "problems": problems}
    put_out(findings, "log", workload, with_targets=lines == LINES, json_file=options.json)
    read = run.details
    if not math.isclose(read["total_ms"], written_ms, rel_tol=1e-12) or read["not_understood"]:
        print_line(console, f"error: {written_ms} ms were written, but the reader returned {read}")
        return OUR_BUG
    return FINISHED


def bench_metric(options: MetricOptions) -> int:
    """Run `metric`; return the exit code."""
    images, found = options.images, options.found
    console = make_console()

    def measured(library: str, count: int) -> Run:
        console.print(f"{library}, {count:,} images, {count * found:,} boxes …")
        return measured_metric(library, images=count, found=found)

    tenth = max(1, images // 10)
    whole = measured("faster-coco-eval", images)
    # A tenth only: pycocotools takes about 40 times as long and 17 times the memory.
    ours, reference = measured("faster-coco-eval", tenth), measured("pycocotools", tenth)
    difference = largest_difference(list(ours.details.values()), list(reference.details.values()))
    peak_gb = whole.peak_rss_mb / 1000
    faster = reference.seconds / ours.seconds
    compared = f"{tenth:,} images: largest difference from pycocotools, all numbers and classes"
    findings = [
        Finding(f"{images:,} images, time on one core", whole.seconds, f"{whole.seconds:.1f} s",
                at_most=90),
        Finding("peak memory of the process", peak_gb, f"{peak_gb:.2f} GB", at_most=4),
        Finding(compared, difference, f"{difference:.1e}", at_most=1e-9),
        Finding(f"{tenth:,} images: times as fast as pycocotools", faster, f"{faster:.1f}"),
        Finding(
            f"{tenth:,} images: peak memory, ours and pycocotools'",
            ours.peak_rss_mb / reference.peak_rss_mb,
            f"{ours.peak_rss_mb:,.0f} MB, {reference.peak_rss_mb:,.0f} MB",
        ),
    ]  # fmt: skip
    workload = {"images": images, "found": found}
    standard = (images, found) == (VALIDATION_IMAGES, FOUND)
    put_out(findings, "metric", workload, with_targets=standard, json_file=options.json)
    return FINISHED


def measured_metric(library: str, *, images: int, found: int) -> Run:
    """Compute the metric by one library, in a new process on one core.

    Raises:
        WorkerDiedError: The process ended by itself.
    """
    chosen: dict[str, str | int] = {"library": library, "found": found}
    variant = Variant(library, "", f"{RECIPES}.metric", allocator="system", options=chosen)
    [run] = runs_alone(variant, Workload(images=images))
    return run


def largest_difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the largest difference of two lists; NaN if only one value is measured."""
    # A number is NaN if no true box counts for it.
    measured = ~(np.isnan(ours) & np.isnan(theirs))
    return float(np.abs(np.subtract(ours, theirs))[measured].max(initial=0.0))


SINGLE_BENCHMARKS: tuple[tuple[str, str, str, type[Any], Callable[[Any], int]], ...] = (
    (
        "checkpoint",
        "saving checkpoints during training",
        CHECKPOINT_ABOUT,
        CheckpointOptions,
        bench_checkpoint,
    ),
    (
        "index",
        "converting annotations of OpenImages' size and opening the index",
        INDEX_ABOUT,
        IndexOptions,
        bench_index,
    ),
    ("log", "reading a long oneDNN log", LOG_ABOUT, LogOptions, bench_log),
    (
        "metric",
        "COCO's metric on a split of OpenImages' size, compared with pycocotools on a tenth",
        METRIC_ABOUT,
        MetricOptions,
        bench_metric,
    ),
)
"""Name, summary, explanation, options and function of each command."""
