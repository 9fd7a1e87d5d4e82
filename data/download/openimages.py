"""OpenImages: its CSV files of boxes and classes, and the images that they ask for."""

from functools import partial
from pathlib import Path

from rich.console import Console

from data.download.checks import Check, check_class_descriptions, csv_with
from data.download.files import fetch_file
from data.download.folder import check_space, tidy
from data.download.images import Images, fetch_images
from data.download.request import Request
from data.openimages.box_rows import CORNERS, FLAGS
from data.openimages.boxes import image_ids_with_boxes
from data.openimages.class_lists import ClassList, resolve_classes
from data.openimages.coco_export import write_coco_json
from data.openimages.image_ids import image_id_texts
from data.sources import SplitName, known_trees
from retinanet.errors import InputError
from retinanet.progress import progress_in_bytes

IMAGES = "https://s3.amazonaws.com/open-images-dataset"
"""The Common Visual Data Foundation's copies, of at most 1024 pixels a side."""
TABLES = "https://storage.googleapis.com/openimages"
CLASS_DESCRIPTIONS = "v5/class-descriptions-boxable.csv"
BOXES: dict[SplitName, str] = {
    "train": "v6/oidv6-train-annotations-bbox.csv",
    "validation": "v5/validation-annotations-bbox.csv",
}
LARGEST_TABLE = 10_000_000_000
"""The largest, of the boxes to train on, has 2.3 GB. [B]"""
BYTES_EACH = 300_000


def download_openimages(request: Request, console: Console) -> dict[str, str]:
    """Make MLPerf's tree of OpenImages below `request.out`, or complete it.

    Returns the images that could not be had: the reason by `train/data/NAME`; the JSON files are
    written without them. Raises as `data.download.images.fetch_images` does.
    """
    fetch_tables(request, console)
    class_list = resolve_classes(request.classes, table(request.out, CLASS_DESCRIPTIONS))
    splits = {split: _choose(split, class_list, request, console) for split in request.splits}
    present = {split: tidy(images.folder) for split, images in splits.items()}
    to_come = sum(len(set(splits[split].names) - present[split]) for split in splits)
    check_space(request.out, images=to_come, bytes_each=BYTES_EACH, console=console)
    failed: dict[str, str] = {}
    for split, images in splits.items():
        missing = fetch_images(
            images, present=present[split], manners=request.manners, console=console
        )
        failed |= {f"{split}/data/{name}": reason for name, reason in missing.items()}
        if len(missing) < len(images.names):
            _write_json(split, images.folder, request, console)
    return failed


def fetch_tables(request: Request, console: Console) -> None:
    """Get the CSV files that the splits take."""
    columns = ("ImageID", "LabelName", *CORNERS, *FLAGS)
    checks: dict[str, Check] = {CLASS_DESCRIPTIONS: check_class_descriptions}
    checks |= {BOXES[split]: csv_with(columns) for split in request.splits}
    for name, check in checks.items():
        path = table(request.out, name)
        url = f"{request.mirror}/{path.name}" if request.mirror else f"{TABLES}/{name}"
        fetch_file(
            url,
            path,
            check=check,
            limit=LARGEST_TABLE,
            manners=request.manners,
            console=console,
        )


def table(out: Path, name: str) -> Path:
    """Where a CSV file goes."""
    return out / "csv" / Path(name).name


def _choose(split: SplitName, class_list: ClassList, request: Request, console: Console) -> Images:
    """Which images of a split have a box of the classes."""
    boxes = table(request.out, BOXES[split])
    size = boxes.stat().st_size
    with progress_in_bytes(console, f"{boxes.name}: choosing images", total=size) as advance:
        ids = image_ids_with_boxes(boxes, class_list, advance=advance)
    if not len(ids):
        raise InputError(f"--classes: no image of {boxes.name} has a box of these classes")
    return Images(
        title=f"{split}, images",
        names=tuple(f"{text}.jpg" for text in image_id_texts(ids[: request.limit])),
        folder=known_trees(request.out, split)["MLPerf's OpenImages"].images,
        url_of=partial(_url, request.mirror or IMAGES, split),
    )


def _url(base: str, split: SplitName, name: str) -> str:
    return f"{base}/{split}/{name}"


def _write_json(split: SplitName, images: Path, request: Request, console: Console) -> None:
    """Write the JSON of the images that are there, from this call and earlier ones."""
    write_coco_json(
        table(request.out, BOXES[split]),
        table(request.out, CLASS_DESCRIPTIONS),
        classes=request.classes,
        images=images,
        out=known_trees(request.out, split)["MLPerf's OpenImages"].annotations,
        skip_missing_images=True,
        overwrite=True,
        console=console,
    )
