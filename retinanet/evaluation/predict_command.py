"""`python -m retinanet predict`: boxes drawn on a user's pictures."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.classes import ClassMap
from data.decoding import decode_image
from data.transforms import resize_image
from retinanet.engine.engines import Forward, torch_forward
from retinanet.errors import InputError
from retinanet.evaluation.box_dicts import xywh
from retinanet.evaluation.detect import detect_batch, on_original
from retinanet.evaluation.detections import ImageDetections
from retinanet.evaluation.pictures import draw_detections, save_picture
from retinanet.exit_codes import FINISHED
from retinanet.model import RetinaNet
from retinanet.output_files import require_free, write_whole
from retinanet.terminal import make_console
from retinanet.training.checkpoint import read_checkpoint
from retinanet.training.pickled_weights import refuse_pickle


def predict(
    *,
    checkpoint: Path,
    pictures: Sequence[Path],
    out: Path,
    least_score: float,
    json_file: Path | None,
    overwrite: bool,
) -> int:
    """Draw what a checkpoint's model finds in pictures.

    Args:
        checkpoint: See `find_checkpoint`.
        pictures: Picture files; a photo is turned upright as its EXIF orientation says.
        out: Folder for `NAME.boxes.png`.
        least_score: Boxes below it are neither drawn nor written.
        json_file: Where boxes go as JSON: `bbox` as xywh in pixels of the upright picture.
        overwrite: Whether files that exist may be replaced.

    Raises:
        InputError: A file is missing, not a picture, or would be overwritten.
    """
    drawn = [out / f"{picture.stem}.boxes.png" for picture in pictures]
    check_files(pictures, [*drawn, *([json_file] if json_file else [])], overwrite=overwrite)
    refuse_pickle(checkpoint, what="checkpoint of a run")
    found = read_checkpoint(checkpoint)
    classes = ClassMap.from_json(found.model.classes)
    names = dict(zip(classes.category_ids, classes.names, strict=True))
    model = found.build_model().eval()
    forward = torch_forward(model, precision=found.model.precision)
    console = make_console()
    records: list[dict[str, Any]] = []
    for picture, file in zip(pictures, drawn, strict=True):
        pixels = decode_image(picture, apply_exif_orientation=True)
        detections = detect_in_picture(
            model, pixels, classes, forward=forward, image_size=found.model.image_size
        )
        image = draw_detections(pixels, detections, names=names, least_score=least_score)
        save_in(out, file, image)
        boxes = box_records(picture, detections, names=names, least_score=least_score)
        records.extend(boxes)
        console.print(f"{picture} → {file}: {described(boxes)}", soft_wrap=True, markup=False)
    if json_file is not None:
        write_whole(json_file, json.dumps(records, indent=1))
    return FINISHED


def check_files(pictures: Sequence[Path], outputs: Sequence[Path], *, overwrite: bool) -> None:
    """Refuse what would fail half-way or lose something.

    Raises:
        InputError: A picture is missing, or an output exists.
    """
    for picture in pictures:
        if not picture.is_file():
            raise InputError(f"{picture}: no such picture file")
    require_free(outputs, overwrite=overwrite, advice="give --overwrite or another --out")


def detect_in_picture(
    model: RetinaNet,
    pixels: NDArray[np.uint8],
    classes: ClassMap,
    *,
    forward: Forward,
    image_size: int,
) -> ImageDetections:
    """Detections in pixels of a picture [H, W, 3]; its `image_id` is 0."""
    resized = resize_image(pixels, image_size)[None]
    [found] = detect_batch(model, resized, forward=forward)
    return on_original(
        found,
        classes,
        image_id=0,
        input_size=(image_size, image_size),
        original_size=(pixels.shape[0], pixels.shape[1]),
    )


def box_records(
    picture: Path, found: ImageDetections, *, names: dict[int, str], least_score: float
) -> list[dict[str, Any]]:
    """A picture's boxes for JSON, best first."""
    rows = zip(xywh(found.boxes), found.scores, found.category_ids, strict=True)
    return [
        {
            "file": str(picture),
            "bbox": [round(edge, 2) for edge in box.tolist()],
            "score": round(float(score), 4),
            "category_id": int(category_id),
            "category": names[int(category_id)],
        }
        for box, score, category_id in rows
        if score >= least_score
    ]


def described(boxes: Sequence[dict[str, Any]]) -> str:
    """What was found, on one line: the best five."""
    if not boxes:
        return "nothing found; a lower --score shows less certain boxes"
    best = ", ".join(f"{box['category']} {box['score']:.2f}" for box in boxes[:5])
    more = f" and {len(boxes) - 5} more" if len(boxes) > 5 else ""
    return f"{best}{more}"


def save_in(folder: Path, file: Path, pixels: NDArray[np.uint8]) -> None:
    """Write a picture into a folder that may have to be made.

    Raises:
        InputError: It cannot be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_picture(pixels, file)
    except OSError as error:
        raise InputError(f"{file}: cannot be written: {error.strerror}; set --out") from error
