"""What is wrong with one entry of COCO's lists.

The same rules as `data.coco_json` has; that stops at the first mistake, here all are told.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from data.coco_json import GROUP_FIELDS, INT32_MAX
from data.columns import INT64_MAX
from data.image_paths import leaves_folder


class Fault(NamedTuple):
    """A mistake in an entry."""

    kind: str
    field: str | None
    found: Any


def image_faults(entry: Any) -> Iterator[Fault]:
    """What is wrong with an entry of `images`."""
    if not isinstance(entry, dict):
        yield Fault("entry_not_object", None, entry)
        return
    yield from required(entry, "id", is_id, "id_invalid")
    yield from required(entry, "width", is_side, "image_size_invalid")
    yield from required(entry, "height", is_side, "image_size_invalid")
    yield from required(entry, "file_name", is_text, "file_name_invalid")
    name = entry.get("file_name")
    if isinstance(name, str) and leaves_folder(name):
        yield Fault("file_name_leaves_folder", "file_name", name)


def category_faults(entry: Any) -> Iterator[Fault]:
    """What is wrong with an entry of `categories`."""
    if not isinstance(entry, dict):
        yield Fault("entry_not_object", None, entry)
        return
    yield from required(entry, "id", is_id, "id_invalid")
    yield from required(entry, "name", is_text, "category_name_invalid")


def box_faults(entry: Any) -> Iterator[Fault]:
    """What is wrong with an entry of `annotations`."""
    if not isinstance(entry, dict):
        yield Fault("entry_not_object", None, entry)
        return
    if "id" in entry:
        yield from required(entry, "id", is_id, "id_invalid")
    yield from required(entry, "image_id", is_id, "id_invalid")
    yield from required(entry, "category_id", is_id, "id_invalid")
    if "bbox" not in entry:
        yield Fault("field_missing", "bbox", None)
    else:
        yield from bbox_faults(entry["bbox"])
    area = entry.get("area")
    if area is not None and not (is_number(area) and is_finite(area) and area >= 0):
        yield Fault("area_invalid", "area", area)
    yield from flag_faults(entry, ("iscrowd", *GROUP_FIELDS), place="")
    attributes = entry.get("attributes")
    if isinstance(attributes, dict):
        yield from flag_faults(attributes, GROUP_FIELDS, place="attributes.")


def bbox_faults(bbox: Any) -> Iterator[Fault]:
    """What is wrong with x, y, width and height."""
    if not (isinstance(bbox, list) and len(bbox) == 4 and all(map(is_number, bbox))):
        yield Fault("box_not_four_numbers", "bbox", bbox)
    elif not all(map(is_finite, bbox)):
        yield Fault("box_not_finite", "bbox", bbox)
    elif bbox[2] < 0 or bbox[3] < 0:
        yield Fault("box_negative_side", "bbox", bbox)


def flag_faults(entry: dict[str, Any], fields: tuple[str, ...], *, place: str) -> Iterator[Fault]:
    """Flags that are neither 0 nor 1."""
    for field in fields:
        value = entry.get(field, 0)
        if type(value) not in (int, bool) or value not in (0, 1):
            yield Fault("crowd_flag_invalid", place + field, value)


def required(
    entry: dict[str, Any], field: str, is_valid: Callable[[Any], bool], kind: str
) -> Iterator[Fault]:
    """A field that must be there, and be valid."""
    if field not in entry:
        yield Fault("field_missing", field, None)
    elif not is_valid(entry[field]):
        yield Fault(kind, field, entry[field])


def is_id(value: Any) -> bool:
    """An integer of 64 bits; `true` is none."""
    return type(value) is int and -INT64_MAX <= value <= INT64_MAX


def is_side(value: Any) -> bool:
    """A width or a height in pixels."""
    return type(value) is int and 1 <= value <= INT32_MAX


def is_text(value: Any) -> bool:
    """A string that is not empty."""
    return isinstance(value, str) and value != ""


def is_number(value: Any) -> bool:
    """A JSON number, or one of NaN and the infinities; `true` is none."""
    return type(value) in (int, float)


def is_finite(value: float) -> bool:
    """Whether float64 holds the number."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
