"""Command that converts annotations of other formats to COCO's, and these to an index."""

import argparse
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from common.cli import add_command
from common.console import MEGABYTE, clock, make_console, progress_in_bytes
from common.errors import InputError
from common.files import or_refused
from common.options import flag, included, option, overwrite_option
from common.outputs import require_no_input, require_outside
from common.walk import ALLOW_OUTSIDE, real_path
from data.annotations import SPLITS, known_trees
from data.coco_json import read_annotations
from data.formats.coco import read_coco
from data.formats.convert import convert_labels
from data.formats.labels import SKIP_BAD, LabelOptions, Reader, named_classes
from data.formats.voc import read_voc
from data.formats.yolo import read_yolo
from data.index import (
    find_or_make_index,
    is_index,
    open_index,
    read_stamp,
    remove_index,
    write_index,
)
from data.openimages.export import write_coco_json

FOR_CSV = "options for a CSV of boxes"
READERS: dict[str, Reader] = {"yolo": read_yolo, "voc": read_voc, "coco": read_coco}

CONVERT = """Convert labels of other programs to COCO's format, and these to what training opens.

  retinanet data convert my-photos/data.yaml --from yolo --out converted
  retinanet data convert VOCdevkit/VOC2012 --from voc --out converted
  retinanet data convert my-export --from coco --classes Cat Dog --out converted

With --from, the labels of each split become DIR/train.json, DIR/validation.json, …, and what
`data verify` finds in them is printed. All faulty labels are printed; they end the command, unless
they are skipped.

  yolo  data.yaml, or a folder with it, classes.txt or obj.names
  voc   a folder with Annotations/, or with XML files beside the images
  coco  a JSON file, or a folder with one for each split, wherever the images are

Without --from, SOURCE is COCO-format JSON, a folder with COCO's or MLPerf's tree, or OpenImages'
CSV of boxes, and an index is made: columns that are memory-mapped instead of parsed. Training
creates the index of its JSON file at its first start. This command creates it beforehand, and
creates MLPerf's JSON file from OpenImages' CSV files.

  retinanet data convert /data/coco                     both splits of a data set's folder
  retinanet data convert labels.json                    index in labels.json.index/
  retinanet data convert labels.json --out labels       index in labels/, for data.train_annotations
  retinanet data convert oidv6-train-annotations-bbox.csv \\
      --class-descriptions class-descriptions-boxable.csv --images train/data \\
      --out train/labels/openimages-mlperf.json         MLPerf's 264 classes, then its index
"""


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """The options of `retinanet data convert`."""

    labels: LabelOptions = included(LabelOptions)
    from_format: str | None = option(
        "format of the labels, to write COCO-format JSON to the folder --out",
        default=None,
        name="--from",
        choices=tuple(READERS),
    )
    out: Path | None = option(
        "with --from the folder to write; of a JSON the index (default: SOURCE.index/); of a CSV "
        "the JSON",
        default=None,
        metavar="PATH",
    )
    overwrite: bool = overwrite_option("replace an existing --out")
    classes: list[str] | None = option(
        "convert only boxes of these classes: names, or a text file of names; for a CSV also "
        "mlperf (264 classes, the default) and all (601)",
        default=None,
        nargs="+",
        metavar="NAME",
    )
    merge_classes: list[str] | None = option(
        "with --from: boxes of the class OLD become boxes of NEW, such as chair=Chair",
        default=None,
        nargs="+",
        metavar="OLD=NEW",
    )
    copy_images: bool = flag("with --from: copy the images to the folder --out too")
    class_descriptions: Path | None = option(
        "class-descriptions-boxable.csv: the names of the labels",
        default=None,
        metavar="CSV",
        group=FOR_CSV,
    )
    image_ids: Path | None = option(
        "use only images of this list; with all classes also those without boxes",
        default=None,
        metavar="CSV",
        group=FOR_CSV,
    )


