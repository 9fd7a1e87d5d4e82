"""Annotations of any size, with the fields of MLPerf's export, for measuring what size costs.

TODO-DOC A split of any size and what a detector finds in it, for measuring what size costs.

The numbers are those of OpenImages' validation split as MLPerf uses it: 24,781 images of 1024×768
pixels, 264 classes of which few have most boxes, 7.3 true boxes an image (Kuznetsova et al., 2020,
The Open Images Dataset V4, table 5: 303,980 boxes in 41,620 images), and 300 boxes found in each,
the most that the model's postprocessing keeps.

TODO-DOC A oneDNN log of any length, as a long run with time stamps would write it.

TODO-DOC What annotations of OpenImages' size cost: converting them once, opening them in every rank.

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
from collections.abc import Iterator
from itertools import cycle, islice
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from common.cli import add_json_option, positive
from common.console import MEGABYTE, Advance, make_console, progress, significant
from common.errors import FINISHED, OUR_BUG, InputError
from common.files import require_free_json
from common.machine import private_mb
from data.annotations import Annotations
from profiling.bench.report import put_out
from profiling.bench.results import Finding
from retinanet.evaluation.detections import SplitDetections

CLASSES = 264
WIDTH, HEIGHT = 1024, 768
GROUPS = 0.05
"""Share of boxes around several objects."""
IMAGES_AT_ONCE = 20_000


def write_annotations(path: Path, *, images: int, boxes: int, advance: Advance) -> None:
    """Write COCO-format JSON of random boxes, spread over the images at random.

    Args:
        path: The file.
        images: How many images.
        boxes: How many boxes in all.
        advance: Called as `advance(images done, "")`.
    """
    random = np.random.default_rng(0)
    boxes_of_image = np.bincount(random.integers(images, size=boxes), minlength=images)
    categories = [
        {"id": index, "name": f"class {index}", "supercategory": None} for index in range(CLASSES)
    ]
    with path.open("w", encoding="utf-8") as file:
        file.write(f'{{"info": {{}}, "licenses": [], "categories": {json.dumps(categories)}')
        write_list(file, "images", (image_texts(part) for part in parts(images)))
        blocks = box_blocks(boxes_of_image, random=random, advance=advance)
        write_list(file, "annotations", blocks)
        file.write("}\n")


def box_blocks(
    boxes_of_image: NDArray[np.int64], *, random: np.random.Generator, advance: Advance
) -> Iterator[list[str]]:
    """The entries of `annotations`, image by image, some at a time."""
    first = 1
    for part in parts(len(boxes_of_image)):
        image_ids = np.repeat(np.array(part) + 1, boxes_of_image[part.start : part.stop])
        yield box_texts(image_ids, first=first, random=random)
        first += len(image_ids)
        advance(part.stop, "")


def parts(images: int) -> Iterator[range]:
    """Ranges of images, some at a time."""
    for start in range(0, images, IMAGES_AT_ONCE):
        yield range(start, min(images, start + IMAGES_AT_ONCE))


def write_list(file: TextIO, name: str, blocks: Iterator[list[str]]) -> None:
    """A member of the object that holds the entries of all blocks."""
    file.write(f', "{name}": [')
    separator = ""
    for texts in blocks:
        if texts:
            file.write(separator + ", ".join(texts))
            separator = ", "
    file.write("]")


def image_texts(images: range) -> list[str]:
    """Entries of `images`, as JSON."""
    return [
        f'{{"id": {index + 1}, "file_name": "{index * 2654435761:016x}.jpg", "height": {HEIGHT}, '
        f'"width": {WIDTH}, "license": null, "coco_url": null}}'
        for index in images
    ]


def box_texts(
    image_ids: NDArray[np.int64], *, first: int, random: np.random.Generator
) -> list[str]:
    """Entries of `annotations` from id `first` on, as JSON."""
    count = len(image_ids)
    corners = random.random((count, 2)) * (0.6 * WIDTH, 0.6 * HEIGHT)
    sides = random.random((count, 2)) * (0.4 * WIDTH, 0.4 * HEIGHT) + 1
    columns = zip(
        image_ids.tolist(),
        random.integers(CLASSES, size=count).tolist(),
        corners.tolist(),
        sides.tolist(),
        (random.random(count) < GROUPS).tolist(),
        strict=True,
    )
    return [
        f'{{"id": {number}, "image_id": {image}, "category_id": {category}, '
        f'"bbox": [{x!r}, {y!r}, {w!r}, {h!r}], "area": {w * h!r}, "iscrowd": {int(group)}, '
        f'"IsOccluded": false, "IsInside": false, "IsDepiction": false, "IsTruncated": true, '
        f'"IsGroupOf": {"true" if group else "false"}}}'
        for number, (image, category, (x, y), (w, h), group) in enumerate(columns, start=first)
    ]


BOXES_OF_IMAGE = 7.3
DETECTIONS_WIDTH, DETECTIONS_HEIGHT = 1024, 768
FOUND_OF_A_BOX = 3
"""Boxes that a detector finds at each true one, as far as there is room for them."""


def generated_truth(*, images: int, random: np.random.Generator) -> Annotations:
    """Images with random boxes: at least one, 7.3 in the mean."""
    counts = random.geometric(1 / BOXES_OF_IMAGE, images)
    boxes = random_boxes(int(counts.sum()), random)
    return Annotations(
        category_ids=np.arange(1, CLASSES + 1),
        category_names=tuple(f"class {number}" for number in range(1, CLASSES + 1)),
        image_ids=np.arange(1, images + 1),
        file_names=tuple(f"{number:016x}.jpg" for number in range(images)),
        widths=np.full(images, DETECTIONS_WIDTH, np.int32),
        heights=np.full(images, DETECTIONS_HEIGHT, np.int32),
        box_offsets=np.concatenate([[0], np.cumsum(counts)]),
        boxes=boxes,
        box_category_ids=random_classes(len(boxes), random),
        box_is_crowd=random.random(len(boxes)) < GROUPS,
        box_areas=np.prod(boxes[:, 2:] - boxes[:, :2], axis=1),
        box_ids=np.arange(1, len(boxes) + 1),
    )


def generated_detections(
    truth: Annotations, *, found: int, random: np.random.Generator
) -> SplitDetections:
    """`found` boxes in each image: about three near each true box, the rest anywhere.

    Scores are as a detector's: many low ones, and higher ones where something is.
    """
    parts = [found_in(truth, index, found, random) for index in range(len(truth))]
    boxes, scores, classes = (np.concatenate(column) for column in zip(*parts, strict=True))
    return SplitDetections(
        image_ids=np.repeat(truth.image_ids, found),
        boxes=boxes,
        scores=scores,
        category_ids=classes,
    )


def found_in(
    truth: Annotations, index: int, found: int, random: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
    """Boxes, scores and classes of one image, the best first."""
    rows = np.arange(len(truth.boxes))[truth.boxes_of(index)]
    near = np.repeat(rows, FOUND_OF_A_BOX)[:found]
    sides = np.tile(truth.boxes[near, 2:] - truth.boxes[near, :2], 2)
    shaken = truth.boxes[near] + sides * random.normal(0, 0.1, sides.shape)
    elsewhere = found - len(near)
    classes = truth.box_category_ids[near]
    wrong = random.random(len(near)) < 0.2
    classes = np.where(wrong, random_classes(len(near), random), classes)
    scores = np.concatenate([random.beta(2, 3, len(near)), 0.05 + random.beta(1, 12, elsewhere)])
    order = np.argsort(-scores)
    boxes = np.concatenate([shaken, random_boxes(elsewhere, random)])
    classes = np.concatenate([classes, random_classes(elsewhere, random)])
    return boxes[order].astype(np.float32), scores[order].astype(np.float32), classes[order]


def random_boxes(count: int, random: np.random.Generator) -> NDArray[np.float64]:
    """[count, 4] xyxy in pixels: sides from a fiftieth of the image's to all of it."""
    sides = np.exp(random.uniform(np.log(0.02), 0, (count, 2))) * (
        DETECTIONS_WIDTH,
        DETECTIONS_HEIGHT,
    )
    corners = random.random((count, 2)) * ((DETECTIONS_WIDTH, DETECTIONS_HEIGHT) - sides)
    return np.concatenate([corners, corners + sides], axis=1)


