"""The objects of drawn scenes: each class has a painter that fills a box."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from PIL import ImageDraw

Colour = tuple[int, int, int]
Box = tuple[float, float, float, float]
"""xyxy, pixels"""

SUPERSAMPLING = 2
"""Scenes are drawn this many times larger and reduced, because Pillow draws hard edges."""


def draw_balloon(draw: ImageDraw.ImageDraw, box: Box, colour: Colour, random: Random) -> None:
    """An oval with a string below and a shine."""
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
    """A long body with a row of windows and two wheels."""
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
    """Three green tiers on a trunk, with baubles in the given colour."""
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
    radius = 0.05 * width
    for across, down in ((-0.15, 0.7), (0.18, 0.78), (0.05, 0.5), (-0.08, 0.3)):
        place = middle + across * width, top + down * height
        draw.ellipse(
            (place[0] - radius, place[1] - radius, place[0] + radius, place[1] + radius),
            fill=colour,
        )


def draw_house(draw: ImageDraw.ImageDraw, box: Box, colour: Colour, random: Random) -> None:
    """Walls, a darker roof, a door and two windows."""
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
    """A half-round dotted cap on a pale stem."""
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    cap_bottom = top + 0.55 * height
    stem = (left + 0.35 * width, cap_bottom - 2, right - 0.35 * width, bottom)
    draw.rounded_rectangle(stem, radius=0.1 * width, fill=(238, 228, 205))
    draw.pieslice((left, top, right, top + 1.1 * height), 180, 360, fill=colour)
    radius = 0.07 * width
    for across, down in ((0.25, 0.4), (0.5, 0.18), (0.75, 0.4), (0.5, 0.43)):
        place = left + across * width, top + down * height
        draw.ellipse(
            (place[0] - radius, place[1] - radius, place[0] + radius, place[1] + radius),
            fill=(250, 250, 245),
        )


def draw_umbrella(draw: ImageDraw.ImageDraw, box: Box, colour: Colour, random: Random) -> None:
    """A canopy of panels in two shades, over a stick with a hook."""
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


def thickness(width: float, share: float) -> int:
    """A line's width in whole pixels: a share of the object's width, at least one pixel drawn."""
    return max(SUPERSAMPLING, round(width * share))


def lighter(colour: Colour) -> Colour:
    """Half-way to white."""
    red, green, blue = ((part + 255) // 2 for part in colour)
    return red, green, blue


def darker(colour: Colour) -> Colour:
    """Two thirds of the brightness."""
    red, green, blue = (part * 2 // 3 for part in colour)
    return red, green, blue


@dataclass(frozen=True)
class Kind:
    """One class of drawn objects: its name, its painter, its usual colours, shape and place."""

    name: str
    paint: Callable[[ImageDraw.ImageDraw, Box, Colour, Random], None]
    colours: tuple[Colour, ...]
    width_over_height: float
    floats: bool = False


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
