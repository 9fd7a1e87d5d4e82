"""`retinanet convert`: weights from a `.pth` as safetensors, a detector as a checkpoint.

With `--detector`, the `.pth` of another script's detector becomes a checkpoint; its classes are
read from COCO-format JSON or a list of names.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor

from common.errors import FINISHED, InputError
from common.files import or_refused, read_text, require_free_outputs, write_atomically
from common.outputs import require_no_input
from data.annotations import UNNAMED, ClassMap, ImageSize, Resize, shown, shown_size
from data.coco_json import category_columns
from data.index import open_annotations
from retinanet.config import config_to_tree
from retinanet.config_file import config_from_tree
from retinanet.config_types import (
    COCO_DETECTORS,
    DEFAULT_ARCHITECTURE,
    STATE_FILE,
    Architecture,
)
from retinanet.training.checkpoint import Contents, file_digest, write_checkpoint
from retinanet.training.detector_weights import (
    BACKGROUND,
    COCO_FILES,
    architecture_of,
    coco_names,
    count_outputs,
    detector_tensors,
    epsilon_of,
    read_named_tensors,
    with_common_epsilon,
)
from retinanet.training.progress import START
from retinanet.training.published import COCO, published_weights, read_published
from retinanet.training.train_state import (
    MODEL_FILE,
    State,
    describe_model,
    random_states,
)
from retinanet.training.weight_files import read_pickle


def convert(*, file: Path, out: Path, trust: bool, overwrite: bool) -> int:
    """Write the tensors of a `.pth` to a .safetensors file `out`, and print what was dropped.

    The file has a state_dict, alone or under `model` or `state_dict`. `trust`: whether the user
    trusts its author; torchvision's own file does not need it.

    Raises:
        InputError: The file is not trusted, cannot be read or holds no weights, or `out` exists.
    """
    if out.suffix != ".safetensors":
        raise InputError(f"--out: {out}: expected a name that ends in .safetensors")
    require_free_outputs([out], overwrite=overwrite)
    weights, lines, _ = read_pickle(file, trust=trust)
    written = save(weights.tensors, metadata={"format": "pt"})
    write_atomically(out, written)
    print("\n".join(lines))
    digest = hashlib.sha256(written).hexdigest()
    print(f"{out}: {len(weights.tensors):,} tensors, {len(written):,} bytes, sha256 {digest}")
    return FINISHED


IMAGE_SIZE = 800
"""MLPerf's reference resizes images to this square, torchvision the shorter side. [pixels]"""
CONSTANT = {"norm": "frozen", "trainable_layers": 3}
"""Norms are constants in evaluation, however they were trained, and no training follows."""


def convert_detector(
    *,
    detector: Path,
    classes: Path | None = None,
    out: Path,
    image_size: ImageSize = IMAGE_SIZE,
    resize: Resize | None = None,
    norm_epsilon: float | None = None,
    trust: bool,
    overwrite: bool,
) -> int:
    """Write a checkpoint without an optimizer's state.

    `evaluate`, `predict`, `export` and `model.weights` take it. `detector` is torch's file of a
    RetinaNet: a state_dict, alone or under `model` or `state_dict`, as the scripts of torchvision
    and of MLPerf's reference save it; or a .safetensors file; or a name in `COCO_DETECTORS`. For
    `classes` see `read_class_map`; torchvision's own detectors need none. Images are resized to
    `image_size` [pixels] in the way of `resize`, see `data.image_size` and `data.resize`;
    None: square, or letterbox for torchvision's own. `norm_epsilon` is what its norms add to the
    variances; None: `epsilon_of`. `overwrite` permits to replace what was converted earlier.

    Raises:
        InputError: The file is not trusted, cannot be read or holds another model, the classes do
            not fit it, or `out` exists or cannot be written.
    """
    require_free_folder(out, overwrite=overwrite)
    inputs = [detector] if classes is None else [detector, classes]
    require_no_input([out / MODEL_FILE, out / STATE_FILE], inputs)
    given, lines, published = read_detector_file(detector, trust=trust)
    epsilon = epsilon_of(published) if norm_epsilon is None else norm_epsilon
    tensors = detector_tensors(with_common_epsilon(given, epsilon), source=str(detector))
    if classes is not None:
        class_map = read_class_map(classes, outputs=count_outputs(tensors))
    elif published in COCO_FILES and count_outputs(tensors) == len(names := coco_names()):
        class_map = ClassMap.by_category_id(np.arange(len(names)), names, len(names))
    else:
        raise InputError("command line: --detector: needs --classes FILE")
    resize = resize or ("letterbox" if published in COCO_FILES else "square")
    architecture = architecture_of(tensors)
    state = converted_state(class_map, architecture, image_size=image_size, resize=resize)
    with or_refused(out, advice="set --out"):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_checkpoint(out, Contents({MODEL_FILE: tensors}, state))
    named = sum(name != UNNAMED for name in class_map.names)
    print("\n".join(lines))
    print(
        f"{out}: {len(tensors):,} tensors, {class_map.num_classes} outputs per anchor, {named} of "
        f"them with a name, images of {shown_size(image_size)} pixels"
        + (", letterbox" if resize == "letterbox" else "")
    )
    return FINISHED


