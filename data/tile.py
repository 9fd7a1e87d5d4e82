"""Cut the pictures of a data set into tiles, with their boxes: a new data set.

For objects that are small in large pictures: resized to the network's square they would vanish, in
a tile they do not. Train on the tiles, then predict with the same ones (`predict --tiles`).

  retinanet data tile my-photos/train.json my-photos/validation.json --tiles 640 --out tiles
  retinanet data tile result.json --images photos --tiles 512 --overlap 0.3 --out tiles

Each NAME.json becomes DIR/NAME.json, with the tiles in DIR/images/NAME: PHOTO-LEFT-TOP.jpg. A photo
that is no larger than a tile stays whole. Nothing is replaced or changed.

Boxes are cut off at the edges of a tile. An object of which less than --visible is in a tile is
not labelled there; crowds are, as long as any part is visible. Tiles without boxes are kept:
training leaves them out by itself (data.images_without_boxes), and the metric needs them. Fields
other than COCO's boxes, such as masks, are left out.

Split a data set before it is cut, not after: neighbouring tiles show the same objects.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console

from common.cli import add_command, number_between, probability
from common.console import make_console, print_line
from common.errors import FINISHED, InputError
from common.files import or_refused, removed_on_failure, require_free, require_writable_later
from common.options import argument, flag, included, option
from common.walk import Reach
from common.wording import counted
from data.annotations import (
    BOX_COLUMNS,
    SPLITS,
    Annotations,
    GrowingColumns,
    Split,
    TextColumn,
    image_path,
    offsets_of,
)
from data.augmentation import View, areas, cut_boxes
from data.coco_json import read_annotations
from data.dataset import read_pixels
from data.decoding import resolve_decoder
from data.formats.coco import locate_images
from data.formats.convert import images_of, json_of, print_next, write_annotations
from data.parts import read_in_parts
from data.tiling import TileOptions, Tiling

AT_ONCE = 4  # Photos that a process cuts for one report of progress


@dataclass(frozen=True, kw_only=True)
class TileSetOptions:
    """The options of `retinanet data tile`."""

    annotations: list[Path] = argument(
        "annotations of each split, COCO format", metavar="JSON", nargs="+"
    )
    tiling: TileOptions = included(TileOptions)
    out: Path = option("folder for the new data set", metavar="DIR")
    images: Path | None = option(
        "folder of the images, where it is not found near JSON", default=None, metavar="DIR"
    )
    visible: float = option(
        "label an object where so much of its box's area is in the tile",
        default=0.5,
        parse=probability,
        metavar="P",
    )
    skip_empty: bool = flag("leave out tiles without boxes")
    quality: int = option(
        "quality of the JPEG files; colours keep their full resolution",
        default=95,
        parse=partial(number_between, 1, 100),
        metavar="Q",
    )
    allow_outside: bool = flag("also cut images to which links lead, outside of their folder")


def add_tile(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `tile`."""
    # The docstring of this module is the text of --help.
    add_command(commands, "tile", about=__doc__ or "", options=TileSetOptions, run=run_tile)


def run_tile(options: TileSetOptions) -> int:
    """Cut every split, print what was written, and return the exit code."""
    tiling, out = options.tiling.tiling(), options.out
    if tiling is None:
        raise InputError("--tiles: missing; give the side of a tile in pixels, such as 640")
    sources = {file.stem: file for file in options.annotations}
    if len(sources) < len(options.annotations):
        raise InputError("JSON: two files have one name; cut them into different folders")
    outputs = [json_of(out, name) for name in sources]
    require_free(outputs, overwrite=False, advice="set another --out")
    require_writable_later(outputs[0])
    folders = [images_of(out, name) for name in sources]
    for folder in folders:
        if folder.exists() or folder.is_symlink():
            raise InputError(f"{folder}: exists; set another --out")
    console, written = make_console(), {}
    with removed_on_failure([*outputs, *folders]):
        for name, file in sources.items():
            read = read_annotations(file, is_export=True)
            folder, names = locate_images(file, read.file_names, images=options.images)
            reach = Reach.of(folder, allow_outside=options.allow_outside)
            for path in (image_path(folder, each) for each in names):
                if fault := reach.fault(path):  # Tiles may be published
                    raise InputError(f"{path}: {fault}")
            stems = {str(PurePosixPath(each).with_suffix("")) for each in names}
            has_twins = len(stems) < len(set(names))
            cut = Cut(tiling, folder, images_of(out, name), has_twins, options)
            photos = replace(read, file_names=TextColumn.of(names))
            tiles = cut_photos(photos, cut, console=console)
            write_annotations(json_of(out, name), tiles, console=console)
            written[name] = Split(json_of(out, name), cut.folder)
    if set(SPLITS) <= set(written):
        print_next(console, written, out=out)
    return FINISHED


