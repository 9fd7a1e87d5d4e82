"""A detector to start from (`model.weights`): its weights, and class rows matched by name.

Everything but the last layer of the classification head is independent of the classes, and is
taken as it is. That layer has nine rows per class, one for each anchor. The rows of a class that
the detector knows by name are taken; the others keep the values of a fresh model.
"""

import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from common.errors import InputError, printable, require_few_classes
from common.wording import listed
from data.annotations import UNNAMED, ClassMap
from retinanet.config_types import (
    BEST_COCO_DETECTOR,
    COCO_DETECTORS,
    STATE_FILE,
    Architecture,
    BackboneName,
    VariantName,
)
from retinanet.model.anchors import ANCHORS_PER_LOCATION
from retinanet.model.retinanet import LOGITS, RetinaNet
from retinanet.training.checkpoint import file_digest, read_checkpoint
from retinanet.training.published import COCO, published_weights, read_published
from retinanet.training.train_state import MODEL_FILE
from retinanet.training.weight_files import current_names, read_safetensors, unpickle_weights

BACKGROUND = "__background__"
"""The name of output 0 in torchvision's lists: its labels begin at 1, and no box has this class."""
CLASS_NAMES = "classes"  # Key of a .safetensors file's metadata: the outputs' names, a JSON list


def detector_tensors(given: Mapping[str, Tensor], *, source: str) -> dict[str, Tensor]:
    """Return the tensors of a RetinaNet in float32, without counters of batch norms.

    Raises:
        InputError: They are another network's; the message begins with `source`.
    """
    tensors = {
        key: tensor for key, tensor in given.items() if not key.endswith("num_batches_tracked")
    }
    rows = tensors.get(f"{LOGITS}.weight")
    if rows is None or rows.dim() != 4:
        raise InputError(
            f"{source}: contains no RetinaNet: {LOGITS}.weight is missing; give the file of a "
            "complete detector; a backbone alone is for model.pretrained_backbone (retinanet "
            "convert without --detector)"
        )
    require_few_classes(f"{source}: {LOGITS}.weight", count_outputs(tensors))
    architecture = architecture_of(tensors)
    expected = expected_shapes(architecture, count_outputs(tensors))
    names = ", ".join(get_args(BackboneName))
    advice = f"expected one of {names} with a pyramid of P3 to P7 and 9 anchors per location"
    for key in (*expected, *tensors):
        wrong = ""
        if key not in tensors:
            wrong = "is missing"
        elif key not in expected:
            wrong = "is not known"
        elif tensors[key].shape != expected[key]:
            shapes = list(tensors[key].shape), list(expected[key])
            wrong = f"has shape {shapes[0]} instead of {shapes[1]}"
        elif not tensors[key].is_floating_point() or not tensors[key].isfinite().all():
            wrong = "holds values that are not finite numbers"
        if wrong:
            raise InputError(
                f"{source}: is not a RetinaNet on {architecture.backbone}: {key} {wrong}; {advice}"
            )
    return {key: tensor.to(torch.float32) for key, tensor in tensors.items()}


def architecture_of(tensors: Mapping[str, Tensor]) -> Architecture:
    """Return the architecture that has most of these names and shapes."""
    outputs = count_outputs(tensors)
    given = {
        (name, tensor.shape)
        for name, tensor in tensors.items()
        if not name.endswith("num_batches_tracked")
    }
    differences = {}
    for pair in product(get_args(BackboneName), get_args(VariantName)):
        architecture = Architecture(*pair)
        differences[architecture] = len(given ^ expected_shapes(architecture, outputs).items())
        if not differences[architecture]:  # each further one takes 0.1 seconds
            break
    return min(differences, key=differences.__getitem__)


@functools.cache
def expected_shapes(architecture: Architecture, outputs: int) -> dict[str, torch.Size]:
    """Return the shape of each tensor of a detector with so many outputs per anchor."""
    # The meta device allocates no memory for values.
    with torch.device("meta"):
        # At least one class, since a model needs one. A wrong number of rows is reported.
        model = RetinaNet(num_classes=max(1, outputs), architecture=architecture)
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def count_outputs(tensors: Mapping[str, Tensor]) -> int:
    """Return how many classes each anchor has."""
    return len(tensors[f"{LOGITS}.weight"]) // ANCHORS_PER_LOCATION


