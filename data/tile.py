"""Cut the pictures of a data set into tiles, with their boxes: a new data set.

For objects that are small in large pictures: resized to the network's square they would vanish, in
a tile they do not. Train on the tiles, then predict with the same ones (`predict --tiles`).

  retinanet data tile my-photos/train.json my-photos/validation.json --tiles 640 --out tiles
  retinanet data tile result.json --images photos --tiles 512 --overlap 0.3 --out tiles

Each NAME.json becomes DIR/NAME.json, with the tiles in DIR/images/NAME: PHOTO-LEFT-TOP.jpg (quality
95, colours in full resolution). A photo that is no larger than a tile stays whole. Nothing is
replaced or changed.

Boxes are cut off at the edges of a tile. An object of which less than --visible is in a tile is
not labelled there; crowds are, as long as any part is visible. Tiles without boxes are kept:
training leaves them out by itself (data.images_without_boxes), and the metric needs them. Fields
other than COCO's boxes, such as masks, are left out.

Split a data set before it is cut, not after: neighbouring tiles show the same objects.
"""

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from rich.console import Console

from common.cli import add_command, probability
from common.console import make_console, print_line
from common.errors import FINISHED, InputError
from common.files import or_refused, removed_on_failure, require_free, write_json
from common.options import argument, flag, included, option
from common.walk import Reach
from common.wording import counted
from data.annotations import SPLITS, Annotations, Split, TextColumn, image_path
from data.augmentation import View, areas, view_boxes
from data.coco_json import read_annotations
from data.dataset import read_pixels
from data.decoding import resolve_decoder
from data.formats.coco import locate_images
from data.formats.convert import images_of, json_of, print_next
from data.packed import pack_of
from data.parts import read_in_parts
from data.tiling import TileOptions, Tiling

AT_ONCE = 4  # Photos that a process cuts for one report of progress
QUALITY = 95  # Of the JPEG files


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
    skip_empty: bool = flag("leave out tiles without boxes")
    visible: float = option(
        "label an object where so much of its box's area is in the tile",
        default=0.5,
        parse=probability,
        metavar="P",
    )
    allow_outside: bool = flag("also cut images to which links lead, outside of their folder")


