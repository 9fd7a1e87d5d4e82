"""A trained detector in Python: `Detector.load(path).predict(images)`, and the boxes it returns.

`retinanet predict` uses the same class, so both find the same boxes. docs/python.md has
examples, and says what stays as it is between versions.
"""

import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from io import IOBase
from itertools import islice
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias, TypeGuard, cast, get_args, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from common.errors import InputError, names_checked, printable, require_count
from common.wording import counted
from data.annotations import ClassMap, ImageSize, shown_size
from data.decoding import DAMAGE, decode_bytes, decode_image, size_fault, to_rgb
from data.parts import read_ahead
from data.tiling import TileOptions, Tiling
from launch.environment import set_allocator
from retinanet.config_types import Precision, chosen_precision
from retinanet.engine.engines import torch_forward
from retinanet.evaluation.command import read_trained
from retinanet.evaluation.detect import SCORE_THRESHOLD, detect_pictures
from retinanet.evaluation.matching import ImageDetections, xywh
from retinanet.evaluation.output import LONGEST_NAME, Pixels, draw_detections
from retinanet.evaluation.tiles import detect_in_tiles
from retinanet.training.checkpoint import Checkpoint

DEFAULT_SCORE = 0.4
"""Boxes of a lower score are left out; also the default of `predict --score`."""
DEFAULT_BATCH = 8
THREADS = 2
"""Threads that decode and compress, which Pillow does without holding the GIL. Only one thread
calls torch, since OpenMP starts a separate team of threads for every calling thread."""
SHOWN_BOXES = 5  # in `repr`

Encoded: TypeAlias = bytes | bytearray | memoryview
"""The content of an image file."""
Picture: TypeAlias = str | PathLike[str] | Encoded | Image.Image | NDArray[np.uint8] | Tensor
"""What `predict` takes: a file's path or its content, an image of Pillow's, RGB uint8 pixels
[H, W, 3] or grey ones [H, W] as an array, or a uint8 tensor [3, H, W] or [1, H, W]."""
KINDS = "a path, the bytes of a file, a Pillow image, a uint8 array or tensor"


