"""Create synthetic data: drawn images, and their boxes in COCO-format JSON.

For trying things out without labelled photos. The folder is like the export of a labelling tool:
DIR/images and DIR/annotations/instances_default.json. Six classes, with names from OpenImages.
With --varied, objects of any colour are near or far, by day or by night, among other shapes: a
detector needs many such images, or augmentation.
With --rare SHARE, umbrellas are rare. With --photo-shapes, images have the shapes of most photos.
With --small-objects, pictures of 4000×3000 pixels have up to 480 objects of about 24 pixels: try
`data tile` and `predict --tiles` on them.

  retinanet data scenes --out my-photos
  retinanet data scenes --out my-photos --images 1000 --seed 7
  retinanet data scenes --out hard-photos --images 100 --varied
  retinanet data scenes --out few-umbrellas --rare 0.02
  retinanet data scenes --out wide-photos --images 10 --small-objects
"""

import argparse
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image, ImageDraw

from common.cli import add_command, positive, probability
from common.console import Advance, ignore_progress, make_console, progress
from common.errors import InputError
from common.files import new_folder_beside, or_refused, read_text
from common.options import flag, option


@dataclass(frozen=True, kw_only=True)
class ScenesOptions:
    """The options of `retinanet data scenes`."""

    out: Path = option("folder to create; must not exist", metavar="DIR")
    images: int = option("number of images", default=300, parse=positive, metavar="N")
    seed: int = option("random seed", default=0, metavar="N")
    varied: bool = flag("vary colours, sizes, light and backgrounds")
    rare: float | None = option(
        "share of the objects that are umbrellas (default: a sixth, as of every class)",
        default=None,
        parse=probability,
        metavar="SHARE",
    )
    photo_shapes: bool = flag("draw images of 4:3 and 3:2, of which three in eleven are upright")
    small_objects: bool = flag("draw large pictures with many small objects")


