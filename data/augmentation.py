"""Augmentation: random changes of training images, which torchvision's transforms v2 draw.

Geometry comes first, as a `Window` of the image: zooming out, cropping around objects and scale
jitter each change the window, and the image is then cropped and resized once, whatever the number
of changes. Mirroring and colours follow, on the pixels of the image alone: padding keeps its
colour.

All draws depend on the seed of the sample's key alone. torchvision draws from torch's global
generator: it is seeded here, and put back after (`seeded`), because the process that loads may be
the one that trains. Operators run on so few numbers that torch gives them one thread: their
rounding is the same in a process of many threads.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.tv_tensors import BoundingBoxes

from data.annotations import Resize, Size, content_size
from data.tiling import Window
from data.transforms import clip_boxes, flip, scale_boxes

AUGMENTATIONS = {
    "flip": ("flip",),
    "scale_jitter": ("scale_jitter",),
    "photometric": ("photometric",),
    # Liu et al., SSD, section 2.2; as `ssd` of torchvision's references/detection/presets.py
    "ssd": ("zoom_out", "crop", "flip", "photometric"),
    "strong": ("scale_jitter", "flip", "photometric"),
}
"""The values of `data.augmentation`, and the steps of each; their order here has no effect."""

JITTER = (0.5, 2.0)
"""Range of the factor by which scale jitter enlarges objects."""
LEAST_VISIBLE = 0.25
"""An object is labelled if so much of its box is within the window; torchvision's crop keeps boxes
whose centre is, of which a quarter is visible at least."""
WINDOWS_TRIED = 10
"""Windows that would leave no object in the image are drawn again so often."""
SMALLEST_TO_CROP = 4  # Side of an image of which RandomIoUCrop's smallest part has a pixel
SERIAL = 32_768 // 3  # Pixels whose three channels torch computes on one thread (GRAIN_SIZE)
GREY = (0.2989, 0.587, 0.114)  # Weights of red, green and blue, as torchvision's

ZOOM_OUT = v2.RandomZoomOut()
CROP = v2.RandomIoUCrop()
DISTORT = v2.RandomPhotometricDistort()


class View(NamedTuple):
    """The visible part of an image, and its place on the network's input; whole pixels."""

    source: tuple[int, int, int, int]  # Left, top, right, bottom in the image file
    target: tuple[int, int, int, int]  # The same on the input

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) on the input."""
        left, top, right, bottom = self.target
        return bottom - top, right - left


def whole_view(image_size: Size, *, size: Size, resize: Resize) -> View:
    """Return the view of an image of (height, width) pixels that evaluation has."""
    height, width = content_size(image_size, size=size, resize=resize)
    return View((0, 0, image_size[1], image_size[0]), (0, 0, width, height))


def window_view(window: Window, image_size: Size, *, size: Size, resize: Resize) -> View | None:
    """Return the view of a window, on whole pixels; None if no part of the image is within it."""
    left, right = max(window.left, 0), min(window.right, image_size[1])
    top, bottom = max(window.top, 0), min(window.bottom, image_size[0])
    if left >= right or top >= bottom:
        return None
    height, width = window.size
    new_height, new_width = content_size(window.size, size=size, resize=resize)
    x_scale, y_scale = new_width / width, new_height / height
    x1, x2 = place((left - window.left) * x_scale, (right - window.left) * x_scale, new_width)
    y1, y2 = place((top - window.top) * y_scale, (bottom - window.top) * y_scale, new_height)
    return View((left, top, right, bottom), (x1, y1, x2, y2))


def place(start: float, end: float, length: int) -> tuple[int, int]:
    """Return whole numbers from 0 to `length` near both ends, at least one apart."""
    first = min(max(round(start), 0), length - 1)
    return first, min(max(round(end), first + 1), length)


def view_boxes(
    boxes: Tensor,
    view: View,
    least_visible: float | Tensor = LEAST_VISIBLE,
    /,
    *,
    original_size: Size,
    image_size: Size,
) -> tuple[Tensor, Tensor]:
    """Map float64 boxes `[B, 4]` of the annotated image to pixels of the view, and clip them.

    Also returns which `[B]` bool have an area, and, unless the view is of the whole image, of which
    the share `least_visible`, one or `[B]`, is visible. The file has `image_size`; sizes are
    (height, width).
    """
    left, top, right, bottom = view.source
    height, width = image_size
    # In annotated pixels, which are also the file's unless that is a resized copy.
    part = (bottom - top) * original_size[0] / height, (right - left) * original_size[1] / width
    start = boxes.new_tensor((left * original_size[1] / width, top * original_size[0] / height) * 2)
    mapped = scale_boxes(boxes - start, original_size=part, size=view.size)
    clipped, keep = clip_boxes(mapped, size=view.size)
    if view.source != (0, 0, width, height):
        whole, _ = clip_boxes(boxes, size=original_size)
        whole = scale_boxes(whole, original_size=part, size=view.size)
        keep &= areas(clipped) >= least_visible * areas(whole)
    return clipped, keep


def areas(boxes: Tensor) -> Tensor:
    """Return the areas `[B]` of boxes `[B, 4]`."""
    return (boxes[:, 2:] - boxes[:, :2]).prod(dim=1)


class Augmentation:
    """The random changes of `data.augmentation`, drawn from the seed of a sample's key."""

    def __init__(self, names: Sequence[str]) -> None:
        """Take names of `AUGMENTATIONS`; none: images stay as they are."""
        self.steps = frozenset(step for name in names for step in AUGMENTATIONS[name])

    def draw_view(
        self,
        boxes: Tensor,
        *,
        seed: int,
        original_size: tuple[int, int],
        image_size: tuple[int, int],
        size: Size,
        resize: Resize,
        keeps_an_object: bool,
    ) -> View:
        """Return the view of an image with boxes float64 `[B, 4]` in annotated pixels.

        With `keeps_an_object`, an image with boxes does not lose all of them. The image file has
        `image_size`, the network's input has `size`; all are (height, width).
        """
        whole = whole_view(image_size, size=size, resize=resize)
        if self.steps.isdisjoint(("zoom_out", "crop", "scale_jitter")):
            return whole
        mapping = {"original_size": original_size, "image_size": image_size}
        # Only boxes that training would use: the crop is drawn around one of them.
        useful = boxes[view_boxes(boxes, whole, **mapping)[1]]
        in_file = scale_boxes(useful, original_size=original_size, size=image_size)
        with seeded(seed, stream=0):
            for _ in range(WINDOWS_TRIED):
                window = self._draw_window(in_file, image_size)
                view = window_view(window, image_size, size=size, resize=resize)
                if view is None:
                    continue
                has_object = bool(view_boxes(useful, view, **mapping)[1].any())
                if has_object or not keeps_an_object or not len(useful):
                    return view
        return whole

    def _draw_window(self, boxes: Tensor, image_size: tuple[int, int]) -> Window:
        """Return a window of an image of (height, width) with boxes `[B, 4]` in its pixels."""
        window = Window(0, 0, image_size[1], image_size[0])
        if "zoom_out" in self.steps and torch.rand(()) < ZOOM_OUT.p:
            left, top, right, bottom = ZOOM_OUT.make_params([canvas(boxes, window)])["padding"]
            window = Window(-left, -top, window.right + right, window.bottom + bottom)
        # Without boxes torchvision tries hundreds of crops; of a few pixels it divides by 0.
        if "crop" in self.steps and len(boxes) and min(window.size) >= SMALLEST_TO_CROP:
            crop = CROP.make_params([canvas(boxes, window)])
            if crop:  # else it has drawn that the image stays whole
                window = inner(window, crop["left"], crop["top"], crop["height"], crop["width"])
        if "scale_jitter" in self.steps:
            window = jittered(window)
        return window

    def mirror(self, image: Tensor, boxes: Tensor, *, seed: int) -> tuple[Tensor, Tensor]:
        """Mirror `[3, H, W]` and its boxes `[B, 4]` for half of the seeds, if that is a step."""
        if "flip" in self.steps and np.random.default_rng(seed).random() < 0.5:
            return flip(image, boxes)
        return image, boxes

    def change_colours(self, image: Tensor, *, seed: int) -> Tensor:
        """Return `[3, H, W]` uint8 with other colours, channels last, if that is a step."""
        if "photometric" not in self.steps:
            return image
        with seeded(seed, stream=1):
            params = DISTORT.make_params([image])
        return distort(image, params)


