"""Commands that turn annotations into other files: into an index, and into two splits."""

import argparse
import json
import resource
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console

from common.cli import add_command, number_that
from common.console import MEGABYTE, clock, make_console, progress_in_bytes
from common.errors import InputError, printable
from common.files import read_bytes, require_free_outputs, write_whole
from data.annotations import SPLITS, SplitName, known_trees
from data.coco_json import read_annotations
from data.index import find_or_make_index, is_index, open_index, stamp_of, write_index
from data.openimages.export import write_coco_json

CONVERT = """Turn annotations into an index: columns that are mapped into memory, and not read.

Training makes the index of its JSON by itself, at its first start. This command makes it
beforehand, and makes MLPerf's JSON from OpenImages' CSV files.

  python -m data convert /data/coco                     both splits of a data set's folder
  python -m data convert labels.json                    beside it, in labels.json.index/
  python -m data convert labels.json --out labels       anywhere; give it as data.train_annotations
  python -m data convert oidv6-train-annotations-bbox.csv \\
      --class-descriptions class-descriptions-boxable.csv --images train/data \\
      --out train/labels/openimages-mlperf.json         MLPerf's 264 classes, then its index
"""

SPLIT = """Split annotations: most images to train on, the others to evaluate on.

Takes the COCO-format JSON that a labelling tool exports, and writes DIR/train.json and
DIR/validation.json. Images stay where they are, and the JSON as it is.

  python -m data split my-photos/annotations/instances_default.json --out my-photos
  python -m data split result.json --out splits --validation 0.1 --seed 7

Images are dealt out at random, stratified: each class gets its share of the images on both sides,
and a class that two images show has one on each, as far as the sides' sizes allow (iterative
stratification, Sechidis et al. 2011).

Photos that are nearly alike, such as frames of one video, should all be on one side, or the mAP
promises too much: a random split does not see to that.
"""