@dataclass(frozen=True, kw_only=True)
class SourceDetector:
    """A trained detector."""

    file: Path  # The folder of a checkpoint, or a .safetensors file
    names: tuple[str, ...]  # The class of each output, `UNNAMED` where it has none
    tensors: Mapping[str, Tensor]
    sha256: str  # Of the file of the tensors
    step: int | None = None  # Steps of its training; None if it is not known
    map: float | None = None  # mAP of these weights; None if it is not known

    @property
    def architecture(self) -> Architecture:
        """The architecture of the tensors."""
        return architecture_of(self.tensors)


def read_detector(source: str) -> SourceDetector:
    """Read the detector that `model.weights` names.

    It is the folder of a run (its best checkpoint, else its newest) or of a checkpoint, a file in
    it, a .safetensors file that names its classes, as `retinanet export` writes it, or the name of
    torchvision's function.

    Raises:
        InputError: It is missing or damaged, has another architecture, or no class names.
    """
    path = Path(source)
    is_checkpoints_file = path.name == MODEL_FILE and (path.parent / STATE_FILE).is_file()
    try:
        if source in COCO_DETECTORS:
            return read_coco_detector(source)
        if path.is_file() and not is_checkpoints_file:
            return read_weights_file(path)
        return read_checkpointed_detector(path)
    except InputError as error:
        raise InputError(f"model.weights: {error}") from error


def read_coco_detector(name: str) -> SourceDetector:
    """Read torchvision's detector of a name in `COCO_DETECTORS`; raise InputError as above."""
    weights = published_weights(name, COCO)
    content, file = read_published(weights)
    given = with_common_epsilon(unpickle_weights(content, file).tensors, epsilon_of(file.name))
    return SourceDetector(
        file=file,
        names=coco_names(),
        tensors=detector_tensors(given, source=str(file)),
        sha256=hashlib.sha256(content).hexdigest(),
        map=weights.meta["_metrics"]["COCO-val2017"]["box_map"] / 100,
    )


def coco_names() -> tuple[str, ...]:
    """Return the classes of the 91 outputs of `COCO_DETECTORS`."""
    names = published_weights(BEST_COCO_DETECTOR, COCO).meta["categories"]
    return tuple(UNNAMED if name == BACKGROUND else name for name in names)


WITHOUT_EPSILON = "retinanet_resnet50_fpn_coco-eeacb38b.pth"
"""torchvision's file whose norms add nothing to the variances; all others add `EPSILON`."""
COCO_FILES = (WITHOUT_EPSILON, "retinanet_resnet50_fpn_v2_coco-5905b1c5.pth")
EPSILON = 1e-5


def epsilon_of(published: str | None) -> float:
    """Return what the norms add to the variances, by the name of torchvision's file."""
    return 0.0 if published == WITHOUT_EPSILON else EPSILON


def with_common_epsilon(tensors: Mapping[str, Tensor], epsilon: float) -> dict[str, Tensor]:
    """Return weights for norms that add `EPSILON` to the variances, instead of `epsilon`."""
    adapted = dict(tensors)
    for name, variance in tensors.items() if epsilon != EPSILON else ():
        scale = name.replace("running_var", "weight")
        # Not yet checked: the file may have anything.
        if scale != name and scale in tensors and tensors[scale].shape == variance.shape:
            adapted[scale] = tensors[scale] * ((variance + EPSILON) / (variance + epsilon)).sqrt()
    return adapted


