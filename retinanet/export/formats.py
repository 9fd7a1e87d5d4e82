"""Writing the program as a file, and running such a file as its users do.

TODO-DOC Exporters tell of their own deprecations and guesses, which are no news to a user.

TODO-DOC What an exported file says of itself.
"""

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from common.errors import InputError
from common.machine import require_packages
from retinanet.export.program import (
    DETECTIONS_PER_IMAGE,
    NMS_IOU,
    NO_LABEL,
    DetectorProgram,
    suppress_in_onnx,
    translations,
)
from retinanet.model.retinanet import RetinaNet
from retinanet.training.checkpoint import Checkpoint
from retinanet.training.checkpoint_state import MODEL_FILE

OPSET = 18
"""Of ONNX: the exporter's own, which runtimes since 2023 know."""
OUTPUTS = ("boxes", "scores", "labels")
DESCRIPTION = "description.json"
"""Of torch.export's extra files."""

Detector: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
"""Images uint8 [N, 3, S, S] to boxes, scores and labels, see `DetectorProgram`."""


@dataclass(frozen=True)
class Format:
    """A kind of file, by its suffix."""

    runtime: str
    """The package that runs it."""
    packages: tuple[str, ...]
    """That are not in requirements.txt."""
    write: Callable[..., None]
    """`write(model, file, image_size=…, score_threshold=…, classes=…, description=…)`."""
    load: Callable[[Path], Detector]

    @property
    def runs_by(self) -> str:
        """The runtime with its version."""
        return f"{self.runtime} {version(self.runtime)}"


def format_of(file: Path) -> Format:
    """The format that a file's name asks for.

    Raises:
        InputError: It asks for none that is known, or packages are missing.
    """
    found = FORMATS.get(file.suffix)
    if found is None:
        raise InputError(
            f"--out: {file}: {file.suffix or 'no ending'} is no format; end it in .onnx (ONNX) or "
            ".pt2 (torch.export)"
        )
    require_packages(*found.packages, purpose=f"--out: {file}")
    return found


def write_torch(
    model: RetinaNet,
    file: Path,
    *,
    image_size: int,
    score_threshold: float,
    classes: int,
    description: dict[str, Any],
) -> None:
    """Write torch.export's file: torch and torchvision run it, without this project.

    Args:
        model: In evaluation mode.
        file: What to write.
        image_size: S.
        score_threshold: Detections are surer than this.
        classes: K.
        description: Goes into the file too.
    """
    program = DetectorProgram(model, image_size=image_size, score_threshold=score_threshold)
    with quiet():
        extra_files = {DESCRIPTION: json.dumps(description, ensure_ascii=False, indent=1)}
        torch.export.save(exported(program), file, extra_files=extra_files)


def write_onnx(
    model: RetinaNet,
    file: Path,
    *,
    image_size: int,
    score_threshold: float,
    classes: int,
    description: dict[str, Any],
) -> None:
    """Write ONNX with the weights inside; arguments as `write_torch`."""
    program = DetectorProgram(
        model,
        image_size=image_size,
        score_threshold=score_threshold,
        suppress=suppress_in_onnx(classes),
    )
    with quiet():
        onnx_program = torch.onnx.export(
            exported(program),
            (),
            input_names=["images"],
            output_names=OUTPUTS,
            opset_version=OPSET,
            dynamo=True,
            custom_translation_table=translations(),
            external_data=False,
            verbose=False,
        )
        assert onnx_program is not None
        graph = onnx_program.model.graph
        for value in (*graph.inputs, *graph.outputs):
            assert value.shape is not None
            value.shape[0] = "N"
        onnx_program.model.metadata_props.update(as_texts(description))
        onnx_program.save(str(file), external_data=False)


def exported(program: DetectorProgram) -> torch.export.ExportedProgram:
    """The program for any number of images."""
    size = program.image_size
    images = torch.zeros(2, 3, size, size, dtype=torch.uint8)
    number = {"images": {0: torch.export.Dim("N", min=1)}}
    with torch.no_grad():
        return torch.export.export(program, (images,), dynamic_shapes=number, strict=False)


def load_torch(file: Path) -> Detector:
    """As a user does; importing torchvision before makes its operators known."""
    with quiet():
        module = torch.export.load(file).module()

    def run(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            boxes, scores, labels = module(images)
        return boxes, scores, labels

    return run


def load_onnx(file: Path) -> Detector:
    """As a user does, on as many threads as torch has."""
    import onnxruntime  # noqa: PLC0415

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        boxes, scores, labels = session.run(list(OUTPUTS), {"images": images.numpy()})
        return torch.from_numpy(boxes), torch.from_numpy(scores), torch.from_numpy(labels)

    return run


FORMATS = {
    ".onnx": Format("onnxruntime", ("onnx", "onnxscript", "onnxruntime"), write_onnx, load_onnx),
    ".pt2": Format("torch", (), write_torch, load_torch),
}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings, log lines and prints of libraries from the user; errors are raised as ever."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)


RESIZE = (
    "to a square of image_size, whatever the picture's proportions: bilinear, half-pixel centres, "
    "no antialiasing (torch's interpolate with mode='bilinear', align_corners=False on uint8; "
    "OpenCV's INTER_LINEAR), rounded to whole levels"
)


def description_of(checkpoint: Checkpoint, *, score_threshold: float) -> dict[str, Any]:
    """All that somebody needs who has the file alone; plain values for JSON."""
    size = checkpoint.model.image_size
    return {
        "model": "RetinaNet-ResNeXt50",
        "input": f"images: uint8 [N, 3, {size}, {size}], RGB, 0 to 255; normalized inside",
        "image_size": size,
        "resize": RESIZE,
        "outputs": "boxes: float32 [N, D, 4] xyxy in pixels of the input; scores: float32 [N, D], "
        f"best first; labels: int64 [N, D], places in classes; D is at most {DETECTIONS_PER_IMAGE}"
        f"; rows without a detection have score 0 and label {NO_LABEL}",
        "classes": checkpoint.model.classes["names"],
        "category_ids": checkpoint.model.classes["category_ids"],
        "score_threshold": score_threshold,
        "nms_iou": NMS_IOU,
        "checkpoint_sha256": checkpoint.state.parts[MODEL_FILE].sha256,
        "step": checkpoint.position.step,
        "map": checkpoint.position.map_here,
    }


def as_texts(description: dict[str, Any]) -> dict[str, str]:
    """The same for ONNX's metadata, whose values are text: JSON where it is none."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in description.items()
    }
