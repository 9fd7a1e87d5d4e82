"""Drawn scenes: a small detection data set made from a seed, in OpenImages' tree.

Every scene is a night sky over hills, with up to five objects whose class names are OpenImages'
own. Colours, sizes, places and proportions vary; objects hide one another a little. The same seed
gives the same files, byte for byte, under one version of Pillow.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image, ImageDraw

from data.scenes.objects import KINDS, SUPERSAMPLING, Box, Kind

DRAWING = 1
"""Raised when the painters change, so that scenes drawn before are drawn anew."""

SIZES = ((256, 256), (288, 224), (224, 288))
"""Width and height of the pictures, in pixels."""

LARGEST_OVERLAP = 0.25
"""The part of a box that another may cover; more would leave boxes that nobody can see."""


def draw_background(draw: ImageDraw.ImageDraw, width: int, height: int, random: Random) -> None:
    """A night sky that is a little lighter below, and two rows of dark hills."""
    tint = random.randint(0, 8)
    for row in range(height):
        fall = row / height
        sky = (int(14 + 12 * fall) + tint, int(18 + 14 * fall) + tint, int(36 + 24 * fall) + tint)
        draw.line((0, row, width, row), fill=sky)
    for depth in range(2):
        horizon = height * random.uniform(0.55 + 0.14 * depth, 0.66 + 0.14 * depth)
        hill = (30 - 10 * depth, 36 - 10 * depth + tint, 34 - 10 * depth)
        peak = random.uniform(-0.1, 0.1) * height
        crest = [(0, horizon), (width * random.uniform(0.3, 0.7), horizon + peak), (width, horizon)]
        draw.polygon([*crest, (width, height), (0, height)], fill=hill)


def place_box(kind: Kind, width: int, height: int, random: Random) -> Box:
    """A box for an object of this kind, inside a picture of the given size (xyxy, pixels)."""
    side = random.uniform(0.26, 0.5) * min(width, height)
    stretch = random.uniform(0.88, 1.14) * kind.width_over_height**0.5
    box_width, box_height = side * stretch, side / stretch
    left = random.uniform(0, width - box_width)
    highest, lowest = (0.02, 0.6) if kind.floats else (0.3, 0.98)
    lowest_top = max(lowest * height - box_height, highest * height)
    top = min(random.uniform(highest * height, lowest_top), height - 1 - box_height)
    return left, top, left + box_width, top + box_height


def overlap_share(box: Box, other: Box) -> float:
    """The part of the smaller box that both cover."""
    shared_width = min(box[2], other[2]) - max(box[0], other[0])
    shared_height = min(box[3], other[3]) - max(box[1], other[1])
    if shared_width <= 0 or shared_height <= 0:
        return 0.0
    areas = [(one[2] - one[0]) * (one[3] - one[1]) for one in (box, other)]
    return shared_width * shared_height / min(areas)


def draw_scene(random: Random) -> tuple[Image.Image, list[tuple[int, Box]]]:
    """Draw one scene.

    Returns:
        The picture, and for each object its place in `KINDS` and its box (xyxy, pixels).
    """
    width, height = random.choice(SIZES)
    large = Image.new("RGB", (width * SUPERSAMPLING, height * SUPERSAMPLING))
    draw = ImageDraw.Draw(large)
    draw_background(draw, *large.size, random)
    wanted = 0 if random.random() < 0.03 else random.randint(1, 5)
    objects: list[tuple[int, Box]] = []
    for _ in range(wanted * 6):
        if len(objects) == wanted:
            break
        label = random.randrange(len(KINDS))
        box = place_box(KINDS[label], *large.size, random)
        if all(overlap_share(box, other) <= LARGEST_OVERLAP for _, other in objects):
            objects.append((label, box))
    # What stands lower is nearer to us, so it is painted later.
    objects.sort(key=lambda item: item[1][3])
    for label, box in objects:
        KINDS[label].paint(draw, box, random.choice(KINDS[label].colours), random)
    small = large.resize((width, height), Image.Resampling.BOX)
    left_top_right_bottom = [
        (label, tuple(round(edge / SUPERSAMPLING, 2) for edge in box)) for label, box in objects
    ]
    return small, left_top_right_bottom  # type: ignore[return-value]


def make_scenes(
    root: Path,
    *,
    seed: int,
    train: int,
    validation: int,
    advance: Callable[[int, str], None] = lambda done, note: None,
) -> bool:
    """Draw a data set into MLPerf's OpenImages tree, unless the same one is there already.

    Args:
        root: Folder of the tree; replaced as a whole if it holds other scenes.
        seed: Of everything drawn; training and validation scenes differ under one seed.
        train: Training scenes.
        validation: Held-out scenes.
        advance: Called after every scene with the number drawn so far and a note.

    Returns:
        Whether scenes were drawn.
    """
    recipe = {"drawing": DRAWING, "seed": seed, "train": train, "validation": validation}
    marker = root / "recipe.json"
    if marker.is_file() and marker.read_text(encoding="utf-8") == json.dumps(recipe):
        return False
    partial = root.with_name(f".{root.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    done = 0
    for split, count in (("train", train), ("validation", validation)):
        done = write_split(
            partial / split, split, seed=seed, count=count, done=done, advance=advance
        )
    (partial / "recipe.json").write_text(json.dumps(recipe), encoding="utf-8")
    shutil.rmtree(root, ignore_errors=True)
    partial.rename(root)
    return True


def write_split(
    folder: Path,
    split: str,
    *,
    seed: int,
    count: int,
    done: int,
    advance: Callable[[int, str], None],
) -> int:
    """Write `data/*.jpg` and `labels/openimages-mlperf.json`; return how many are done in all."""
    (folder / "data").mkdir(parents=True)
    (folder / "labels").mkdir()
    write_scenes(
        folder / "data",
        folder / "labels" / "openimages-mlperf.json",
        name=split,
        seed=seed,
        count=count,
        advance=lambda drawn, note: advance(done + drawn, note),
    )
    return done + count


def write_scenes(
    images_folder: Path,
    labels: Path,
    *,
    name: str,
    seed: int,
    count: int,
    advance: Callable[[int, str], None],
) -> None:
    """Draw `NAME-*.jpg` into a folder that is there, and their boxes into a COCO-format JSON."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for index in range(count):
        picture, objects = draw_scene(Random(f"{seed} {name} {index}"))
        file_name = f"{name}-{index:05d}.jpg"
        picture.save(images_folder / file_name, quality=90)
        size = {"width": picture.width, "height": picture.height}
        images.append({"id": index + 1, "file_name": file_name, **size})
        for label, box in objects:
            identity = {"id": len(annotations) + 1, "image_id": index + 1}
            annotations.append(identity | annotation_fields(label, box))
        advance(index + 1, "")
    content = {
        "info": {"description": "drawn scenes", "seed": seed},
        "categories": [{"id": place + 1, "name": kind.name} for place, kind in enumerate(KINDS)],
        "images": images,
        "annotations": annotations,
    }
    labels.write_text(json.dumps(content), encoding="utf-8")


def annotation_fields(label: int, box: Box) -> dict[str, Any]:
    """COCO's fields of one object (its box as xywh)."""
    left, top, right, bottom = box
    width, height = round(right - left, 2), round(bottom - top, 2)
    return {
        "category_id": label + 1,
        "bbox": [left, top, width, height],
        "area": round(width * height, 2),
        "iscrowd": 0,
    }