class Detection(NamedTuple):
    """One object in an image."""

    box: tuple[float, float, float, float]  # x1, y1, x2, y2 in pixels of the image
    name: str
    score: float
    label: int  # the id of its category in the annotations of the training


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Detections:
    """The objects in one image, the best first; iterating yields a `Detection` for each.

    Pixels are those of the image as it is displayed: a photo is turned by its EXIF orientation.
    """

    boxes: NDArray[np.float32]
    """[N, 4] x1, y1, x2, y2 in pixels of the image."""
    scores: NDArray[np.float32]
    """[N] from 0 to 1, in descending order."""
    labels: NDArray[np.int64]
    """[N] ids of the categories in the annotations of the training."""
    names: list[str]
    """[N] names of the classes."""
    width: int
    height: int
    path: Path | None
    """The file that the image was read from; None for pixels in memory."""
    _picture: Picture = field()
    _checksum: int | None = None
    """Of pixels in memory, which a caller may overwrite; None for a file."""

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self.scores)

    def __iter__(self) -> Iterator[Detection]:
        """Yield the objects, the best first."""
        for box, name, score, label in zip(
            self.boxes.tolist(), self.names, self.scores.tolist(), self.labels.tolist(), strict=True
        ):
            yield Detection((box[0], box[1], box[2], box[3]), name, score, label)

    def __repr__(self) -> str:
        """Return a line with the size of the image and its best objects."""
        best = [f"{printable(found.name)} {found.score:.2f}" for found in islice(self, SHOWN_BOXES)]
        others = ["…"] if len(self) > SHOWN_BOXES else []
        where = f"{self.path}, " if self.path else ""
        what = f": {', '.join([*best, *others])}" if best else ""
        return f"<{where}{self.width}×{self.height} pixels, {counted(len(self), 'object')}{what}>"

    def draw(self) -> Image.Image:
        """Return a copy of the image with boxes, classes and scores; small ones are enlarged.

        Files are read again, and pixels in memory are not copied, so that detections in many images
        take little memory.

        Raises:
            InputError: The file cannot be read any more, or the pixels in memory have changed.
        """
        names = dict(zip(self.labels.tolist(), self.names, strict=True))
        pixels = read_picture(self._picture)
        if self._checksum not in (None, zlib.crc32(pixels.data)):
            raise InputError(
                f"{type(self._picture).__name__}: its pixels have changed since predict; draw "
                "before they are overwritten, or give predict a copy"
            )
        drawn = draw_detections(pixels, self._in_image(), names=names, least_score=0)
        return Image.fromarray(drawn)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the objects as `predict --json` writes them, with COCO's `bbox`: x, y, w, h.

        With an `image_id` in each they are COCO's result format.
        """
        names = dict(zip(self.labels.tolist(), self.names, strict=True))
        facts = {} if self.path is None else {"file": str(self.path)}
        return box_records(self._in_image(), names=names, **facts)

    def _in_image(self) -> ImageDetections:
        return ImageDetections(
            image_id=0,
            boxes=self.boxes.astype(np.float64),
            scores=self.scores.astype(np.float64),
            category_ids=self.labels,
        )


class Detector:
    """The trained detector of a checkpoint; `Detector.load` makes one.

    Threads may share it: they predict one after another. It must not be used in a process that is
    forked after the first prediction, since OpenMP's threads do not exist there.
    """

    def __init__(self, checkpoint: Checkpoint, *, precision: str | None = "auto") -> None:
        """Load the weights of a checkpoint; `precision` as in `load`."""
        if precision not in (None, *get_args(Precision)):
            raise InputError(f"precision: expected auto, bf16 or float32, found {precision!r}")
        self._class_map = ClassMap.from_json(checkpoint.model.classes)
        pairs = zip(self._class_map.category_ids, self._class_map.names, strict=True)
        self.names: dict[int, str] = {number: name[:LONGEST_NAME] for number, name in pairs}
        """The names of the classes by their ids in the annotations of the training."""
        self.path: Path = checkpoint.folder
        """The folder of the checkpoint."""
        self.image_size: ImageSize = checkpoint.model.image_size
        """Images are resized for the network to a square of this side, or to (height, width), which
        are exchanged for images of the other orientation. [pixels]"""
        self._resize = checkpoint.model.resize
        self.precision: str = chosen_precision(precision or checkpoint.model.precision)
        """`bf16` or `float32`: the arithmetic of convolutions."""
        self.network = checkpoint.build_model().eval()
        """The model, with weights in float32; no part of the stable interface."""
        self._forward = torch_forward(self.network, precision=self.precision)
        self._lock = threading.Lock()

    @classmethod
    @names_checked()
    def load(cls, path: str | PathLike[str], *, precision: str | None = "auto") -> Self:
        """Load a detector from a run (its best checkpoint, else its last) or from a checkpoint.

        `path` is `runs/NAME`, `runs/NAME/checkpoints/best`, a file in such a folder, or a folder
        that `retinanet convert --detector` has written. `precision` is `bf16`, `float32`, or
        `auto`: `bf16` if the processor has instructions for it, however the detector was trained;
        None: that of the training. As in all commands, the C library keeps freed memory of this
        process for the next batch.

        Raises:
            InputError: There is no checkpoint, or it is damaged.
        """
        set_allocator("tuned")
        return cls(read_trained(Path(path)), precision=precision)

    def __repr__(self) -> str:
        """Return a line with the checkpoint and its classes."""
        names = ", ".join(map(printable, islice(self.names.values(), SHOWN_BOXES)))
        others = ", …" if len(self.names) > SHOWN_BOXES else ""
        size = shown_size(self.image_size)
        return f"<Detector {self.path}, {size} pixels, {self.precision}, {names}{others}>"

    @overload
    def predict(  # type: ignore[overload-overlap]  # a path is also an Iterable[str]
        self,
        images: Picture,
        *,
        min_score: float = DEFAULT_SCORE,
        classes: Iterable[str] | None = None,
        batch_size: int = DEFAULT_BATCH,
        tiles: int | None = None,
        overlap: float | None = None,
    ) -> Detections: ...

    @overload
    def predict(
        self,
        images: Iterable[Picture],
        *,
        min_score: float = DEFAULT_SCORE,
        classes: Iterable[str] | None = None,
        batch_size: int = DEFAULT_BATCH,
        tiles: int | None = None,
        overlap: float | None = None,
    ) -> list[Detections]: ...

    def predict(
        self,
        images: Picture | Iterable[Picture],
        *,
        min_score: float = DEFAULT_SCORE,
        classes: Iterable[str] | None = None,
        batch_size: int = DEFAULT_BATCH,
        tiles: int | None = None,
        overlap: float | None = None,
    ) -> Detections | list[Detections]:
        """Return the objects in one image, or a list with those of each of many.

        An image is a path, the bytes of a file, an image of Pillow's, an RGB uint8 array [H, W, 3]
        (grey: [H, W]), or a uint8 tensor [3, H, W]. Objects with a score below `min_score` are left
        out, and those of all other classes than `classes`, unless that is None. `batch_size`
        images, which may differ in size, are computed at a time, while the next ones are decoded.

        For objects that are small in large images, `tiles` cuts each image into squares of so many
        pixels, which share `overlap` (0.2) of their side at least; `batch_size` counts tiles then.
        An image that is no larger than a tile is detected as without them.

        Raises:
            InputError: An image cannot be read, has other pixels, or is a folder, and none is
                returned; or a class is unknown, or a number is out of its range.
        """
        pictures: Iterable[Picture]
        if is_one_picture(images):
            pictures = [images]
        elif isinstance(images, Iterable) and not isinstance(images, Mapping | IOBase):
            pictures = cast("Iterable[Picture]", images)
        else:
            raise no_picture(images)
        require_range(min_score=min_score, batch_size=batch_size)
        only = class_names(classes)
        tiling = TileOptions(tiles=tiles, overlap=overlap).tiling()
        at_once = batch_size if tiling is None else 1
        self.require_classes(only or (), option="classes")
        results: list[Detections] = []
        with ThreadPoolExecutor(THREADS, thread_name_prefix="decode") as pool:
            for batch in read_ahead(pictures, read_picture, pool, batch_size=at_once):
                found = self.detect(
                    [pixels for _, pixels in batch],
                    least_score=min_score,
                    only=only,
                    tiling=tiling,
                    batch_size=batch_size,
                )
                results += [
                    self._detections(picture, pixels, detections)
                    for (picture, pixels), detections in zip(batch, found, strict=True)
                ]
        return results[0] if is_one_picture(images) else results

    def require_classes(self, names: Iterable[str], *, option: str) -> None:
        """Raise InputError if a name is not one of the classes; `option` begins the message."""
        for name in names:
            if name not in self._class_map.names:
                known = ", ".join(sorted(set(self._class_map.names)))
                raise InputError(f"{option}: {name!r} is not a class of the checkpoint: {known}")

    def detect(
        self,
        pictures: Sequence[Pixels],
        *,
        least_score: float,
        only: Sequence[str] | None = None,
        tiling: Tiling | None = None,
        batch_size: int = DEFAULT_BATCH,
        between: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[ImageDetections]:
        """Return detections in one batch of RGB pictures, which may differ in size; best first.

        Boxes are in pixels of the pictures. Those below `least_score` are dropped, and all other
        classes than `only`, if it is given. With a `tiling`, each picture is cut into tiles, of
        which `batch_size` are computed at a time; see `tiles.detect_in_tiles`, also for `between`.
        """
        # A tile may be sure of its part of an object that another one sees whole but is less sure.
        threshold = min(SCORE_THRESHOLD, least_score)
        detect = partial(
            detect_pictures,
            self.network,
            classes=self._class_map,
            forward=self._forward,
            image_size=self.image_size,
            resize=self._resize,
            score_threshold=threshold,
        )
        with self._lock:
            found = (
                detect(pictures)
                if tiling is None
                else [
                    detect_in_tiles(
                        pixels, detect, tiling=tiling, batch_size=batch_size, between=between
                    )
                    for pixels in pictures
                ]
            )
        pairs = zip(self._class_map.category_ids, self._class_map.names, strict=True)
        selected = [number for number, name in pairs if only is None or name in only]
        return [
            each.select((each.scores >= least_score) & np.isin(each.category_ids, selected))
            for each in found
        ]

    def _detections(
        self, picture: Picture, pixels: Pixels, detections: ImageDetections
    ) -> Detections:
        return Detections(
            boxes=detections.boxes.astype(np.float32),
            scores=detections.scores.astype(np.float32),
            labels=detections.category_ids,
            names=[self.names[number] for number in detections.category_ids.tolist()],
            width=pixels.shape[1],
            height=pixels.shape[0],
            path=Path(picture) if isinstance(picture, str | PathLike) else None,
            _picture=picture,
            _checksum=None if isinstance(picture, str | PathLike) else zlib.crc32(pixels.data),
        )


def require_range(*, min_score: object, batch_size: object) -> None:
    """Raise InputError if an argument of `predict` is not a number of its range."""
    # Of numpy too; NaN is in no range.
    if not isinstance(min_score, Real) or not 0 <= float(min_score) <= 1:
        raise InputError(f"min_score: expected a number from 0 to 1, found {min_score!r}")
    require_count(batch_size, name="batch_size")


def class_names(classes: Iterable[str] | None) -> tuple[str, ...] | None:
    """Return the names in `classes` of `predict`, which may be one; None for all classes."""
    if classes is None:
        return None
    if not isinstance(classes, Iterable):
        raise InputError(f"classes: expected names, found {classes!r}")
    return (classes,) if isinstance(classes, str) else tuple(classes)


def box_records(
    detections: ImageDetections, *, names: dict[int, str], **facts: object
) -> list[dict[str, Any]]:
    """Return a dict of plain values per box, best first, with COCO's `bbox`; `facts` come first."""
    boxes, ids = xywh(detections.boxes), detections.category_ids.tolist()
    return [
        {
            **facts,
            "bbox": [round(edge, 2) for edge in box.tolist()],
            "score": round(float(score), 4),
            "category_id": category_id,
            "category": names[category_id],
        }
        for box, score, category_id in zip(boxes, detections.scores, ids, strict=True)
    ]


