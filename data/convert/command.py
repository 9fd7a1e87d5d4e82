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
from collections.abc import Mapping
from pathlib import Path

from data.convert.convert import convert_folder, convert_json
from data.openimages.coco_export import write_coco_json
from retinanet.errors import InputError
from retinanet.terminal import make_console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m data convert`."""
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