def read_detector_file(
    file: Path, *, trust: bool
) -> tuple[dict[str, Tensor], list[str], str | None]:
    """Return a detector's tensors, lines about what was read, and the name of torchvision's file.

    Raises:
        InputError: The file is a pickle that is not trusted, or cannot be read.
    """
    if file.suffix == ".safetensors":
        tensors, _ = read_named_tensors(file)
        return tensors, [f"{file}: safetensors, sha256 {file_digest(file)}"], None
    if str(file) in COCO_DETECTORS:
        _, file = read_published(published_weights(str(file), COCO))
    weights, lines, published = read_pickle(file, trust=trust)
    return weights.tensors, lines, published


def require_free_folder(out: Path, *, overwrite: bool) -> None:
    """Refuse to replace anything but an earlier conversion, which `overwrite` allows."""
    if not out.exists() and not out.is_symlink():
        return
    if not overwrite:
        raise InputError(f"{out}: exists; give --overwrite or another --out")
    try:
        names = set() if out.is_symlink() else {file.name for file in out.iterdir()}
    # `out` is a file, or a folder that cannot be listed.
    except OSError:
        names = set()
    # A checkpoint of a run also has an optimizer's state, and is never replaced.
    if names != {MODEL_FILE, STATE_FILE}:
        raise InputError(f"{out}: is not a converted detector and is not replaced; set --out")


def converted_state(
    class_map: ClassMap,
    architecture: Architecture = DEFAULT_ARCHITECTURE,
    *,
    image_size: ImageSize,
    resize: Resize,
) -> State:
    """Return the state of a checkpoint that no run of this program has written."""
    settings = {
        "run": {"name": "converted"},
        "model": {**CONSTANT, **architecture._asdict()},
        "data": {"image_size": image_size, "resize": resize},
        "engine": {"precision": "float32"},
    }
    config = config_from_tree(settings, "command line")
    return State(
        model=describe_model(config, class_map),
        position=START,
        setup={"ranks": 1},
        config=config_to_tree(config),
        random_states=[random_states()],
        parts={},
    )


MOST_BYTES = 16 << 20  # A larger file is read as annotations, in parts


def read_class_map(file: Path, *, outputs: int) -> ClassMap:
    """Return the category of each of an anchor's `outputs`.

    The file has COCO-format annotations, an object with `categories` alone, or a list of names: a
    JSON list or a line of text each, from output 0 on. If all category ids are below `outputs`,
    they are the outputs' indices, as torchvision's and MLPerf's scripts train: COCO's ids 1 to 90
    are among 91 outputs, and the outputs between them are unnamed. Otherwise there must be a
    category for each output, in the order of the file. A name of `UNNAMED` or `BACKGROUND` is that
    of an output without a class.
    """
    ids, names = read_categories(file, outputs)
    if not len(ids):
        raise InputError(f"{file}: contains no class names")
    if ids.min() >= 0 and ids.max() < outputs:
        return ClassMap.by_category_id(ids, names, outputs)
    if len(ids) == outputs:
        return ClassMap.contiguous(ids, names)
    raise InputError(
        f"{file}: {len(ids)} categories with ids from {ids.min()} to {ids.max()}, but the detector "
        f"has {outputs} outputs per anchor; give the annotations that it was trained with"
    )


def read_categories(file: Path, outputs: int) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return category ids and names."""
    # A folder is an index of annotations. A large JSON file is parsed in parts, which needs little
    # memory.
    if file.is_dir() or (file.is_file() and file.stat().st_size > MOST_BYTES):
        annotations = open_annotations(file)
        return annotations.category_ids, tuple(annotations.category_names)
    if not file.is_file():
        raise InputError(f"{file}: is not a file; give --classes a JSON file or a list of names")
    try:
        text = read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read: {error}") from error
    if text.lstrip().startswith(("{", "[")):
        try:
            content = json.loads(text)
        # Python's decoder is recursive, so deeply nested brackets exceed the recursion limit.
        except (ValueError, RecursionError) as error:
            raise InputError(f"{file}: not JSON: {error}") from error
    else:
        content = [line.strip() for line in text.splitlines() if line.strip()]
    if isinstance(content, list) and set(map(type, content)) <= {str}:
        if len(content) != outputs:
            advice = f"name each ({UNNAMED} for one without a class)"
            # A name may also be missing elsewhere, so the first output is not skipped by itself.
            if len(content) == outputs - 1:
                advice += f", beginning with {BACKGROUND} if torchvision's script trained it"
            raise InputError(
                f"{file}: {len(content)} names, but the detector has {outputs} outputs per anchor; "
                f"{advice}, or give annotations with category ids"
            )
        names = tuple(UNNAMED if name == BACKGROUND else name for name in content)
        outputs_of: dict[str, int] = {}
        for output, name in enumerate(names):
            first = outputs_of.setdefault(name, output)
            if name != UNNAMED and first < output:
                raise InputError(
                    f"{file}: {shown(name)} is the name of output {first} and of output {output}; "
                    f"name each class once, or write {UNNAMED} for an output without a class"
                )
        return np.arange(outputs), names
    entries = content.get("categories") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise InputError(f"{file}: categories: expected a list, as in COCO's annotations")
    columns = category_columns(file, entries)
    return columns["category_ids"], tuple(columns["category_names"])