class Cut(NamedTuple):
    """How the photos of a split are cut."""

    tiling: Tiling
    photos: Path  # Their folder
    folder: Path  # Of the tiles
    keeps_endings: bool  # Whether names of tiles have those of their photos: a.jpg and a.png
    options: TileSetOptions


def cut_photos(photos: Annotations, cut: Cut, *, console: Console) -> Annotations:
    """Write the tiles of all photos; print their numbers, and return their annotations."""
    name = cut.folder.name
    columns = GrowingColumns()
    for part in read_in_parts(
        partial(cut_some, cut),
        np.arange(len(photos)),
        at_once=AT_ONCE,
        title=f"cutting {name}, images",
        console=console,
        prepare=lambda rows: photos.select(images=np.isin(np.arange(len(photos)), rows)),
    ):
        columns.extend(part)
    cut_columns = columns.finish()
    counts = cut_columns.pop("counts")
    if not len(counts):
        raise InputError(f"{name}: no tile has a box; leave --skip-empty out")
    boxes, before = len(cut_columns["boxes"]), len(photos.boxes)
    lost = before - len(np.unique(cut_columns["box_ids"]))
    print_line(
        console,
        f"{name}: {counted(len(photos), 'image')}, {counted(before, 'box', 'boxes')} → "
        f"{counted(len(counts), 'tile')}, {counted(boxes, 'box', 'boxes')}; "
        f"{counted(int((counts == 0).sum()), 'tile')} without boxes: {cut.folder}",
    )
    if lost:
        print_line(
            console,
            f"note: boxes of which no tile shows a share of {cut.options.visible:g} (--visible): "
            f"{lost:,}; a larger --overlap or larger --tiles keep them",
        )
    ids = {"image_ids": 1 + np.arange(len(counts)), "box_ids": 1 + np.arange(boxes)}
    displayed = np.zeros(len(counts), dtype=np.bool_)  # Tiles have no EXIF
    cut_columns |= {"is_displayed": displayed, "box_offsets": offsets_of(counts), **ids}
    return replace(photos, **cut_columns)


def cut_some(cut: Cut, photos: Annotations) -> dict[str, Any]:
    """Write the tiles of some photos, and return the columns of their annotations."""
    columns = GrowingColumns()
    # The columns exist though no tile may have a box.
    columns.extend(tile_columns([], (), {n: getattr(photos, n)[:0] for n in BOX_COLUMNS}))
    for row in range(len(photos)):
        for part in cut_photo(cut, photos, row):
            columns.extend(part)
    return columns.finish()


def tile_columns(
    names: Sequence[str], size: tuple[int, ...], boxes: dict[str, NDArray[Any]]
) -> dict[str, Any]:
    """Return the columns of one tile, or of none."""
    height, width = np.array(size, dtype=np.int32).reshape(2, -1)
    counts = np.full(len(names), len(boxes["boxes"]))
    names_column = TextColumn.of(names)
    return {
        "file_names": names_column, "heights": height, "widths": width, "counts": counts, **boxes
    }  # fmt: skip


def cut_photo(cut: Cut, photos: Annotations, row: int) -> Iterator[dict[str, Any]]:
    """Write the tiles of a photo, and yield the columns of each.

    Raises:
        InputError: The photo cannot be read, or a tile cannot be written.
    """
    pixels = read_pixels(photos, cut.photos, row, decoder=resolve_decoder("auto"))
    size, path = (pixels.shape[0], pixels.shape[1]), PurePosixPath(photos.file_names[row])
    old = {name: getattr(photos, name)[photos.box_slice(row)] for name in BOX_COLUMNS}
    boxes = torch.from_numpy(old["boxes"].astype(np.float64))
    # The part of its box that an object's mask fills is taken to be the same in each tile.
    filled = old["box_areas"] / np.maximum(areas(boxes).numpy(), 1e-9)
    least = torch.from_numpy(np.where(old["box_is_crowd"], 0.0, cut.options.visible))
    for tile in cut.tiling.tiles(size):
        height, width = tile.bottom - tile.top, tile.right - tile.left
        clipped, keep = cut_boxes(
            boxes,
            View(tile, (0, 0, width, height)),
            least,
            original_size=photos.image_size(row),
            image_size=size,
        )
        kept = keep.numpy()
        if cut.options.skip_empty and not kept.any():
            continue
        stem = path if cut.keeps_endings else path.with_suffix("")
        name = f"{stem}-{tile.left}-{tile.top}.jpg"
        file = image_path(cut.folder, name)
        with or_refused(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray(pixels[tile.top : tile.bottom, tile.left : tile.right])
            picture.save(file, quality=cut.options.quality, subsampling=0)
        here = {name: column[kept] for name, column in old.items()}
        here["boxes"] = clipped[keep].numpy()
        here["box_areas"] = areas(clipped[keep]).numpy() * filled[kept]
        yield tile_columns([name], (height, width), here)
