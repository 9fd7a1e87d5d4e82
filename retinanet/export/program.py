"""The detector as one program with fixed shapes, from bytes of images to boxes.

`DetectorProgram` is the model, with its constant batch norms folded into the convolutions before
them, and its postprocessing. `FORMATS` write it as ONNX or torch.export's file, and `INTERMEDIATE`
as OpenVINO's, and run such a file as its users do. ONNX's non-maximum suppression takes scores per
image and class and compares boxes of one class only. So boxes need no offsets per class, as they do
for torchvision's operator, and float32, its only type, is precise enough.
"""

import contextlib
import copy
import io
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torchvision.models.resnet import Bottleneck
from torchvision.ops import nms

from data.annotations import Resize, Size, as_size
from data.transforms import IMAGENET_MEAN, IMAGENET_STD, PADDING
from retinanet.engine.folded_forward import folded_scale_shift
from retinanet.model.anchors import anchors_for, clip_boxes, decode_boxes
from retinanet.model.postprocess import CANDIDATES_PER_LEVEL, DETECTIONS_PER_IMAGE, NMS_IOU
from retinanet.model.retinanet import RetinaNet
from retinanet.training.checkpoint import Checkpoint
from retinanet.training.train_state import MODEL_FILE

NO_LABEL = -1  # The label of a row that holds no detection
OUTSIDE = ((-2.0, -2.0, -1.0, -1.0), (-4.0, -4.0, -3.0, -3.0))
"""Boxes that suppression always keeps: torch.export specializes sizes 0 and 1, so at least two."""
Suppress: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Maps boxes [N, C, 4], scores [N, C] (0: unused) and labels [N, C] to a mask, bool [N, C]."""


class DetectorProgram(nn.Module):
    """Computes the detections of `retinanet.model.postprocess` with fixed shapes.

    `postprocess` uses as many anchors as are above the threshold. This takes a fixed number of best
    anchors per level, whatever their scores, and drops those below the threshold at the end. The
    detections are equal, since a box never suppresses one with a higher score.
    """

    def __init__(
        self,
        model: RetinaNet,
        *,
        size: Size,
        score_threshold: float,
        suppress: Suppress | None = None,
    ) -> None:
        """Build the program from a copy of a model, which is in evaluation mode and float32.

        `size` has H and W of the images in pixels; `suppress` is non-maximum suppression within
        each class, by default torchvision's.
        """
        super().__init__()
        self.network = fold_norms(model).requires_grad_(requires_grad=False)
        self.size = size
        self.score_threshold = score_threshold
        self.suppress = suppress or suppress_by_class
        std = torch.tensor(IMAGENET_STD)
        # (x / 255 − mean) / std as one product and one difference.
        self.scale = nn.Buffer((1 / (255 * std)).view(1, 3, 1, 1))
        self.offset = nn.Buffer((torch.tensor(IMAGENET_MEAN) / std).view(1, 3, 1, 1))
        with torch.no_grad():
            sizes = self.network(torch.zeros(1, 3, *size)).feature_sizes
        for level, anchors in enumerate(anchors_for(size, sizes)):
            self.register_buffer(f"anchors_{level}", anchors)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the detections in images, uint8 [N, 3, H, W] RGB.

        Boxes float32 [N, D, 4] xyxy in pixels of the input; scores float32 [N, D], descending;
        labels int64 [N, D], the model's class indices. D is 300, or less if there are fewer
        candidates. Unused rows have box and score 0, label -1.
        """
        outputs = self.network(images.to(torch.float32) * self.scale - self.offset)
        levels = zip(outputs.cls_logits, outputs.bbox_regression, strict=True)
        candidates = [
            level_candidates(logits, deltas, self.get_buffer(f"anchors_{level}"))
            for level, (logits, deltas) in enumerate(levels)
        ]
        boxes, scores, labels = (torch.cat(parts, dim=1) for parts in zip(*candidates, strict=True))
        boxes = clip_boxes(boxes, self.size)
        scores = torch.where(scores > self.score_threshold, scores, 0.0)
        keep = self.suppress(boxes, scores, labels)
        scores, order = torch.where(keep, scores, 0.0).topk(
            min(DETECTIONS_PER_IMAGE, scores.shape[1]), dim=1
        )
        is_detection = scores > 0
        boxes = boxes.gather(1, order[:, :, None].expand(-1, -1, 4))
        return (
            torch.where(is_detection[:, :, None], boxes, 0.0),
            scores,
            torch.where(is_detection, labels.gather(1, order), NO_LABEL),
        )


