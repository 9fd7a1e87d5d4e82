"""The classes of a detector that comes without them: from COCO-format JSON, or a list of names."""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.classes import UNNAMED, ClassMap
from data.coco_json import category_columns, check_unique
from data.columns import JsonTable
from data.index_cache import open_annotations
from retinanet.errors import InputError

MOST_BYTES = 16 << 20
"""A larger file is read as annotations, by parts."""


def read_class_map(file: Path, *, outputs: int) -> ClassMap:
    """Return which output of an anchor is which category.

    Where all category ids are below `outputs`, they are the outputs' indices, as torchvision's and
    MLPerf's scripts train: COCO's ids 1 to 90 are among 91 outputs, and the outputs between them
    are unnamed. Otherwise there must be a category for each output, in the order of the file.

    Args:
        file: COCO-format annotations, an object with `categories` alone, or a list of names: a JSON
            list or a line of text each, from output 0 on.
        outputs: Classes of each anchor.

    Raises:
        InputError: It cannot be read, or the categories do not fit.
    """
    ids, names = read_categories(file, outputs)
    if not len(ids):
        raise InputError(f"{file}: names no class")
    if ids.min() >= 0 and ids.max() < outputs:
        return ClassMap.by_category_id(ids, names, outputs)
    if len(ids) == outputs:
        return ClassMap.contiguous(ids, names)
    raise InputError(
        f"{file}: {len(ids)} categories with ids from {ids.min()} to {ids.max()}, but the detector "
        f"has {outputs} outputs per anchor; give the annotations that it was trained with"
    )


def read_categories(file: Path, outputs: int) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return category ids and names.

    Raises:
        InputError: The file cannot be read, or is a list of names of another length than `outputs`.
    """
    if file.is_dir() or (file.is_file() and file.stat().st_size > MOST_BYTES):
        annotations = open_annotations(file)
        return annotations.category_ids, tuple(annotations.category_names)
    if not file.is_file():
        raise InputError(f"{file}: is no file; give --classes a JSON file or a list of names")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read: {error}") from error
    if not text.lstrip().startswith(("{", "[")):
        names = [line.strip() for line in text.splitlines() if line.strip()]
        return numbered(names, file, outputs)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: not JSON: {error}") from error
    if isinstance(content, list) and set(map(type, content)) <= {str}:
        return numbered(content, file, outputs)
    entries = content.get("categories") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise InputError(f"{file}: categories: expected a list, as in COCO's annotations")
    columns = category_columns(JsonTable(file, "categories", entries))
    check_unique(columns["id"], path=file, name="categories")
    return columns["id"], tuple(columns["name"])


def numbered(
    names: list[str], file: Path, outputs: int
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return names with their places as ids.

    Raises:
        InputError: There are not as many as outputs.
    """
    if len(names) != outputs:
        raise InputError(
            f"{file}: {len(names)} names, but the detector has {outputs} outputs per anchor; name "
            f"each ({UNNAMED} for one without a class), or give annotations with category ids"
        )
    return np.arange(outputs), tuple(names)
