"""Command that converts annotations of other formats to COCO's, and these to an index."""

import argparse
import resource
import shutil
import time
from pathlib import Path

from rich.console import Console

from common.cli import add_command
from common.console import MEGABYTE, clock, make_console, progress_in_bytes
from common.errors import InputError
from data.annotations import SPLITS, known_trees
from data.coco_json import read_annotations
from data.index import find_or_make_index, is_index, open_index, read_stamp, write_index
from data.openimages.export import write_coco_json

CONVERT = """Convert annotations to an index: columns that are memory-mapped instead of parsed.

Training creates the index of its JSON file at its first start. This command creates it beforehand,
and creates MLPerf's JSON file from OpenImages' CSV files.

  python -m data convert /data/coco                     both splits of a data set's folder
  python -m data convert labels.json                    index in labels.json.index/
  python -m data convert labels.json --out labels       index in labels/, for data.train_annotations
  python -m data convert oidv6-train-annotations-bbox.csv \\
      --class-descriptions class-descriptions-boxable.csv --images train/data \\
      --out train/labels/openimages-mlperf.json         MLPerf's 264 classes, then its index
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
        help="JSON source: folder of the index (default: SOURCE.index/). CSV source: JSON to write",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing --out")
    csv = parser.add_argument_group("options for a CSV of boxes")
    csv.add_argument(
        "--class-descriptions",
        type=Path,
        metavar="CSV",
        help="class-descriptions-boxable.csv: the names of the labels",
    )
    csv.add_argument(
        "--images",
        type=Path,
        metavar="DIR",
        help="folder of the images ID.jpg, to read their sizes",
    )
    csv.add_argument(
        "--classes",
        nargs="+",
        default=["mlperf"],
        metavar="NAME",
        help="mlperf (264 classes, the default), all (601), names, or a text file of names",
    )
    csv.add_argument(
        "--image-ids",
        type=Path,
        metavar="CSV",
        help="use only images of this list; with all classes also those without boxes",
    )
    csv.add_argument(
        "--skip-missing-images",
        action="store_true",
        help="skip images that are not in --images instead of stopping",
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
    """Run `convert` and return the exit code."""
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
            console.print(f"{summary.images_left_out:,} images are not in {images}: skipped")
        source, out = out, None
    else:
        csv_options: dict[str, object] = {
            "--class-descriptions": class_descriptions,
            "--images": images,
            "--image-ids": image_ids,
            "--skip-missing-images": skip_missing_images or None,
            "--classes": classes if classes != ["mlperf"] else None,
        }
        for option, setting in csv_options.items():
            if setting is not None:
                raise InputError(f"{option}: only for a CSV of boxes; {source} is not a .csv file")
    if source.is_dir() and out is not None:
        raise InputError(f"--out: {source} is a folder of splits; convert each JSON separately")
    for file in files_of_splits(source) if source.is_dir() else [source]:
        convert_json(file, out=out, overwrite=overwrite, console=console)
    return 0


def files_of_splits(root: Path) -> list[Path]:
    """Return the JSON files in COCO's or MLPerf's tree; raise InputError if there is none."""
    files = [tree.annotations for split in SPLITS for tree in known_trees(root, split).values()]
    present = [file for file in files if file.is_file()]
    if not present:
        raise InputError(
            f"{root}: contains no annotations; looked for {', '.join(map(str, files))}; "
            "give the path of a JSON file"
        )
    return present


def convert_json(path: Path, *, out: Path | None, overwrite: bool, console: Console) -> None:
    """Make the index of a COCO-format JSON, beside it or at `out`, and describe it."""
    began = time.monotonic()
    if out is None:
        index = find_or_make_index(path, console=console)
        if index.folder is None:
            raise InputError(f"{path.parent}: cannot be written; set a folder with --out")
        folder, was_made, annotations = index.folder, index.was_made, index.annotations
    else:
        if out.exists() and not (overwrite and is_index(out)):
            advice = "add --overwrite, or set another" if is_index(out) else "set another --out"
            raise InputError(f"{out}: already exists; {advice}")
        size = read_stamp(path).size
        with progress_in_bytes(console, f"reading {path.name}", total=size) as advance:
            annotations = read_annotations(path, advance=lambda done: advance(done, ""))
        try:
            if out.exists():
                # The old index is kept until the JSON has been read without a fault.
                shutil.rmtree(out)
            write_index(out, annotations, made_from=str(path.resolve()))
        except OSError as error:
            raise InputError(f"{out}: cannot be written: {error.strerror}") from error
        folder, was_made, annotations = out, True, open_index(out)
    how = f"made in {clock(time.monotonic() - began)}" if was_made else "up to date"
    megabytes = sum(file.stat().st_size for file in folder.iterdir()) / MEGABYTE
    # Linux has ru_maxrss in KiB (macOS in bytes).
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    crowds = int(annotations.box_is_crowd.sum())
    console.print(
        f"{path}: {len(annotations):,} images, {len(annotations.boxes):,} boxes "
        f"({crowds:,} of crowds or groups), {len(annotations.category_ids)} categories",
        soft_wrap=True,
    )
    console.print(
        f"  index  {folder}, {megabytes:,.1f} MB, {how}, peak memory {memory:,.0f} MB",
        soft_wrap=True,
    )