def random_classes(count: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Category ids, the n-th as often as 1/n: a third of all boxes are of the first six."""
    shares = 1 / np.arange(1, CLASSES + 1)
    return random.choice(np.arange(1, CLASSES + 1), count, p=shares / shares.sum())


HEADER = """\
onednn_verbose,v1,info,oneDNN v3.7.1 (commit N/A)
onednn_verbose,v1,info,cpu,runtime:OpenMP,nthr:28
onednn_verbose,v1,info,cpu,isa:Intel AVX-512 with Intel DL Boost and bfloat16 support
"""
DIRECTIONS = ("forward_training", "backward_data", "backward_weights")
FOREIGN_EVERY = 50
"""After so many lines one of another program."""
FIRST_TIME_STAMP = 1_795_230_198_092.0


def write_log(file: Path, *, lines: int, problems: int) -> float:
    """Write `lines` executions of `problems` distinct problems; returns their sum in milliseconds.

    Every second problem is a convolution, every second one the reorder of its weights.
    """
    total = 0.0
    with file.open("w", encoding="ascii") as out:
        out.write(HEADER)
        for number, body in enumerate(islice(cycle(list(bodies(problems))), lines)):
            milliseconds = 0.0625 * (1 + number % 7)  # exact in binary, so that sums are equal
            total += milliseconds
            stamp = f"{FIRST_TIME_STAMP + number / 4:.6f}"
            out.write(f"onednn_verbose,v1,{stamp},primitive,exec,cpu,{body},{milliseconds:g}\n")
            if number % FOREIGN_EVERY == 0:
                out.write(f"epoch 1, step {number}: loss 0.3\n")
    return total


def bodies(problems: int) -> Iterator[str]:
    """What is between the engine and the time, each different."""
    for number in range(problems):
        channels = 16 * (1 + number // 2)
        if number % 2:
            yield (
                "reorder,jit:uni,undef,src:bf16::blocked:acdb::f0 "
                f"dst:bf16::blocked:AcdB16a2b::f0,attr-scratchpad:user,,{channels}x256x3x3"
            )
            continue
        shape = f"mb2_ic256oc{channels}_ih100oh100kh3sh1dh0ph1_iw100ow100kw3sw1dw0pw1"
        yield (
            "convolution,brg_conv_fwd:avx512_core_bf16,"
            f"{DIRECTIONS[number // 2 % 3]},src:bf16::blocked:acdb::f0 "
            "wei:bf16:a:blocked:AcdB16a2b::f0 bia:f32:a:blocked:a::f0 dst:bf16::blocked:acdb::f0,"
            f"attr-scratchpad:user,alg:convolution_direct,{shape}"
        )


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
    from data.loader import training_keys  # loads torch, of which opening must not be the price

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