def add_convert(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `convert`."""
    add_command(commands, "convert", about=CONVERT, options=ConvertOptions, run=run_convert)


def run_convert(options: ConvertOptions) -> int:
    """Run `convert` and return the exit code."""
    console, labels, source = make_console(), options.labels, options.labels.source
    is_csv = options.from_format is None and source.suffix.lower() == ".csv"
    require_fitting(options, is_csv=is_csv)
    if options.from_format is not None:
        if options.out is None:
            raise InputError("--out: missing; --from needs a folder to write")
        read = READERS[options.from_format]
        return convert_labels(
            source,
            lambda check_names: read(labels, check_names, console),
            out=options.out,
            classes=named_classes(options.classes or []),
            merge=options.merge_classes or [],
            copy_images=options.copy_images,
            overwrite=options.overwrite,
            console=console,
        )
    out = options.out
    if is_csv:
        convert_csv(options, console=console)
        assert out is not None
        source, out = out, None
    if source.is_dir() and out is not None:
        raise InputError(f"--out: {source} is a folder of splits; convert each JSON separately")
    for file in files_of_splits(source) if source.is_dir() else [source]:
        convert_json(file, out=out, overwrite=options.overwrite, console=console)
    return 0


def require_fitting(options: ConvertOptions, *, is_csv: bool) -> None:
    """Raise InputError about the first option that is not for this kind of source."""
    labels = options.labels
    csv_only = {
        "--class-descriptions": options.class_descriptions,
        "--image-ids": options.image_ids,
    }
    from_only = {
        SKIP_BAD: labels.skip_bad_labels,
        "--merge-classes": options.merge_classes,
        "--copy-images": options.copy_images,
        ALLOW_OUTSIDE: labels.allow_outside,
    }
    either = {
        "--images": labels.images,
        "--classes": options.classes,
        "--skip-missing-images": labels.skip_missing_images,
    }
    if not is_csv:
        refuse_options(csv_only, f"only for a CSV of boxes; {labels.source} is not a .csv file")
    if options.from_format is None:
        refuse_options(from_only, "only with --from")
        if not is_csv:
            reason = f"only with --from, or for a CSV of boxes; {labels.source} is not one"
            refuse_options(either, reason)


def convert_csv(options: ConvertOptions, *, console: Console) -> None:
    """Write the boxes of a CSV as COCO-format JSON to `--out`."""
    descriptions, images, out = options.class_descriptions, options.labels.images, options.out
    needed = {"--class-descriptions": descriptions, "--images": images, "--out": out}
    for name, value in needed.items():
        if value is None:
            raise InputError(f"{name}: missing; a CSV of boxes needs it, see --help")
    assert descriptions and images and out
    lists = [file for file in (options.labels.source, descriptions, options.image_ids) if file]
    require_no_input([out], lists)
    left_out = write_coco_json(
        options.labels.source,
        descriptions,
        classes=options.classes or ["mlperf"],
        images=images,
        out=out,
        image_ids=options.image_ids,
        skip_missing_images=options.labels.skip_missing_images,
        overwrite=options.overwrite,
        console=console,
    )
    if left_out:
        console.print(f"{left_out:,} images are not in {images}: skipped")


def refuse_options(options: Mapping[str, object], reason: str) -> None:
    """Raise InputError about the first option that was given."""
    for name, value in options.items():
        if value:
            raise InputError(f"{name}: {reason}")


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
        require_outside(path, out, advice="set another --out")
        if out.exists() and not (overwrite and is_index(out)):
            advice = "add --overwrite, or set another" if is_index(out) else "set another --out"
            raise InputError(f"{out}: already exists; {advice}")
        size = read_stamp(path).size
        with progress_in_bytes(console, f"reading {path.name}", total=size) as advance:
            annotations = read_annotations(path, advance=advance)
        with or_refused(out):
            # The old index is kept until the JSON has been read without a fault.
            if not remove_index(out):
                raise InputError(
                    f"{out}: is a link, or holds files that are not of an index; set another --out"
                )
            write_index(out, annotations, made_from=str(real_path(path)))
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