def read_checkpointed_detector(path: Path) -> SourceDetector:
    """Read the detector of a run or a checkpoint; raise InputError as `read_detector`."""
    checkpoint = read_checkpoint(path)
    file = checkpoint.folder / MODEL_FILE
    tensors = detector_tensors(checkpoint.tensors(MODEL_FILE), source=str(file))
    if count_outputs(tensors) != checkpoint.model.num_classes:
        count = f"{checkpoint.model.num_classes} classes in {STATE_FILE}"
        raise InputError(f"{file}: {count_outputs(tensors)} outputs per anchor, but {count}")
    position = checkpoint.position
    return SourceDetector(
        file=checkpoint.folder,
        names=ClassMap.from_json(checkpoint.model.classes).names,
        tensors=tensors,
        sha256=checkpoint.state.parts[MODEL_FILE].sha256,
        # A converted detector has no steps of a training.
        step=position.step or None,
        map=position.map_here,
    )


def read_weights_file(file: Path) -> SourceDetector:
    """Read a .safetensors file, in any spelling of the names.

    Raises:
        InputError: It cannot be read, is another network's, or has no class names.
    """
    given, texts = read_named_tensors(file)
    tensors = detector_tensors(given, source=str(file))
    if CLASS_NAMES not in texts:
        raise InputError(
            f"{file}: has no class names, by which classes are matched; name them once with "
            f"retinanet convert --detector {file} --classes FILE.json --out DIR, and set "
            "model.weights=DIR"
        )
    try:
        names = json.loads(texts[CLASS_NAMES])
    except (ValueError, RecursionError):
        names = None
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not is_list or len(names) != count_outputs(tensors):
        raise InputError(
            f"{file}: metadata {CLASS_NAMES}: expected a JSON list of {count_outputs(tensors)} "
            "names; convert or export the detector again"
        )
    return SourceDetector(file=file, names=tuple(names), tensors=tensors, sha256=file_digest(file))


def read_named_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a .safetensors file under their present names, and its texts."""
    given, texts = read_safetensors(file)
    current = current_names(given)
    return {current[name]: tensor for name, tensor in given.items()}, texts


@dataclass(frozen=True, kw_only=True)
class ClassMatch:
    """The classes of a data set that a detector knows, and those that it does not."""

    outputs: tuple[int | None, ...]
    """For each class index of the model the detector's output; None: it starts as from scratch."""
    kept: tuple[tuple[str, str], ...]  # Name in the data set, and the detector's spelling of it
    new: tuple[str, ...]
    dropped: tuple[str, ...]  # Classes of the detector that the data set does not have


def match_classes(names: Sequence[str], detector: Sequence[str]) -> ClassMatch:
    """Match the classes of a data set to a detector's outputs by name.

    Equal names come first; otherwise upper and lower case, and spaces, hyphens and underscores are
    the same. `UNNAMED` outputs have no class: they match nothing, and are not listed.
    """
    exact, similar = first_outputs(detector, str), first_outputs(detector, simplified)
    outputs = [exact.get(name, similar.get(simplified(name))) for name in names]
    pairs = list(zip(names, outputs, strict=True))
    used = {detector[output] for output in outputs if output is not None}
    return ClassMatch(
        outputs=tuple(outputs),
        kept=tuple((name, detector[output]) for name, output in pairs if output is not None),
        new=tuple(name for name, output in pairs if output is None and name != UNNAMED),
        dropped=tuple(name for name in detector if name not in used and name != UNNAMED),
    )


def first_outputs(names: Sequence[str], spelling: Callable[[str], str]) -> dict[str, int]:
    """Return the first output of each class that has a name."""
    outputs: dict[str, int] = {}
    for output, name in enumerate(names):
        if name != UNNAMED:
            outputs.setdefault(spelling(name), output)
    return outputs


def simplified(name: str) -> str:
    """Return a name without differences in case, spaces, hyphens and underscores."""
    return re.sub(r"[\s_-]+", " ", name.casefold()).strip()


