"""Turn annotations into an index: columns that are mapped into memory, and not read.

Training makes the index of its JSON by itself, at its first start. This command makes it
beforehand, and makes MLPerf's JSON from OpenImages' CSV files.

  python -m data convert /data/coco                     both splits of a data set's folder
  python -m data convert labels.json                    beside it, in labels.json.index/
  python -m data convert labels.json --out labels       anywhere; give it as data.train_annotations
  python -m data convert oidv6-train-annotations-bbox.csv \\
      --class-descriptions class-descriptions-boxable.csv --images train/data \\
      --out train/labels/openimages-mlperf.json         MLPerf's 264 classes, then its index
"""

import argparse
import resource
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from common.console import MEGABYTE, clock, make_console, progress_in_bytes
from common.errors import InputError
from data.annotations import Annotations
from data.coco_json import read_annotations
from data.index import find_or_make_index, is_index, open_index, stamp_of, write_index
from data.openimages.export import write_coco_json
from data.sources import SPLITS, known_trees


def add_convert(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `convert`."""
    parser = commands.add_parser(
        "convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
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


def run(
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
    """Run the command; returns the exit code.

    Raises:
        InputError: A file is missing or not what it should be, or an option does not fit it.
    """
    console = make_console()
    if source.suffix.lower() == ".csv":
        needed = {"--class-descriptions": class_descriptions, "--images": images, "--out": out}
        require_given(needed, "missing; a CSV of boxes needs it, see --help")
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
        return convert_json(out, out=None, overwrite=False, console=console)
    of_csv = {
        "--class-descriptions": class_descriptions,
        "--images": images,
        "--image-ids": image_ids,
        "--skip-missing-images": skip_missing_images or None,
        "--classes": classes if classes != ["mlperf"] else None,
    }
    refuse_given(of_csv, f"only for a CSV of boxes, and {source} is none")
    if source.is_dir():
        refuse_given({"--out": out}, f"{source} is a folder of splits; convert one JSON at once")
        return convert_folder(source, console=console)
    return convert_json(source, out=out, overwrite=overwrite, console=console)


def require_given(options: Mapping[str, object], problem: str) -> None:
    """Raise InputError about the first option that was not given."""
    for option, value in options.items():
        if value is None:
            raise InputError(f"{option}: {problem}")


def refuse_given(options: Mapping[str, object], problem: str) -> None:
    """Raise InputError about the first option that was given."""
    for option, value in options.items():
        if value is not None:
            raise InputError(f"{option}: {problem}")


def convert_json(path: Path, *, out: Path | None, overwrite: bool, console: Console) -> int:
    """Make the index of a COCO-format JSON, beside it or at `out`; returns the exit code.

    Raises:
        InputError: The file is not COCO's, or `out` is there already.
    """
    began = time.monotonic()
    if out is None:
        found = find_or_make_index(path, console=console)
        if found.folder is None:
            raise InputError(f"{path.parent}: cannot be written; name a folder with --out")
        how = f"made in {clock(time.monotonic() - began)}" if found.was_made else "up to date"
        describe(found.annotations, path, found.folder, how=how, console=console)
        return 0
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
    how = f"made in {clock(time.monotonic() - began)}"
    describe(open_index(out), path, out, how=how, console=console)
    return 0


def convert_folder(root: Path, *, console: Console) -> int:
    """Make the indexes of a data set's splits, those that are there; returns the exit code.

    Raises:
        InputError: There is no JSON where COCO's and MLPerf's trees have theirs.
    """
    trees = [known_trees(root, split).values() for split in SPLITS]
    files = [tree.annotations for of_split in trees for tree in of_split]
    there = [file for file in files if file.is_file()]
    if not there:
        raise InputError(
            f"{root}: holds no annotations; looked for {', '.join(map(str, files))}; "
            "give a JSON file itself"
        )
    for file in there:
        convert_json(file, out=None, overwrite=False, console=console)
    return 0


def describe(
    annotations: Annotations, source: Path, folder: Path, *, how: str, console: Console
) -> None:
    """Two lines: what is in the index, and what it took."""
    size = sum(file.stat().st_size for file in folder.iterdir()) / MEGABYTE
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    crowds = int(annotations.box_is_crowd.sum())
    console.print(
        f"{source}: {len(annotations):,} images, {len(annotations.boxes):,} boxes "
        f"({crowds:,} of crowds or groups), {len(annotations.category_ids)} categories",
        soft_wrap=True,
    )
    console.print(
        f"  index  {folder}, {size:,.1f} MB, {how}, {memory:,.0f} MB of memory at the most",
        soft_wrap=True,
    )
