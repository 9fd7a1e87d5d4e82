"""Recipes of `bench predict`: from pictures in memory to boxes, by several programs.

`prediction_files` writes what all contestants share: a detector as a checkpoint, as ONNX and in
INT8, and what it finds in float32. `prediction` compares a contestant's boxes with those before it
is timed.
Every contestant gets the same pictures at the size of the network, uint8 RGB [N, 3, S, S], and
returns boxes: conversion to floats, normalization, network, threshold and non-maximum suppression
are timed; reading, decoding, resizing and drawing are not.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torchvision.ops import box_iou

from common.errors import InputError
from data.transforms import normalize
from profiling.bench.recipes.parts import (
    count_boxes,
    make_detecting_weights,
    torchvision_detector,
)
from profiling.bench.recipes.step import made_up_state, make_batch
from profiling.bench.variant import Prepared, Workload
from retinanet.detector import Detector
from retinanet.engine.engines import torch_forward
from retinanet.evaluation.detect import SCORE_THRESHOLD, detect_batch
from retinanet.export.command import compare, split_detections
from retinanet.export.program import (
    describe_checkpoint,
    load_onnx,
    load_openvino,
    quantize,
    write_onnx,
)
from retinanet.model.postprocess import Detections
from retinanet.training.checkpoint import Contents, copies, read_checkpoint, write_checkpoint
from retinanet.training.train_state import MODEL_FILE

Predict: TypeAlias = Callable[[Tensor], list[Detections]]
"""From uint8 images [N, 3, S, S] to the detections in each."""

CHECKPOINT, ONNX, EXPECTED = "checkpoint", "detector.onnx", "expected.safetensors"
INT8, CALIBRATION = "int8.xml", 8  # pictures: it is timed here, and its mAP not judged
SAME_IOU, SAME_SCORE = 0.5, 0.05
"""How near a box in BF16 has to be: torchvision decodes boxes in BF16, to 4 pixels of 800."""
LEAST_AGREEMENT = {"float32": 0.98, "bf16": 0.5, "int8": 0.5}
"""Share of the expected boxes that a contestant which computes the same detector finds."""


def make_pictures(workload: Workload) -> Tensor:
    """Return uint8 images [N, 3, S, S]; the first one is that of a batch of any size."""
    seeds = range(workload.seed, workload.seed + workload.images)
    batches = [make_batch(replace(workload, images=1, seed=seed)) for seed in seeds]
    return torch.cat([batch.images for batch in batches]).contiguous()


def prepare_prediction_files(
    workload: Workload, *, folder: str, onnx: bool, int8: bool = False
) -> Prepared:
    """Write a detector, what it finds in the first picture, and, if asked, its ONNX and INT8."""
    picture = make_pictures(replace(workload, images=1))
    weights = make_detecting_weights(replace(workload, images=1), normalize(picture))
    contents = Contents({MODEL_FILE: copies(weights)}, made_up_state(workload))
    write_checkpoint(Path(folder, CHECKPOINT), contents)
    checkpoint = read_checkpoint(Path(folder, CHECKPOINT))
    model = checkpoint.build_model().eval()
    [expected] = detect_batch(model, picture, forward=torch_forward(model, precision="float32"))
    save_file(expected._asdict(), Path(folder, EXPECTED))
    if onnx:
        description = describe_checkpoint(
            checkpoint, size=(workload.image_size,) * 2, score_threshold=SCORE_THRESHOLD
        )
        write_onnx(model, Path(folder, ONNX), description)
    if int8:
        pictures = make_pictures(replace(workload, images=CALIBRATION))
        files = Path(folder, ONNX), Path(folder, INT8)
        quantize(*files, pictures.__getitem__, range(CALIBRATION))
    return Prepared(lambda: None)


def prepare_prediction(
    workload: Workload, *, program: str, precision: str, folder: str
) -> Prepared:
    """Prepare a program of `PROGRAMS` with the files of a folder; the details count its boxes.

    The fact `agreement` is the share of the expected boxes that it finds.

    Raises:
        InputError: It finds other boxes.
    """
    predict = PROGRAMS[program](Path(folder), workload, precision)
    images = make_pictures(workload)
    expected = Detections(**load_file(Path(folder, EXPECTED)))
    share = agreement(expected, predict(images)[0], precision=precision)
    if share < LEAST_AGREEMENT[precision]:
        raise InputError(
            f"{program} in {precision}: {share:.0%} of its boxes are those of this program in "
            "float32, so that its time means nothing; leave it out by --contestants"
        )

    facts = {"images": workload.images, "agreement": share}
    return Prepared(lambda: count_boxes(predict(images)), facts)


def agreement(expected: Detections, found: Detections, *, precision: str) -> float:
    """Return the share of expected detections that were found, in one image.

    In float32 they are equal to the tolerances of `retinanet export`, else to `SAME_IOU` and
    `SAME_SCORE`.
    """
    if precision == "float32":
        equal = compare(expected, found, score_threshold=SCORE_THRESHOLD).equal
        return equal / len(expected.scores)
    same = box_iou(expected.boxes, found.boxes.float()) >= SAME_IOU
    same &= (expected.scores[:, None] - found.scores).abs() <= SAME_SCORE
    same &= expected.labels[:, None] == found.labels
    return float(same.any(dim=1).float().mean())


def ours(folder: Path, workload: Workload, precision: str) -> Predict:
    """Return `Detector.predict`, which `retinanet predict` uses."""
    detector = Detector.load(folder / CHECKPOINT, precision=precision)

    def predict(images: Tensor) -> list[Detections]:
        found = detector.predict(list(images), min_score=SCORE_THRESHOLD, batch_size=len(images))
        return [
            Detections(*map(torch.from_numpy, (each.boxes, each.scores, each.labels)))
            for each in found
        ]

    return predict


def torchvisions(folder: Path, workload: Workload, precision: str) -> Predict:
    """Return torchvision's RetinaNet in channels_last, `bf16` by autocast."""
    weights = load_file(folder / CHECKPOINT / MODEL_FILE)
    predict = torchvision_detector(workload, weights, precision=precision)
    return lambda images: predict(images / 255)


def onnxruntimes(folder: Path, workload: Workload, precision: str) -> Predict:
    """Return ONNX Runtime on our export, with torch's number of threads; float32 only."""
    assert precision == "float32"
    run = load_onnx(folder / ONNX, {})
    return lambda images: split_detections(run(images))


def openvinos(folder: Path, workload: Workload, precision: str) -> Predict:
    """Return OpenVINO on our export: one request at a time, on torch's number of threads."""
    file = folder / (INT8 if precision == "int8" else ONNX)
    run = load_openvino(file, {}, precision=precision)
    return lambda images: split_detections(run(images))


PROGRAMS: dict[str, Callable[[Path, Workload, str], Predict]] = {
    "ours": ours,
    "torchvision": torchvisions,
    "onnxruntime": onnxruntimes,
    "openvino": openvinos,
}