def add_tile(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `tile`."""
    # The docstring of this module is the text of --help.
    add_command(commands, "tile", about=__doc__ or "", options=TileSetOptions, run=run_tile)


def run_tile(options: TileSetOptions) -> int:
    """Cut every split, print what was written, and return the exit code."""
    tiling, out, console = options.tiling.tiling(), options.out, make_console()
    if tiling is None:
        raise InputError("--tiles: missing; give the side of a tile in pixels, such as 640")
    written = [
        Split(json_of(out, file.stem), images_of(out, file.stem)) for file in options.annotations
    ]
    require_free([split.annotations for split in written], overwrite=False, advice="change --out")
    if present := [split.images for split in written if os.path.lexists(split.images)]:
        raise InputError(f"{present[0]}: exists; change --out")
    with removed_on_failure([path for split in written for path in split]):
        for file, split in zip(options.annotations, written, strict=True):
            photos = read_annotations(file, is_export=True)
            folder, names = locate_images(file, photos.file_names, images=options.images)
            reach = Reach.of(folder, allow_outside=options.allow_outside)
            is_packed = pack_of(folder.absolute()) is not None  # without links
            for path in (image_path(folder, name) for name in names if not is_packed):
                if fault := reach.fault(path):  # Tiles may be published
                    raise InputError(f"{path}: {fault}")
            stems = {PurePosixPath(name).with_suffix("") for name in names}
            cut = Cut(tiling, folder, split.images, len(stems) < len(set(names)), options)
            photos = replace(photos, file_names=TextColumn.of(names))
            write_json(split.annotations, cut_photos(photos, cut, console=console))
    if {split.images.name for split in written} >= set(SPLITS):
        print_next(console, {split.images.name: split for split in written}, out=out)
    return FINISHED


class Cut(NamedTuple):
    """How the photos of a split are cut."""

    tiling: Tiling
    photos: Path  # Their folder
    folder: Path  # Of the tiles
    keeps_endings: bool  # Whether names of tiles have those of their photos: a.jpg and a.png
    options: TileSetOptions


TileEntry = tuple[dict[str, Any], list[dict[str, Any]]]
"""COCO's entries of a tile and its boxes: without ids, but with the `source` of each box."""


def cut_photos(photos: Annotations, cut: Cut, *, console: Console) -> dict[str, Any]:
    """Write the tiles of all photos, print their numbers, and return COCO's JSON of them."""
    name, visible = cut.folder.name, cut.options.visible
    parts = read_in_parts(
        partial(cut_some, cut),
        np.arange(len(photos)),
        at_once=AT_ONCE,
        title=f"cutting {name}, images",
        console=console,
        prepare=lambda rows: photos.select(images=np.isin(np.arange(len(photos)), rows)),
    )
    tiles = [tile for part in parts for tile in part]
    if not tiles:
        raise InputError(f"{name}: no tile has a box; leave --skip-empty out")
    images = [{"id": number, **image} for number, (image, _) in enumerate(tiles, 1)]
    boxes = [{"image_id": number, **box} for number, (_, own) in enumerate(tiles, 1) for box in own]
    lost = len(photos.boxes) - len({box.pop("source") for box in boxes})
    empty = sum(not own for _, own in tiles)
    print_line(
        console,
        f"{name}: {counted(len(photos), 'image')}, {counted(len(photos.boxes), 'box', 'boxes')} → "
        f"{counted(len(tiles), 'tile')}, {counted(len(boxes), 'box', 'boxes')}; "
        f"{counted(empty, 'tile')} without boxes: {cut.folder}",
    )
    if lost:
        text = f"note: boxes of which no tile shows a share of {visible:g} (--visible): {lost:,}"
        print_line(console, f"{text}; a larger --overlap or larger --tiles keep them")
    ids, names = photos.category_ids.tolist(), photos.category_names
    return {
        "categories": [{"id": each, "name": name} for each, name in zip(ids, names, strict=True)],
        "images": images,
        "annotations": [{"id": number, **box} for number, box in enumerate(boxes, 1)],
    }


def cut_some(cut: Cut, photos: Annotations) -> list[TileEntry]:
    """Write the tiles of some photos, and return their entries."""
    return [tile for row in range(len(photos)) for tile in cut_photo(cut, photos, row)]


def cut_photo(cut: Cut, photos: Annotations, row: int) -> Iterator[TileEntry]:
    """Write the tiles of a photo, and yield their entries.

    Raises:
        InputError: The photo cannot be read, or a tile cannot be written.
    """
    pixels = read_pixels(photos, cut.photos, row, decoder=resolve_decoder("auto"))
    size, path = (pixels.shape[0], pixels.shape[1]), PurePosixPath(photos.file_names[row])
    stem, place = path if cut.keeps_endings else path.with_suffix(""), photos.box_slice(row)
    boxes = torch.from_numpy(photos.boxes[place].astype(np.float64))
    is_crowd = photos.box_is_crowd[place]
    least = torch.from_numpy(np.where(is_crowd, 0.0, cut.options.visible))
    # The part of its box that an object's mask fills is taken to be the same in each tile.
    filled = torch.from_numpy(photos.box_areas[place].astype(np.float64)) / areas(boxes)
    columns = (photos.box_category_ids[place], is_crowd.astype(int), photos.box_ids[place])
    for tile in cut.tiling.tiles(size):
        view = View(tile, (0, 0, *tile.size[::-1]))
        sizes = {"original_size": photos.image_size(row), "image_size": size}
        inside, keep = view_boxes(boxes, view, least, **sizes)
        if cut.options.skip_empty and not keep.any():
            continue
        name = f"{stem}-{tile.left}-{tile.top}.jpg"
        file, sides = image_path(cut.folder, name), inside[:, 2:] - inside[:, :2]
        with or_refused(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray(pixels[tile.top : tile.bottom, tile.left : tile.right])
            picture.save(file, quality=QUALITY, subsampling=0)
        kept = keep.numpy()
        values = (torch.cat([inside[:, :2], sides], dim=1), areas(inside) * filled)
        rows = zip(*(each[kept].tolist() for each in (*values, *columns)), strict=True)
        fields = ("bbox", "area", "category_id", "iscrowd", "source")
        entry = {"file_name": name, "width": picture.width, "height": picture.height}
        yield entry, [dict(zip(fields, row, strict=True)) for row in rows]