def canvas(boxes: Tensor, window: Window) -> BoundingBoxes:
    """Return boxes in pixels of a window, as torchvision takes them."""
    shifted = boxes - boxes.new_tensor((window.left, window.top) * 2)
    return BoundingBoxes(shifted, format="XYXY", canvas_size=window.size)


def inner(window: Window, left: int, top: int, height: int, width: int) -> Window:
    """Return a window given in pixels of another one."""
    left, top = window.left + left, window.top + top
    return Window(left, top, left + width, top + height)


def jittered(window: Window) -> Window:
    """Return a window of the same shape, in which objects appear larger or smaller.

    A larger window has the old one at a random place, a smaller one is at a random place in it.
    """
    height, width = window.size
    none = torch.zeros(0, 4)
    longer = max(height, width)
    # A square: ScaleJitter confuses height and width of any other target (torchvision 0.29).
    jitter = v2.ScaleJitter((longer, longer), JITTER)
    enlarged = jitter.make_params([canvas(none, window)])["size"]
    enlarged = max(1, enlarged[0]), max(1, enlarged[1])
    sizes = Window(0, 0, enlarged[1], enlarged[0])
    crop = v2.RandomCrop((height, width), pad_if_needed=True).make_params([canvas(none, sizes)])
    padding = crop["padding"]  # Left, top, right, bottom
    y_scale, x_scale = height / enlarged[0], width / enlarged[1]
    return inner(
        window,
        round((crop["left"] - padding[0]) * x_scale),
        round((crop["top"] - padding[1]) * y_scale),
        max(1, round(height * y_scale)),
        max(1, round(width * x_scale)),
    )