def is_one_picture(images: object) -> TypeGuard[Picture]:
    """Return whether an argument of `predict` is one image; arrays of four dimensions are many."""
    if isinstance(images, np.ndarray | Tensor):
        return images.ndim != 4
    return isinstance(images, str | PathLike | Encoded | Image.Image)


def read_picture(picture: Picture) -> Pixels:
    """Return RGB pixels [H, W, 3] of an image, a photo turned by its EXIF orientation.

    Raises:
        InputError: The file cannot be read, or the pixels are not as `Picture` describes.
    """
    if isinstance(picture, str | PathLike):
        path = Path(picture)
        if os.path.isdir(path):  # noqa: PTH112 - False where the name is too long
            raise InputError(
                f"{path}: is a folder; give its files, such as sorted(Path({str(path)!r})"
                ".glob('*.jpg'))"
            )
        return decode_image(path, apply_exif_orientation=True)
    if isinstance(picture, Encoded):
        return decode_bytes(bytes(picture))
    if isinstance(picture, Image.Image):
        require_size("Pillow image", width=picture.width, height=picture.height)
        try:
            return to_rgb(ImageOps.exif_transpose(picture))
        except DAMAGE as error:  # a truncated file, or pixels of 32 bits
            raise InputError(f"Pillow image: {error}") from error
    if isinstance(picture, Tensor):
        return tensor_pixels(picture)
    if isinstance(picture, np.ndarray):
        return array_pixels(picture)
    raise no_picture(picture)


