"""Faults of a split: their kinds in one table, the number of each, and the first places."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import InputError

PLACES_KEPT = 1000  # of each kind; a data set in which everything is wrong would fill the memory


class Place(NamedTuple):
    """The place of a finding, and the value there in one line."""

    entry: str  # such as `annotations[17].bbox`, counted from 0; or a file's name
    found: str
    file: str | None = None  # the image, where the entry is not the image's own


class Severity(StrEnum):
    """The effect of a finding on training; the worst first."""

    STOPS = "stops training"
    MENDED = "left out or fixed"
    NOTE = "note"


@dataclass
class Finding:
    """All findings of one kind and severity, with the first `PLACES_KEPT` places."""

    name: str
    severity: Severity
    count: int = 0
    places: list[Place] = field(default_factory=list)


class Findings:
    """The findings of one split.

    With `refusing`, the path of the annotations, the first one that stops training is raised as
    InputError, for whatever needs the annotations.
    """

    def __init__(self, *, refusing: Path | None = None) -> None:
        self.refusing = refusing
        self.by_kind: dict[tuple[Severity, str], Finding] = {}

    def add(
        self, name: str, place: Place, *, severity: Severity | None = None, expected: str = ""
    ) -> None:
        """Count one finding; else as `add_rows`."""
        one = np.zeros(1, dtype=np.int64)
        self.add_rows(name, one, lambda row: place, severity=severity, expected=expected)

    def add_rows(
        self,
        name: str,
        rows: NDArray[np.int64],
        make_place: Callable[[int], Place],
        *,
        severity: Severity | None = None,
        expected: str = "",
    ) -> None:
        """Count a finding for each of some rows; `make_place` is called for the first ones only.

        `severity` replaces that of its kind, and `expected` is what should be at the place.
        """
        if not len(rows):
            return
        key = (severity or KINDS[name].severity, name)
        if self.refusing is not None and key[0] is Severity.STOPS:
            entry, found, _ = make_place(int(rows[0]))
            problem = KINDS[name].problem.format(entry=entry, found=found, expected=expected)
            raise InputError(f"{self.refusing}: {problem}")
        finding = self.by_kind.setdefault(key, Finding(name, key[0]))
        finding.count += len(rows)
        capacity = PLACES_KEPT - len(finding.places)
        finding.places += [make_place(row) for row in rows[:capacity].tolist()]

    def in_order(self) -> list[Finding]:
        """Return the findings, the worst first, then in the order of `KINDS`."""
        severities, names = list(Severity), list(KINDS)
        return sorted(
            self.by_kind.values(),
            key=lambda finding: (severities.index(finding.severity), names.index(finding.name)),
        )

    def stopping(self) -> list[Finding]:
        """Return the findings that would stop training."""
        return [finding for finding in self.in_order() if finding.severity is Severity.STOPS]

    def count(self, name: str) -> int:
        """Return the number of findings of a kind, whatever their severity."""
        return sum(finding.count for (_, kind), finding in self.by_kind.items() if kind == name)

    def taken(self) -> list[Finding]:
        """Return the findings about entries that are used nevertheless: `TAKEN`."""
        return [finding for finding in self.in_order() if finding.name in TAKEN]

    def has(self, *names: str) -> bool:
        """Return whether there is a finding of any of these kinds, whatever its severity."""
        return any(name in names for _, name in self.by_kind)


class Kind(NamedTuple):
    """A kind of finding, and its severity unless the configuration changes it."""

    severity: Severity
    meaning: str
    problem: str = "{entry}: expected {expected}, found {found}"
    """What a run says that stops at it"""


STOPS, MENDED, NOTE = Severity
AGAIN = "{entry}: {found} is the id of an earlier entry; make ids unique"
EMPTY = "{entry}: empty; a data set needs at least one"

TAKEN = {
    "value_taken": "an odd value whose meaning is plain (null, a number as text): taken",
    "box_of_polygon": "a box without bbox: the enclosing box of its polygon is taken",
    "box_rotated": "a rotated box (attributes.rotation): its enclosing box is taken",
    "category_root": "the root of Roboflow's categories, without boxes: becomes no class",
}
"""Kinds of findings about entries that can be used."""

KINDS = {
    "annotations_unreadable": Kind(
        STOPS,
        "not JSON, without COCO's lists, or a damaged index",
        "{found}",
    ),
    "no_categories": Kind(
        STOPS,
        "the list of categories is empty",
        EMPTY,
    ),
    "no_images": Kind(
        STOPS,
        "the list of images is empty",
        EMPTY,
    ),
    "nothing_to_train_on": Kind(STOPS, "no image has a box of a single object"),
    "entry_not_object": Kind(STOPS, "an entry of a list is not a JSON object"),
    "field_missing": Kind(
        STOPS,
        "an entry lacks a field that COCO's format requires",
        "{entry}: missing; COCO's format requires it",
    ),
    "id_invalid": Kind(STOPS, "an id is not a 64-bit integer"),
    "annotation_id_missing": Kind(
        STOPS,
        "a box without an id where others have one",
        "{entry}: missing, but other entries have one; give every entry an id, or none",
    ),
    "category_id_duplicate": Kind(
        STOPS,
        "two categories have the same id",
        AGAIN,
    ),
    "image_id_duplicate": Kind(
        STOPS,
        "two images have the same id",
        AGAIN,
    ),
    "annotation_id_duplicate": Kind(
        STOPS,
        "two boxes have the same id",
        AGAIN,
    ),
    "category_name_invalid": Kind(STOPS, "a category's name is not a text, or is empty"),
    "file_name_invalid": Kind(STOPS, "a file name is not a text, or is empty"),
    "file_name_leaves_folder": Kind(
        STOPS,
        "a file name is outside the folder of images: convert shortens it to one inside",
        "{entry}: expected {expected}, found {found}; retinanet data convert --from coco shortens "
        "it to a file inside",
    ),
    "image_size_missing": Kind(
        STOPS,
        "width or height is missing: convert takes it from the image",
        "{entry}: expected {expected}, found {found}; retinanet data convert --from coco reads it "
        "from the image",
    ),
    "image_size_invalid": Kind(STOPS, "width or height is not a positive integer"),
    "image_id_unknown": Kind(
        STOPS,
        "a box of an image that is not listed",
        "{entry}: {found} is not an id in images; add it there or remove the box",
    ),
    "category_id_unknown": Kind(
        STOPS,
        "a box of a category that is not listed",
        "{entry}: {found} is not an id in categories; add it there or remove the box",
    ),
    "box_not_four_numbers": Kind(STOPS, "bbox is not [x, y, width, height]"),
    "box_not_finite": Kind(STOPS, "bbox holds NaN, infinity or a number beyond 1e9"),
    "box_negative_side": Kind(STOPS, "a box's width or height is below 0"),
    "boxes_in_shares": Kind(STOPS, "all boxes are from 0 to 1, shares of images instead of pixels"),
    "area_invalid": Kind(STOPS, "area is not a finite number of at least 0"),
    "crowd_flag_invalid": Kind(STOPS, "iscrowd or IsGroupOf is not 0, 1, true or false"),
    "categories_do_not_fit": Kind(STOPS, "the categories do not fit model.num_classes"),
    "categories_differ": Kind(STOPS, "a category differs from the training split's"),
    "image_missing": Kind(STOPS, "the image file does not exist"),
    "image_damaged": Kind(STOPS, "an image file is truncated, damaged, or cannot be read"),
    "image_other_format": Kind(STOPS, "a file is not JPEG, PNG, WebP, BMP, TIFF or GIF"),
    "image_too_large": Kind(STOPS, "an image has too many pixels"),
    "image_other_shape": Kind(STOPS, "the image has another aspect ratio than its annotations"),
    "box_zero_size": Kind(MENDED, "a box's width or height is 0: left out"),
    "box_outside": Kind(MENDED, "a box is completely outside its image: left out"),
    "box_vanishes": Kind(MENDED, "a box has no area at data.image_size: left out"),
    "box_partly_outside": Kind(MENDED, "a box is partly outside its image: clipped"),
    "image_doubtful": Kind(MENDED, "a damaged JPEG that can be decoded: parts may be grey"),
    "image_without_boxes": Kind(NOTE, "an image without any box"),
    "image_with_crowds_only": Kind(NOTE, "an image whose boxes are all crowds or groups"),
    "image_resized": Kind(
        NOTE, "the image has another size than its annotations: boxes are scaled"
    ),
    "image_dark": Kind(
        NOTE, "12 bits or fewer in an image of 16: it is read nearly black; scale its values"
    ),
    "image_turned": Kind(
        NOTE, "a photo is rotated by its EXIF orientation, to fit its annotations"
    ),
    "image_orientation_unclear": Kind(
        NOTE, "the size does not show whether the EXIF orientation applies: read as stored"
    ),
    "boxes_of_corners": Kind(
        NOTE, "bbox seems to be [x1, y1, x2, y2]: most leave their images as [x, y, width, height]"
    ),
    "box_duplicate": Kind(NOTE, "a box equals an earlier one of its image and class: used twice"),
    "file_name_duplicate": Kind(NOTE, "two images have the same file: it is used twice"),
    "image_in_both_splits": Kind(
        NOTE, "a validation image is a training image too, or a copy: its mAP says little"
    ),
    "file_unused": Kind(NOTE, "an image file that is not in the annotations"),
    "category_name_similar": Kind(
        NOTE,
        "two categories have one name, but for case and blanks: convert --merge-classes OLD=NEW",
    ),
    "class_without_boxes": Kind(NOTE, "a class without any box"),
    **{kind: Kind(NOTE, meaning) for kind, meaning in TAKEN.items()},
}
"""By their names in `--json`, in the order in which findings of the same severity are shown."""
