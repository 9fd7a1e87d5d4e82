"""COCO 2017: its zip of annotations, and each image by itself."""

from functools import partial
from pathlib import Path
from urllib.parse import quote

from rich.console import Console

from data.download.checks import zip_with
from data.download.coco_annotations import LARGEST_JSON, write_annotations
from data.download.files import fetch_file
from data.download.folder import check_space, tidy
from data.download.images import Images, fetch_images
from data.download.request import Request
from data.sources import Split, known_trees
from retinanet.errors import InputError

BASE = "https://s3.amazonaws.com/images.cocodataset.org"
"""The bucket behind images.cocodataset.org, which has no certificate of its own."""
ARCHIVE = "annotations/annotations_trainval2017.zip"
MEMBERS = ("annotations/instances_train2017.json", "annotations/instances_val2017.json")
LARGEST_ARCHIVE = 1_000_000_000
"""COCO's has 253 MB. [B]"""
BYTES_EACH = 160_000


def download_coco(request: Request, console: Console) -> dict[str, str]:
    """Make COCO's tree below `request.out`, or complete it.

    The zip of annotations is kept: a later call with another `limit` needs it.

    Returns the images that could not be had: the reason by `train2017/NAME`. Raises as
    `data.download.images.fetch_images` does.
    """
    base, archive = request.mirror or BASE, request.out / ARCHIVE
    trees = [known_trees(request.out, split)["COCO's"] for split in request.splits]
    fetch_file(
        f"{base}/{ARCHIVE}",
        archive,
        check=zip_with(MEMBERS, limit=LARGEST_JSON),
        limit=LARGEST_ARCHIVE,
        manners=request.manners,
        console=console,
    )
    splits = [_annotate(archive, tree, request, console) for tree in trees]
    present = [tidy(images.folder) for images in splits]
    to_come = sum(len(set(i.names) - there) for i, there in zip(splits, present, strict=True))
    check_space(request.out, images=to_come, bytes_each=BYTES_EACH, console=console)
    failed: dict[str, str] = {}
    for images, there in zip(splits, present, strict=True):
        missing = fetch_images(images, present=there, manners=request.manners, console=console)
        failed |= {f"{images.folder.name}/{name}": reason for name, reason in missing.items()}
    return failed


def _annotate(archive: Path, tree: Split, request: Request, console: Console) -> Images:
    """Write a split's JSON and say which images it takes."""
    console.print(f"{tree.annotations}: taking it out of the zip", soft_wrap=True, markup=False)
    names = write_annotations(
        archive,
        tree.annotations,
        classes=_class_names(request.classes),
        limit=request.limit,
    )
    return Images(
        title=f"{tree.images.name}, images",
        names=names,
        folder=tree.images,
        url_of=partial(_url, request.mirror or BASE, tree.images),
    )


def _url(base: str, folder: Path, name: str) -> str:
    return f"{base}/{folder.name}/{quote(name)}"


def _class_names(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """Names that `--classes` stands for; None for all."""
    if words == ("all",):
        return None
    if len(words) == 1 and words[0].endswith(".txt"):
        return _read_class_names(Path(words[0]))
    return words


def _read_class_names(path: Path) -> tuple[str, ...]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"--classes: {path}: {error}; expected a text file with a class on each line"
        ) from error
    names = tuple(line.strip() for line in lines if line.strip())
    if not names:
        raise InputError(f"--classes: {path}: empty; expected a class on each line")
    return names