def level_candidates(
    logits: Tensor, deltas: Tensor, anchors: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best candidates of a level: boxes [N, C, 4], scores [N, C] and labels [N, C].

    The inputs are logits [N, A, K], deltas [N, A, 4] and anchors [A, 4] (xyxy, pixels).
    """
    # An anchor may be a candidate for several classes. The C best scores belong to the C anchors
    # with the highest best score, so the first topk runs over anchors, not over anchors × classes.
    _, number, classes = logits.shape
    _, rows = logits.amax(dim=2).topk(min(CANDIDATES_PER_LEVEL, number), dim=1)
    logits = logits.gather(1, rows[:, :, None].expand(-1, -1, classes)).flatten(1)
    logits, indices = logits.topk(min(CANDIDATES_PER_LEVEL, number * classes), dim=1)
    rows = rows.gather(1, indices // classes)
    deltas = deltas.gather(1, rows[:, :, None].expand(-1, -1, 4))
    return decode_boxes(deltas, anchors[rows]), logits.sigmoid(), indices % classes


def suppress_by_class(boxes: Tensor, scores: Tensor, labels: Tensor) -> Tensor:
    """Suppress boxes within each image and class with torchvision's operator, see `Suppress`."""
    number, candidates = scores.shape
    # Offsets separate boxes of different images or classes, in float64: float32 would lose digits.
    images = torch.arange(number, device=scores.device)[:, None]
    groups = images * (labels.amax() + 1) + labels
    shifted = boxes.double() + (groups * (boxes.amax() + 1).double())[:, :, None]
    used = scores.flatten().nonzero().squeeze(1)
    selected = nms(
        torch.cat((shifted.flatten(0, 1)[used], boxes.new_tensor(OUTSIDE, dtype=torch.float64))),
        torch.cat((scores.flatten()[used], scores.new_zeros(len(OUTSIDE)))).double(),
        NMS_IOU,
    )
    # The boxes OUTSIDE have the last indices, which are cut off at the end.
    indices = torch.arange(number * candidates + len(OUTSIDE), device=scores.device)
    indices = torch.cat((used, indices[-len(OUTSIDE) :]))
    keep = torch.zeros(number * candidates + len(OUTSIDE), dtype=torch.bool, device=scores.device)
    keep = keep.index_fill(0, indices[selected], value=True)
    return keep[: number * candidates].view(number, candidates)


@torch.no_grad()
def fold_norms(model: RetinaNet) -> RetinaNet:
    """Return a copy of a model with its norms, frozen or trained, folded into its convolutions."""
    folded = copy.deepcopy(model).eval()
    body = folded.backbone.body
    fold(body, "conv1", "bn1")
    for block in body.modules():
        if isinstance(block, Bottleneck):
            for number in (1, 2, 3):
                fold(block, f"conv{number}", f"bn{number}")
            if block.downsample is not None:
                fold(block.downsample, "0", "1")
    return folded


def fold(parent: nn.Module, convolution: str, norm: str) -> None:
    """Fold a norm with constant statistics into the convolution before it; replace it by identity.

    `convolution` and `norm` are the names of two modules of `parent`.
    """
    module = parent.get_submodule(convolution)
    assert isinstance(module, nn.Conv2d) and module.bias is None
    scale, shift = folded_scale_shift(parent.get_submodule(norm))
    module.weight.mul_(scale.view(-1, 1, 1, 1))
    module.bias = nn.Parameter(shift.clone())
    setattr(parent, norm, nn.Identity())


OPERATOR = "retinanet::onnx_non_max_suppression"
torch.library.define(OPERATOR, "(Tensor boxes, Tensor scores) -> Tensor")


def selected_shape(boxes: Tensor, scores: Tensor) -> Tensor:
    """Return an int64 [M, 3] of unknown M (image, class and kept box), for export."""
    number = torch.library.get_ctx().new_dynamic_size()
    return torch.empty(number, 3, dtype=torch.int64)


torch.library.register_fake(OPERATOR, selected_shape)


def suppress_in_onnx(classes: int) -> Suppress:
    """Return a `Suppress` for export to ONNX, which cannot run in torch; `classes` is K."""

    def suppress(boxes: Tensor, scores: Tensor, labels: Tensor) -> Tensor:
        number, candidates = scores.shape
        is_class = labels[:, None, :] == torch.arange(classes)[None, :, None]
        # The operator has a score per class: a candidate scores 0 in all classes but its own.
        class_scores = scores[:, None, :] * is_class
        selected = torch.ops.retinanet.onnx_non_max_suppression(boxes, class_scores)
        indices = selected[:, 0] * candidates + selected[:, 2]
        keep = torch.zeros(number * candidates, dtype=torch.bool)
        return keep.index_fill(0, indices, value=True).view(number, candidates)

    return suppress


OPSET = 18  # ONNX: the exporter's default, supported by runtimes since 2023
OUTPUTS = ("boxes", "scores", "labels")
DESCRIPTION = "description.json"  # Name of the extra file in a .pt2

Detector: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
"""Maps images uint8 [N, 3, H, W] to boxes, scores and labels, see `DetectorProgram`."""


@dataclass(frozen=True)
class Format:
    """A kind of file: what runs it, and how it is described, written and loaded."""

    runtime: str  # Package that runs the file
    describe: Callable[..., dict[str, Any]]
    write: Callable[[RetinaNet, Path, dict[str, Any]], None]
    """Write the detector of a model in evaluation mode, with its description, see `describe`."""
    load: Callable[[Path, dict[str, Any]], Detector]
    packages: tuple[str, ...] = ()  # Packages that are not in requirements.txt
    install: str = "`make serving`"  # What installs them


def export_program(
    model: RetinaNet, description: dict[str, Any], suppress: Suppress
) -> torch.export.ExportedProgram:
    """Trace a model's detector, for any number of images, as the description has it."""
    program = DetectorProgram(
        model,
        size=as_size(description["image_size"]),
        score_threshold=description["score_threshold"],
        suppress=suppress,
    )
    # Two images: torch.export would take a size of 1 for a constant.
    images = torch.zeros(2, 3, *program.size, dtype=torch.uint8)
    number = {"images": {0: torch.export.Dim("N", min=1)}}
    with torch.no_grad(), quiet():
        return torch.export.export(program, (images,), dynamic_shapes=number, strict=False)


def write_torch(model: RetinaNet, file: Path, description: dict[str, Any]) -> None:
    """Write torch.export's file, which torch and torchvision run without this project."""
    text = json.dumps(description, ensure_ascii=False, indent=1)
    program = export_program(model, description, suppress_by_class)
    with quiet():
        torch.export.save(program, file, extra_files={DESCRIPTION: text})


def write_onnx(model: RetinaNet, file: Path, description: dict[str, Any]) -> None:
    """Write ONNX including the weights; metadata values that are not text are stored as JSON."""
    import onnxscript  # noqa: PLC0415

    opset: Any = onnxscript.opset18

    def non_max_suppression(boxes: Any, scores: Any) -> Any:
        return opset.NonMaxSuppression(boxes, scores, DETECTIONS_PER_IMAGE, NMS_IOU, 0.0)

    operator = torch.ops.retinanet.onnx_non_max_suppression.default
    program = export_program(model, description, suppress_in_onnx(len(description["classes"])))
    with quiet():
        onnx_program = torch.onnx.export(
            program,
            (),
            input_names=["images"],
            output_names=OUTPUTS,
            opset_version=OPSET,
            dynamo=True,
            custom_translation_table={operator: non_max_suppression},
            # Weights in the file itself: about 130 MB, far below the 2 GB of a protobuf message.
            external_data=False,
            verbose=False,
        )
    assert onnx_program is not None
    graph = onnx_program.model.graph
    for value in (*graph.inputs, *graph.outputs):
        assert value.shape is not None
        value.shape[0] = "N"
    onnx_program.model.metadata_props.update(
        {
            name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for name, value in description.items()
        }
    )
    with quiet():
        onnx_program.save(str(file), external_data=False)


def load_torch(file: Path, description: dict[str, Any]) -> Detector:
    """Load torch.export's file as a user does; importing torchvision registers its operators."""
    with quiet():
        module = torch.export.load(file).module()

    def run(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            boxes, scores, labels = module(images)
        return boxes, scores, labels

    return run


def load_onnx(file: Path, description: dict[str, Any]) -> Detector:
    """Load ONNX as a user does, with torch's number of threads."""
    import onnxruntime  # noqa: PLC0415

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # 3: errors only.
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        boxes, scores, labels = session.run(list(OUTPUTS), {"images": images.numpy()})
        return torch.from_numpy(boxes), torch.from_numpy(scores), torch.from_numpy(labels)

    return run


def import_openvino() -> Any:
    """Import OpenVINO without the package by which it and NNCF report their use to Intel."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino  # noqa: PLC0415

    return openvino


def write_openvino(model: RetinaNet, file: Path, description: dict[str, Any]) -> None:
    """Write NAME.xml, with the description as `rt_info` below `framework`, and NAME.bin."""
    onnx = file.with_suffix(".onnx")
    write_onnx(model, onnx, description)
    openvino = import_openvino()
    # By default weights are rounded to float16.
    openvino.save_model(openvino.Core().read_model(onnx), file, compress_to_fp16=False)
    onnx.unlink()


def load_openvino(
    file: Path, description: dict[str, Any], *, precision: str = "float32"
) -> Detector:
    """Load .xml or .onnx for one request at a time, with torch's number of threads.

    In "int8" OpenVINO chooses the precision of what is not quantized.
    """
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    if precision != "int8":
        settings["INFERENCE_PRECISION_HINT"] = {"bf16": "bf16", "float32": "f32"}[precision]
    compiled = import_openvino().Core().compile_model(file, "CPU", settings)

    def run(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        outputs = compiled({"images": images.numpy()})
        boxes, scores, labels = (torch.from_numpy(outputs[name]) for name in OUTPUTS)
        return boxes, scores, labels

    return run


def quantize(source: Path, file: Path, read: Callable[[int], Tensor], rows: Sequence[int]) -> None:
    """Write .xml or .onnx as .xml in INT8, calibrated on images uint8 [3, H, W] of `read`."""
    openvino = import_openvino()
    with quiet():
        import nncf  # noqa: PLC0415

        # It recognizes post-processing by top-k and suppression, and leaves it in floats.
        images = nncf.Dataset(rows, lambda row: {"images": read(row)[None].numpy()})
        network = nncf.quantize(openvino.Core().read_model(source), images, subset_size=len(rows))
    openvino.save_model(network, file, compress_to_fp16=False)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings, log lines and prints of libraries, such as the exporters' deprecations."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)


INTERPOLATION = (
    "bilinear, half-pixel centres, no antialiasing (torch's interpolate with mode='bilinear', "
    "align_corners=False on uint8; OpenCV's INTER_LINEAR), rounded to whole levels"
)
RESIZES: dict[Resize, str] = {
    "square": "to {height} × {width}, without keeping the aspect ratio: " + INTERPOLATION,
    "letterbox": "to (round(height × s), round(width × s)) with s = min({height} / height, {width} "
    f"/ width), at least 1, at the top left of {{height}} × {{width}} pixels {PADDING}: "
    f"{INTERPOLATION}; divide boxes by the ratio of the sizes of each axis and clip them to the "
    "image",
}
"""How a picture becomes the network's input of (height, width), for users of the file."""


def describe_checkpoint(
    checkpoint: Checkpoint, *, size: Size, score_threshold: float
) -> dict[str, Any]:
    """Return everything needed to use the file alone, as plain values for JSON.

    `size` is that of the file's images: the checkpoint's, which may be turned.
    """
    height, width = size
    return {
        "model": checkpoint.model.architecture.title,
        "input": f"images: uint8 [N, 3, {height}, {width}], RGB, 0 to 255; normalized inside",
        "image_size": height if height == width else size,
        "resize": RESIZES[checkpoint.model.resize].format(height=height, width=width),
        "outputs": "boxes: float32 [N, D, 4] xyxy in pixels of the input; scores: float32 [N, D], "
        f"descending; labels: int64 [N, D], indices into classes; D is at most "
        f"{DETECTIONS_PER_IMAGE}; unused rows have score 0 and label {NO_LABEL}",
        "classes": checkpoint.model.classes["names"],
        "category_ids": checkpoint.model.classes["category_ids"],
        "score_threshold": score_threshold,
        "nms_iou": NMS_IOU,
        "checkpoint_sha256": checkpoint.state.parts[MODEL_FILE].sha256,
        "step": checkpoint.position.step,
        "map": checkpoint.position.map_here,
    }


FORMATS = {
    ".onnx": Format(
        runtime="onnxruntime",
        describe=describe_checkpoint,
        write=write_onnx,
        load=load_onnx,
        packages=("onnx", "onnxscript", "onnxruntime"),
    ),
    ".pt2": Format("torch", describe=describe_checkpoint, write=write_torch, load=load_torch),
}
"""The formats of a program, by the extension of the file."""

INTERMEDIATE = {
    ".xml": Format(
        "openvino",
        describe=describe_checkpoint,
        write=write_openvino,
        load=load_openvino,
        packages=("onnx", "onnxscript", "openvino", "nncf"),
        install="`make openvino`",
    )
}
"""OpenVINO's format (intermediate representation), by the extension of the file."""