@dataclass(frozen=True, kw_only=True)
class DetectorStart:
    """A start from a detector, for the console, the model cards and the run's `weights.json`."""

    detector: SourceDetector  # Without its tensors, which would stay in memory for the whole run
    match: ClassMatch

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with the name of every class."""
        return {
            "source": str(self.detector.file),
            "sha256": self.detector.sha256,
            "step": self.detector.step,
            "map": self.detector.map,
            "kept": dict(self.match.kept),
            "new": list(self.match.new),
            "dropped": list(self.match.dropped),
        }

    def rows(self) -> dict[str, str]:
        """Return a short table: the detector, and classes kept, new and dropped."""
        detector, match = self.detector, self.match
        classes, known = len(match.kept) + len(match.new), len(match.kept) + len(match.dropped)
        kept = [
            name if name == spelling else f"{name} (as {spelling})" for name, spelling in match.kept
        ]
        rows = {
            "weights": describe_source(
                str(detector.file), step=detector.step, map_value=detector.map
            ),
            "classes kept": f"{len(kept)} of {classes}: {format_classes(kept)}",
        }
        if match.new:
            names = format_classes(match.new)
            rows["classes new"] = f"{len(match.new)} of {classes}, from scratch: {names}"
        if match.dropped:
            names = format_classes(match.dropped)
            rows["classes dropped"] = f"{len(match.dropped)} of the detector's {known}: {names}"
        return rows

    def notes(self) -> list[str]:
        """Return a note if the run takes none of the detector's classes."""
        if self.match.kept:
            return []
        return [
            f"model.weights: {self.detector.file} has none of the data set's classes by name: all "
            "of them start from scratch, on the detector's features and boxes"
        ]


NAMES_SHOWN = 8  # Of each row of the table


def format_classes(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are, or `none`."""
    return printable(listed((name[:60] for name in names), NAMES_SHOWN)) or "none"


def describe_source(source: str, *, step: int | None, map_value: float | None) -> str:
    """Return the detector, with its step and its mAP if they are known."""
    steps = "" if step is None else f", step {step}"
    return f"{source}{steps}" + ("" if map_value is None else f", mAP {map_value:.3f}")


def describe_start(file: Path) -> str:
    """Return the detector that a run started from, by its `weights.json`; empty if there is none.

    A resumed run has read no such detector.
    """
    if not file.is_file():
        return ""
    start = json.loads(file.read_text(encoding="utf-8"))
    kept, new, dropped = (len(start[name]) for name in ("kept", "new", "dropped"))
    source = describe_source(start["source"], step=start["step"], map_value=start["map"])
    return (
        f"{source}, SHA-256 {start['sha256'][:16]}…; {kept} of {kept + new} classes kept, "
        f"{new} new, {dropped} of the detector's dropped"
    )


def start_from_detector(
    model: RetinaNet, source: str | None, *, names: Sequence[str]
) -> DetectorStart | None:
    """Load `model.weights`, if it is set, into a fresh model with classes of these `names`.

    Raises:
        InputError: See `read_detector`.
    """
    if source is None:
        return None
    detector = read_detector(source)
    match = match_classes(names, detector.names)
    load_detector(model, detector, match)
    return DetectorStart(detector=replace(detector, tensors={}), match=match)


def load_detector(model: RetinaNet, detector: SourceDetector, match: ClassMatch) -> None:
    """Copy a detector's weights into a fresh model; classes that it lacks keep the fresh rows.

    The norms, frozen or trained, get the detector's statistics.

    Raises:
        InputError: The model has another architecture.
    """
    if detector.architecture != model.architecture:
        raise InputError(
            f"model.weights: {detector.file}: needs {detector.architecture}, but the configuration "
            f"has {model.architecture}"
        )
    fresh = model.state_dict()
    tensors = dict(detector.tensors)
    known = [label for label, output in enumerate(match.outputs) if output is not None]
    outputs = [output for output in match.outputs if output is not None]
    for name in (f"{LOGITS}.weight", f"{LOGITS}.bias"):
        # Rows are ordered by anchor, then by class.
        rows = fresh[name].clone(memory_format=torch.contiguous_format)
        by_class = rows.view(ANCHORS_PER_LOCATION, len(match.outputs), *rows.shape[1:])
        source = tensors[name].view(ANCHORS_PER_LOCATION, len(detector.names), *rows.shape[1:])
        by_class[:, known] = source[:, outputs]
        tensors[name] = rows
    model.load_state_dict(tensors)