def add_convert(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `convert`."""
    parser = add_command(commands, "convert", about=CONVERT)
    parser.set_defaults(run=run_convert)
    parser.add_argument(
        "source",
        type=Path,
        metavar="SOURCE",
        help="COCO-format JSON, a folder with COCO's or MLPerf's tree, or OpenImages' CSV of boxes",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="PATH",
        help="of a JSON: the index's folder (default: SOURCE.index/). Of a CSV: the JSON to write",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what is at --out")
    csv = parser.add_argument_group("of a CSV of boxes")
    csv.add_argument(
        "--class-descriptions",
        type=Path,
        metavar="CSV",
        help="class-descriptions-boxable.csv: which label has which name",
    )
    csv.add_argument(
        "--images", type=Path, metavar="DIR", help="folder of the images ID.jpg, for their sizes"
    )
    csv.add_argument(
        "--classes",
        nargs="+",
        default=["mlperf"],
        metavar="NAME",
        help="mlperf (its 264 classes, the default), all (601), names, or a text file of names",
    )
    csv.add_argument(
        "--image-ids",
        type=Path,
        metavar="CSV",
        help="take only images of this list; with all classes also those without boxes",
    )
    csv.add_argument(
        "--skip-missing-images",
        action="store_true",
        help="leave images out that are not in --images, in place of stopping",
    )


def run_convert(
    source: Path,
    *,
    out: Path | None,
    overwrite: bool,
    class_descriptions: Path | None,
    images: Path | None,
    classes: list[str],
    image_ids: Path | None,
    skip_missing_images: bool,
) -> int:
    """Run the command; returns the exit code."""
    console = make_console()
    if source.suffix.lower() == ".csv":
        needed = {"--class-descriptions": class_descriptions, "--images": images, "--out": out}
        for option, value in needed.items():
            if value is None:
                raise InputError(f"{option}: missing; a CSV of boxes needs it, see --help")
        assert class_descriptions and images and out
        summary = write_coco_json(
            source,
            class_descriptions,
            classes=classes,
            images=images,
            out=out,
            image_ids=image_ids,
            skip_missing_images=skip_missing_images,
            overwrite=overwrite,
            console=console,
        )
        if summary.images_left_out:
            left_out = f"{summary.images_left_out:,} images are not in {images}"
            console.print(f"{left_out} and were left out")
        source, out = out, None
    else:
        csv_options: dict[str, object] = {
            "--class-descriptions": class_descriptions,
            "--images": images,
            "--image-ids": image_ids,
            "--skip-missing-images": skip_missing_images or None,
            "--classes": classes if classes != ["mlperf"] else None,
        }
        for option, given in csv_options.items():
            if given is not None:
                raise InputError(f"{option}: only for a CSV of boxes, and {source} is none")
    if source.is_dir() and out is not None:
        raise InputError(f"--out: {source} is a folder of splits; convert one JSON at once")
    for file in files_of_splits(source) if source.is_dir() else [source]:
        convert_json(file, out=out, overwrite=overwrite, console=console)
    return 0


def files_of_splits(root: Path) -> list[Path]:
    """Return the JSON files in COCO's or MLPerf's tree; raise InputError if there is none."""
    files = [tree.annotations for split in SPLITS for tree in known_trees(root, split).values()]
    present = [file for file in files if file.is_file()]
    if not present:
        raise InputError(
            f"{root}: holds no annotations; looked for {', '.join(map(str, files))}; "
            "give a JSON file itself"
        )
    return present


def convert_json(path: Path, *, out: Path | None, overwrite: bool, console: Console) -> None:
    """Make the index of a COCO-format JSON, beside it or at `out`, and describe it."""
    began = time.monotonic()
    if out is None:
        index = find_or_make_index(path, console=console)
        if index.folder is None:
            raise InputError(f"{path.parent}: cannot be written; name a folder with --out")
        folder, was_made, annotations = index.folder, index.was_made, index.annotations
    else:
        if out.exists() and not (overwrite and is_index(out)):
            advice = "add --overwrite, or name another" if is_index(out) else "name another folder"
            raise InputError(f"{out}: is there already; {advice}")
        size = stamp_of(path).size
        with progress_in_bytes(console, f"reading {path.name}", total=size) as advance:
            annotations = read_annotations(path, advance=lambda done: advance(done, ""))
        try:
            if out.exists():
                shutil.rmtree(out)
            write_index(out, annotations, made_from=str(path.resolve()))
        except OSError as error:
            raise InputError(f"{out}: cannot be written: {error.strerror}") from error
        folder, was_made, annotations = out, True, open_index(out)
    how = f"made in {clock(time.monotonic() - began)}" if was_made else "up to date"
    megabytes = sum(file.stat().st_size for file in folder.iterdir()) / MEGABYTE
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    crowds = int(annotations.box_is_crowd.sum())
    console.print(
        f"{path}: {len(annotations):,} images, {len(annotations.boxes):,} boxes "
        f"({crowds:,} of crowds or groups), {len(annotations.category_ids)} categories",
        soft_wrap=True,
    )
    console.print(
        f"  index  {folder}, {megabytes:,.1f} MB, {how}, {memory:,.0f} MB of memory at the most",
        soft_wrap=True,
    )


def add_split(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `split`."""
    parser = add_command(commands, "split", about=SPLIT)
    parser.set_defaults(run=run_split)
    parser.add_argument("annotations", type=Path, metavar="JSON", help="in COCO's format")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="where both files are written"
    )
    parser.add_argument(
        "--validation",
        type=share,
        default=0.2,
        metavar="SHARE",
        help="of the images to evaluate on (default: 0.2)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="another one deals anew (default: 0)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace files that are there")


share = partial(number_that, lambda x: 0 < x < 1, "a share between 0 and 1")
Content = dict[str, Any]  # A COCO-format JSON, parsed
MOST_BYTES = 2_000_000_000
"""Of annotations to split: parsed they take about eight times as much memory."""


def run_split(
    annotations: Path, *, out: Path, validation: float, seed: int, overwrite: bool
) -> int:
    """Write both splits and print what is in them; returns the exit code."""
    files = {split: out / f"{split}.json" for split in SPLITS}
    if annotations.resolve() in [file.resolve() for file in files.values()]:
        raise InputError(f"{annotations}: would be replaced by its own part; name another --out")
    require_free_outputs(list(files.values()), overwrite=overwrite)
    read_annotations(annotations)  # checks the fields that training reads
    try:
        content: Content = json.loads(read_bytes(annotations, most_bytes=MOST_BYTES))
    except OSError as error:
        raise InputError(f"{annotations}: cannot be read: {error.strerror}") from error
    except RecursionError as error:
        problem = "not JSON that can be read: it is nested too deep"
        raise InputError(f"{annotations}: {problem}") from error

    # Each side gets one image at least; images, boxes and other fields keep their order.
    ids = [image["id"] for image in content["images"]]
    if len(ids) < 2:
        raise InputError(f"{annotations}: images: {len(ids)}; two sides need two at least")
    count = min(max(round(len(ids) * validation), 1), len(ids) - 1)
    classes: dict[int, set[int]] = {image_id: set() for image_id in ids}
    for box in content["annotations"]:
        classes[box["image_id"]].add(box["category_id"])
    held_out = {ids[row] for row in stratified_rows(list(classes.values()), count=count, seed=seed)}
    console = make_console()
    splits: dict[SplitName, Content] = {}
    for split, file in files.items():
        is_validation = split == "validation"
        images = [
            image for image in content["images"] if (image["id"] in held_out) is is_validation
        ]
        boxes = [
            box for box in content["annotations"] if (box["image_id"] in held_out) is is_validation
        ]
        splits[split] = content | {"images": images, "annotations": boxes}
        write_whole(file, json.dumps(splits[split], ensure_ascii=False))
        console.print(
            f"{split:<10}  {len(images):,} images, {len(boxes):,} boxes: {file}", soft_wrap=True
        )
    for note in lacking_notes(Counter(chain.from_iterable(classes.values())), splits):
        console.print(f"note: {note}", soft_wrap=True, markup=False)
    return 0


def lacking_notes(
    images_of_class: Mapping[int, int], splits: Mapping[SplitName, Content]
) -> Iterator[str]:
    """Yield a line for each reason why classes, shown by so many images, lack boxes."""

    def lacking(content: Content, *, images: int) -> str:
        """Return the first names of classes without a box that 0, 1 or more (2) images show."""
        used = {box["category_id"] for box in content["annotations"]}
        names = [
            category["name"]
            for category in content["categories"]
            if category["id"] not in used and min(images_of_class[category["id"]], 2) == images
        ]
        more = f" and {len(names) - 5} more" if names[5:] else ""
        return printable(", ".join(names[:5]) + more)

    unused = lacking(splits["train"], images=0)
    if unused:
        yield f"no box at all: {unused}; leave these classes out, or label photos of them"
    for split, content in splits.items():
        once = lacking(content, images=1)
        if once:
            yield f"no box in {split}: {once}; one image shows each: label more photos"
        others = lacking(content, images=2)
        if others:
            advice = "another --validation or --seed may do better, more photos do"
            yield f"no box in {split}: {others}; {advice}"


SIDES = (TRAIN, VALIDATION) = (0, 1)


def stratified_rows(classes: Sequence[Set[int]], *, count: int, seed: int) -> set[int]:
    """Return the rows of `count` images to evaluate on, given the classes that each image shows.

    The rarest class among the remaining images is dealt out first, since later there is no choice
    (iterative stratification, Sechidis et al. 2011). The same seed gives the same rows.
    """
    random = Random(seed)
    rows = random.sample(range(len(classes)), len(classes))
    rows_of: dict[int, list[int]] = {}
    for row in rows:
        for category in sorted(classes[row]):
            rows_of.setdefault(category, []).append(row)
    wanted = {}  # images of a class on each side
    for category, of_class in rows_of.items():
        in_validation = len(of_class) * (count / len(classes))
        if len(of_class) >= len(SIDES):
            in_validation = min(max(in_validation, 1.0), len(of_class) - 1.0)
        wanted[category] = [len(of_class) - in_validation, in_validation]
    remaining = {
        category: len(rows_of[category])
        for category in random.sample(sorted(rows_of), len(rows_of))
    }
    free = [len(classes) - count, count]
    side_of: dict[int, int] = {}
    while remaining:
        # Of equally rare classes the first one, which is at random.
        rarest = min(remaining, key=remaining.__getitem__)
        # Training usually gets the first: those that show most of what validation lacks come last.
        of_class = [row for row in rows_of[rarest] if row not in side_of]
        lacking = [
            sum(wanted[category][VALIDATION] > 0 for category in classes[row]) for row in of_class
        ]
        for _, row in sorted(zip(lacking, of_class, strict=True), key=itemgetter(0)):
            # The side that lacks most of the class, then the one with more space, then either.
            side = max(
                [side for side in SIDES if free[side]],
                key=lambda side: (wanted[rarest][side], free[side], random.random()),
            )
            side_of[row] = side
            free[side] -= 1
            for category in classes[row]:
                wanted[category][side] -= 1
                remaining[category] -= 1
        remaining = {category: images for category, images in remaining.items() if images}
    without_classes = [row for row in rows if row not in side_of]
    held_out = {row for row, side in side_of.items() if side == VALIDATION}
    return held_out | set(without_classes[: free[VALIDATION]])