def add_scenes(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `scenes`."""
    add_command(commands, "scenes", about=__doc__ or "", options=ScenesOptions, run=run)


def run(options: ScenesOptions) -> int:
    """Create the folder, complete or not at all; return the exit code."""
    out, images = options.out, options.images
    if out.exists() or out.is_symlink():
        raise InputError(f"--out: {out} already exists; set a new folder")
    console = make_console()
    labels = Path("annotations") / "instances_default.json"
    with or_refused(out), new_folder_beside(out) as temporary:
        (temporary / "images").mkdir()
        (temporary / labels.parent).mkdir()
        with progress(console, "drawing images", total=images) as advance:
            write_split(
                temporary / "images",
                temporary / labels,
                name="photo",
                seed=options.seed,
                count=images,
                style=Style(
                    varied=options.varied,
                    rare=options.rare,
                    sizes=PHOTO_SIZES if options.photo_shapes else SIZES,
                    small_objects=options.small_objects,
                ),
                advance=advance,
            )
        temporary.rename(out)
    console.print(f"{images:,} images in {out / 'images'}, their boxes in {out / labels}")
    return 0


RECIPE = "recipe.json"
SCENES_ENTRIES = {RECIPE, "train", "validation"}
DRAWING = 1  # increase it when the painters change, so that existing scenes are drawn again
SIZES = ((256, 256), (288, 224), (224, 288))  # width and height of the images [pixels]
PHOTO_SIZES = (*[(256, 192)] * 5, *[(256, 171)] * 3, *[(192, 256)] * 2, (171, 256))
WIDE = 4000, 3000  # Width and height of pictures with small objects. [pixels]
SMALL = 64
"""Small objects are as large as in an image of this side. [pixels]"""
MANY = 480
SUPERSAMPLING = 2
"""Scenes are drawn larger by this factor and then reduced, because Pillow draws hard edges."""
LARGEST_OVERLAP = 0.25
"""The part of a box that another box may cover; with more, some objects would be hidden."""


@dataclass(frozen=True, kw_only=True)
class Style:
    """What images show."""

    varied: bool = False  # Whether colours, sizes, light and backgrounds vary
    rare: float | None = None
    """Share of the objects that are of the last kind; None: that of every kind."""
    sizes: Sequence[tuple[int, int]] = SIZES
    """Width and height of the images, of which each is drawn equally often. [pixels]"""
    small_objects: bool = False


PLAIN = Style()
Box = tuple[float, float, float, float]  # xyxy, pixels
Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Kind:
    """A class of drawn objects; colours are its usual ones, and `floats` places it high."""

    name: str
    paint: Callable[[ImageDraw.ImageDraw, Box, Colour, Random], None]
    colours: tuple[Colour, ...]
    width_over_height: float
    floats: bool = False


def place_box(
    kind: Kind,
    width: int,
    height: int,
    random: Random,
    *,
    varied: bool = False,
    small: bool = False,
) -> Box:
    """Return a box (xyxy, pixels) for an object, inside an image of the given size."""
    # With the square root of the ratio, width × height is side² for every shape.
    # From a fifth to three fifths, small ones as often as large ones.
    share = 0.2 * 3 ** random.random() if varied else random.uniform(0.26, 0.5)
    side = share * (SMALL * SUPERSAMPLING if small else min(width, height))
    stretch = random.uniform(0.88, 1.14) * kind.width_over_height**0.5
    box_width, box_height = side * stretch, side / stretch
    left = random.uniform(0, width - box_width)
    highest, lowest = (0.02, 0.6) if kind.floats else (0.3, 0.98)
    lowest_top = max(lowest * height - box_height, highest * height)
    top = min(random.uniform(highest * height, lowest_top), height - 1 - box_height)
    return left, top, left + box_width, top + box_height


def overlap_share(box: Box, other: Box) -> float:
    """Return the area that two boxes share, as a fraction of the smaller box."""
    shared_width = min(box[2], other[2]) - max(box[0], other[0])
    shared_height = min(box[3], other[3]) - max(box[1], other[1])
    if shared_width <= 0 or shared_height <= 0:
        return 0.0
    areas = [(edges[2] - edges[0]) * (edges[3] - edges[1]) for edges in (box, other)]
    return shared_width * shared_height / min(areas)


def draw_scene(random: Random, style: Style = PLAIN) -> tuple[Image.Image, list[tuple[int, Box]]]:
    """Return a synthetic image, and each object's index in `KINDS` and box (xyxy, pixels)."""
    varied, rare = style.varied, style.rare
    width, height = WIDE if style.small_objects else random.choice(style.sizes)
    large = Image.new("RGB", (width * SUPERSAMPLING, height * SUPERSAMPLING))
    draw = ImageDraw.Draw(large)
    (draw_varied_background if varied else draw_background)(draw, *large.size, random)
    count = 0 if random.random() < 0.03 else random.randint(1, 5)
    if style.small_objects:
        count = MANY
    objects: list[tuple[int, Box]] = []
    # A full scene may have no place left: after six attempts per object there are fewer objects.
    for _ in range(count * 6):
        if len(objects) == count:
            break
        label = random.randrange(len(KINDS) if rare is None else len(KINDS) - 1)
        if rare is not None and random.random() < rare:
            label = len(KINDS) - 1
        box = place_box(KINDS[label], *large.size, random, varied=varied, small=style.small_objects)
        if all(overlap_share(box, other) <= LARGEST_OVERLAP for _, other in objects):
            objects.append((label, box))
    # An object that stands lower is nearer to the viewer, so it is painted later.
    objects.sort(key=lambda item: item[1][3])
    for label, box in objects:
        colour = any_colour(random) if varied else random.choice(KINDS[label].colours)
        KINDS[label].paint(draw, box, colour, random)
    small = large.resize((width, height), Image.Resampling.BOX)
    if varied:
        small = in_other_light(small, random)
    left_top_right_bottom = [
        (label, tuple(round(edge / SUPERSAMPLING, 2) for edge in box)) for label, box in objects
    ]
    return small, left_top_right_bottom  # type: ignore[return-value]


def make_synthetic_data(
    root: Path,
    *,
    seed: int,
    train: int,
    validation: int,
    advance: Advance = ignore_progress,
) -> bool:
    """Create a data set in MLPerf's OpenImages tree, unless the same one exists.

    The folder `root` is replaced as a whole if it contains other scenes. `train` and `validation`
    are numbers of images; the two splits have different images for every seed. `advance` is called
    after every image with the number drawn so far and a note. Returns whether images were drawn.

    Raises:
        InputError: `root` is a link, or holds something else than scenes.
        OSError: It cannot be written.
    """
    recipe = {"drawing": DRAWING, "seed": seed, "train": train, "validation": validation}
    marker = root / RECIPE
    if marker.is_file() and read_text(marker) == json.dumps(recipe):
        return False
    if root.is_symlink() or (
        root.exists() and {file.name for file in root.iterdir()} - SCENES_ENTRIES
    ):
        raise InputError(
            f"{root}: is a link, or holds files that are not of generated scenes; "
            "rename it, or set run.name"
        )
    with new_folder_beside(root) as temporary:
        for split, count, before in (("train", train, 0), ("validation", validation, train)):
            images, labels = temporary / split / "data", temporary / split / "labels"
            images.mkdir(parents=True)
            labels.mkdir()
            write_split(
                images,
                labels / "openimages-mlperf.json",
                name=split,
                seed=seed,
                count=count,
                advance=partial(lambda before, drawn, note: advance(before + drawn, note), before),
            )
        (temporary / RECIPE).write_bytes(json.dumps(recipe).encode())
        # rename() does not replace a folder that has files, so the old one is removed first.
        shutil.rmtree(root, ignore_errors=True)
        temporary.rename(root)
    return True


def write_split(
    images_folder: Path,
    labels: Path,
    *,
    name: str,
    seed: int,
    count: int,
    style: Style = PLAIN,
    advance: Advance,
) -> None:
    """Draw `NAME-*.jpg` into an existing folder, and write their boxes as COCO-format JSON."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for index in range(count):
        # A generator for each image: image N is the same, however many images are drawn. Seeds of
        # text do not depend on PYTHONHASHSEED.
        picture, objects = draw_scene(Random(f"{seed} {name} {index}"), style)
        file_name = f"{name}-{index:05d}.jpg"
        picture.save(images_folder / file_name, quality=90)
        size = {"width": picture.width, "height": picture.height}
        images.append({"id": index + 1, "file_name": file_name, **size})
        for label, (left, top, right, bottom) in objects:
            width, height = round(right - left, 2), round(bottom - top, 2)
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": index + 1,
                    "category_id": label + 1,
                    "bbox": [left, top, width, height],
                    "area": round(width * height, 2),
                    "iscrowd": 0,
                }
            )
        advance(index + 1, "")
    content = {
        "info": {"description": "synthetic data", "seed": seed},
        "categories": [{"id": place + 1, "name": kind.name} for place, kind in enumerate(KINDS)],
        "images": images,
        "annotations": annotations,
    }
    labels.write_bytes(json.dumps(content).encode())


def draw_background(draw: ImageDraw.ImageDraw, width: int, height: int, random: Random) -> None:
    """Draw a night sky that is a little lighter below, and two rows of dark hills."""
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


def draw_varied_background(
    draw: ImageDraw.ImageDraw, width: int, height: int, random: Random
) -> None:
    """Draw a sky and hills of any colour, and up to eight shapes that are not of a class."""
    above, below = any_colour(random), any_colour(random)
    for row in range(height):
        fall = row / height
        sky = tuple(round(a + (b - a) * fall) for a, b in zip(above, below, strict=True))
        draw.line((0, row, width, row), fill=sky)
    for depth in range(2):
        horizon = height * random.uniform(0.45 + 0.2 * depth, 0.65 + 0.2 * depth)
        crest = [(0, horizon), (width * random.random(), horizon * 0.85), (width, horizon)]
        draw.polygon([*crest, (width, height), (0, height)], fill=any_colour(random))
    for _ in range(random.randint(0, 8)):
        left, top = random.uniform(-0.1, 0.9) * width, random.uniform(-0.1, 0.9) * height
        right, bottom = left + random.uniform(0.05, 0.4) * width, top + 0.05 * height
        bottom += random.uniform(0, 0.35) * height
        shape = random.choice((draw.ellipse, draw.rectangle, partial(draw_triangle, draw)))
        shape((left, top, right, bottom), fill=any_colour(random))


def draw_triangle(draw: ImageDraw.ImageDraw, box: Box, fill: Colour) -> None:
    """Draw a filled triangle with its tip above."""
    left, top, right, bottom = box
    draw.polygon([(left, bottom), ((left + right) / 2, top), (right, bottom)], fill=fill)


def any_colour(random: Random) -> Colour:
    """Return a colour of any hue that is neither black nor white."""
    return random.randint(25, 230), random.randint(25, 230), random.randint(25, 230)


def in_other_light(picture: Image.Image, random: Random) -> Image.Image:
    """Return the picture as a camera would show it in dim or bright, warm or cold light."""
    exposure, warmth = random.uniform(0.45, 1.15), random.uniform(0.85, 1.15)
    factors = exposure * warmth, exposure, exposure / warmth
    levels = [min(255, round(level * factor)) for factor in factors for level in range(256)]
    return picture.point(levels)


def draw_balloon(draw: ImageDraw.ImageDraw, box: Box, colour: Colour, random: Random) -> None:
    """Draw an oval with a string below and a shine."""
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    oval_bottom = top + 0.74 * height
    middle = (left + right) / 2
    draw.line(
        (middle, oval_bottom, middle, bottom), fill=(170, 170, 170), width=thickness(width, 0.04)
    )
    draw.ellipse((left, top, right, oval_bottom), fill=colour)
    shine = left + 0.24 * width, top + 0.14 * height
    draw.ellipse((*shine, shine[0] + 0.2 * width, shine[1] + 0.16 * height), fill=lighter(colour))


def draw_bus(draw: ImageDraw.ImageDraw, box: Box, colour: Colour, random: Random) -> None:
    """Draw a long body with a row of windows and two wheels."""
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    body_bottom = bottom - 0.16 * height
    draw.rounded_rectangle((left, top, right, body_bottom), radius=0.1 * height, fill=colour)
    windows = random.randint(3, 5)
    pitch = 0.9 * width / windows
    for index in range(windows):
        start = left + 0.05 * width + index * pitch
        draw.rectangle(
            (start + 0.1 * pitch, top + 0.15 * height, start + 0.9 * pitch, top + 0.45 * height),
            fill=(205, 230, 245),
        )
    radius = 0.17 * height
    for middle in (left + 0.22 * width, right - 0.22 * width):
        circle = (middle - radius, bottom - 2 * radius, middle + radius, bottom)
        draw.ellipse(circle, fill=(105, 105, 115))


def draw_christmas_tree(
    draw: ImageDraw.ImageDraw, box: Box, colour: Colour, random: Random
) -> None:
    """Draw three green tiers on a trunk, with baubles in the given colour."""
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    middle = (left + right) / 2
    trunk = (middle - 0.08 * width, top + 0.85 * height, middle + 0.08 * width, bottom)
    draw.rectangle(trunk, fill=(95, 60, 35))
    green = (random.randint(20, 60), random.randint(125, 155), random.randint(60, 90))
    for tier, (half_width, tier_top, tier_bottom) in enumerate(
        ((0.5, 0.5, 0.88), (0.4, 0.25, 0.64), (0.28, 0.0, 0.38))
    ):
        shade = tuple(min(255, part + 14 * tier) for part in green)
        corners = [
            (middle, top + tier_top * height),
            (middle - half_width * width, top + tier_bottom * height),
            (middle + half_width * width, top + tier_bottom * height),
        ]
        draw.polygon(corners, fill=shade)
    for across, down in ((-0.15, 0.7), (0.18, 0.78), (0.05, 0.5), (-0.08, 0.3)):
        draw_disc(draw, middle + across * width, top + down * height, 0.05 * width, colour)


def draw_house(draw: ImageDraw.ImageDraw, box: Box, colour: Colour, random: Random) -> None:
    """Draw walls, a darker roof, a door and two windows."""
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    eaves = top + 0.42 * height
    draw.rectangle((left + 0.08 * width, eaves, right - 0.08 * width, bottom), fill=colour)
    roof = [(left, eaves), ((left + right) / 2, top), (right, eaves)]
    draw.polygon(roof, fill=darker(colour))
    door = left + random.uniform(0.42, 0.5) * width
    draw.rectangle((door, bottom - 0.36 * height, door + 0.14 * width, bottom), fill=(70, 45, 30))
    for window in (left + 0.18 * width, right - 0.34 * width):
        pane = (window, eaves + 0.1 * height, window + 0.16 * width, eaves + 0.26 * height)
        draw.rectangle(pane, fill=(250, 240, 170))


def draw_mushroom(draw: ImageDraw.ImageDraw, box: Box, colour: Colour, random: Random) -> None:
    """Draw a half-round dotted cap on a pale stem."""
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    cap_bottom = top + 0.55 * height
    stem = (left + 0.35 * width, cap_bottom - 2, right - 0.35 * width, bottom)
    draw.rounded_rectangle(stem, radius=0.1 * width, fill=(238, 228, 205))
    draw.pieslice((left, top, right, top + 1.1 * height), 180, 360, fill=colour)
    for across, down in ((0.25, 0.4), (0.5, 0.18), (0.75, 0.4), (0.5, 0.43)):
        x, y = left + across * width, top + down * height
        draw_disc(draw, x, y, 0.07 * width, (250, 250, 245))


def draw_umbrella(draw: ImageDraw.ImageDraw, box: Box, colour: Colour, random: Random) -> None:
    """Draw a canopy of panels in two shades, over a stick with a hook."""
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    middle = (left + right) / 2
    stick = thickness(width, 0.05)
    draw.line((middle, top + 0.1 * height, middle, bottom - 0.1 * height), (170, 140, 110), stick)
    hook = (middle - 0.16 * width, bottom - 0.2 * height, middle + stick / 2, bottom)
    draw.arc(hook, 0, 180, fill=(170, 140, 110), width=stick)
    canopy_height = 1.1 * height
    draw.pieslice((left, top, right, top + canopy_height), 180, 360, fill=colour)
    inner = (left + 0.3 * width, top, right - 0.3 * width, top + canopy_height)
    draw.pieslice(inner, 180, 360, fill=lighter(colour))
    rim = top + canopy_height / 2
    scallop = width / 4
    for index in range(4):
        start = left + index * scallop
        draw.ellipse(
            (start, rim - 0.08 * height, start + scallop, rim + 0.08 * height), fill=colour
        )


def draw_disc(draw: ImageDraw.ImageDraw, x: float, y: float, radius: float, colour: Colour) -> None:
    """Draw a filled circle around a point."""
    draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)


def thickness(width: float, share: float) -> int:
    """Return a line's width in pixels, given its share of an object's width."""
    return max(SUPERSAMPLING, round(width * share))


def lighter(colour: Colour) -> Colour:
    """Return the colour half-way to white."""
    red, green, blue = ((part + 255) // 2 for part in colour)
    return red, green, blue


def darker(colour: Colour) -> Colour:
    """Return the colour at two thirds of its brightness."""
    red, green, blue = (part * 2 // 3 for part in colour)
    return red, green, blue


RED = (214, 48, 49)
ORANGE = (240, 140, 30)
YELLOW = (245, 205, 45)
PINK = (200, 70, 160)
VIOLET = (130, 80, 200)
BLUE = (50, 120, 225)

KINDS = (
    Kind("Balloon", draw_balloon, (RED, ORANGE), 0.62, floats=True),
    Kind("Bus", draw_bus, (ORANGE, YELLOW), 2.0),
    Kind("Christmas tree", draw_christmas_tree, (YELLOW, RED), 0.75),
    Kind("House", draw_house, (PINK, VIOLET), 1.1),
    Kind("Mushroom", draw_mushroom, (VIOLET, RED), 1.0),
    Kind("Umbrella", draw_umbrella, (BLUE, PINK), 1.0, floats=True),
)
"""In the order of their category ids, from 1. Classes share colours on purpose."""