def distort(image: Tensor, params: dict[str, Any]) -> Tensor:
    """Return `[3, H, W]` uint8 as torchvision's RandomPhotometricDistort does, channels last.

    `params` are what its `make_params` returns. Contrast has the mean of all pixels, so there is a
    pass before it and one after it. Each takes as many pixels at once as the cache holds.
    """
    height, width = image.shape[1:]
    pixels = image.permute(1, 2, 0).reshape(-1, 3).clone()
    without = {**params, "contrast_factor": None, "channel_permutation": None}
    colours = ("brightness_factor", "saturation_factor", "hue_factor")
    none = {**without, **dict.fromkeys(colours)}
    before = none | {"brightness_factor": params["brightness_factor"]}
    after = without | {"brightness_factor": None}
    if not params["contrast_before"]:
        before, after = without, none
    after["channel_permutation"] = params["channel_permutation"]
    apply(before, pixels)
    if params["contrast_factor"] is not None:
        change_contrast(pixels, params["contrast_factor"])
    apply(after, pixels)
    return pixels.view(height, width, 3).permute(2, 0, 1)


def apply(params: dict[str, Any], pixels: Tensor) -> None:
    """Change pixels `[N, 3]` uint8 in place, by the operators of RandomPhotometricDistort."""
    if all(value is None for name, value in params.items() if name != "contrast_before"):
        return
    for part in pixels.split(SERIAL):
        planes = part.t().contiguous()[:, None]
        part.copy_(DISTORT.transform(planes, params)[:, 0].t())


def change_contrast(pixels: Tensor, factor: float) -> None:
    """Blend pixels `[N, 3]` uint8 in place with their mean grey: torchvision's adjust_contrast."""
    # The sum is of integers: exact in any order, unlike torchvision's mean of floats.
    means = pixels.sum(dim=0, dtype=torch.int64).double() / max(1, len(pixels))
    grey = float(means @ means.new_tensor(GREY))
    levels = torch.arange(256).double().mul_(factor).add_(grey * (1 - factor))
    table = levels.clamp_(0, 255).to(torch.uint8)
    for part in pixels.split(SERIAL):
        part.copy_(table[part.int()])


@contextmanager
def seeded(seed: int, stream: int) -> Iterator[None]:
    """Seed torch's global generator within the context; other streams of a seed are independent."""
    state = np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)
    with torch.random.fork_rng(devices=()):
        # Not torch.manual_seed, which also seeds the generators of accelerators.
        torch.default_generator.manual_seed(int(state[0]))
        yield