def no_picture(value: object) -> InputError:
    """Return the error about an argument that is no `Picture`."""
    kind = type(value).__name__
    if hasattr(value, "read"):
        return InputError(f"{kind} is an open file; give its path, or its bytes: file.read()")
    return InputError(f"{kind} is no image; give {KINDS}, or a list of them")


def require_size(what: str, *, width: int, height: int) -> None:
    """Raise InputError if pixels in memory are none, or more than a file may have."""
    if not width or not height:
        raise InputError(f"{what}: has no pixels")
    if fault := size_fault(width, height):
        raise InputError(f"{what}: too large: {fault}; shrink it")


def array_pixels(array: NDArray[Any]) -> Pixels:
    """Return RGB pixels of an array: uint8 [H, W, 3], or grey [H, W]; InputError for another."""
    shape = " × ".join(map(str, array.shape)) or "no dimension"
    if array.dtype != np.uint8:
        raise InputError(
            f"array of {array.dtype}: expected uint8, 0 to 255; scale it by yourself, since its "
            "range is not known"
        )
    if array.ndim != 2 and array.shape[2:] != (3,):
        raise InputError(
            f"array of {shape}: expected height × width × 3 (RGB; image[..., ::-1] makes it of "
            "OpenCV's BGR) or height × width"
        )
    # Before pixels are touched: np.broadcast_to makes any size of a few bytes.
    require_size(f"array of {shape}", width=array.shape[1], height=array.shape[0])
    if array.ndim == 2:
        array = np.repeat(array[:, :, None], 3, axis=2)
    # torch refuses negative strides, such as those of image[..., ::-1], and warns of read-only
    # memory.
    return np.require(array, requirements=["C", "W"])


def tensor_pixels(tensor: Tensor) -> Pixels:
    """Return RGB pixels of a uint8 tensor [3, H, W] or [1, H, W]; InputError for another."""
    if tensor.is_nested or tensor.layout is not torch.strided:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise InputError(f"{kind} tensor: expected a dense one; of a sparse one: tensor.to_dense()")
    if tensor.is_meta:
        raise InputError("tensor of the device meta: has no pixels")
    shape = " × ".join(map(str, tensor.shape)) or "no dimension"
    if tensor.dtype != torch.uint8:
        raise InputError(
            f"tensor of {str(tensor.dtype).removeprefix('torch.')}: expected uint8, 0 to 255; for "
            "values from 0 to 1: image.mul(255).round().to(torch.uint8), before it is normalized"
        )
    if tensor.ndim != 3 or tensor.shape[0] not in (1, 3):
        raise InputError(f"tensor of {shape}: expected 3 × height × width (RGB), or 1 × … (grey)")
    require_size(f"tensor of {shape}", width=tensor.shape[2], height=tensor.shape[1])
    return array_pixels(tensor.detach().cpu().expand(3, -1, -1).permute(1, 2, 0).numpy())
