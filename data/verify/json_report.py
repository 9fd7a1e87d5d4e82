"""What was found, for programs."""

from collections.abc import Sequence
from typing import Any

from data.verify.findings import Finding
from data.verify.kinds import KINDS
from data.verify.split_check import CheckedSplit, Contents


def as_json(checked: Sequence[CheckedSplit], *, decoder: str) -> dict[str, Any]:
    """All findings with the places of the first of them, and all classes."""
    return {
        "stops_training": any(one.findings.stopping() for one in checked),
        "decoder": decoder,
        "splits": {one.name: split_json(one) for one in checked},
    }


def split_json(checked: CheckedSplit) -> dict[str, Any]:
    """One split; `null` for what cannot be known of annotations that cannot be read."""
    contents = checked.contents
    return {
        "annotations": str(checked.split.annotations),
        "images_folder": str(checked.split.images),
        "images": None if contents is None else len(contents.entries.image_ids),
        "images_checked": checked.images_checked,
        "images_unreadable": None if contents is None else contents.entries.unreadable_images,
        "boxes": None if contents is None else len(contents.entries.boxes),
        "boxes_unreadable": None if contents is None else contents.entries.unreadable_boxes,
        "crowds": None if contents is None else int(contents.entries.box_is_crowd.sum()),
        "annotations_s": checked.seconds_of_annotations,
        "images_s": checked.seconds_of_images,
        "findings": [finding_json(one) for one in checked.findings.in_order()],
        "classes": None if contents is None else classes_json(contents),
    }


def finding_json(finding: Finding) -> dict[str, Any]:
    """One kind, with as many places as are kept."""
    return {
        "name": finding.name,
        "severity": finding.severity.name.lower(),
        "meaning": KINDS[finding.name].meaning,
        "count": finding.count,
        "places_left_out": finding.count - len(finding.places),
        "places": [place._asdict() for place in finding.places],
    }


def classes_json(contents: Contents) -> list[dict[str, Any]]:
    """Boxes, crowds and images of every class, in the order of the categories."""
    entries, counts = contents.entries, contents.classes
    return [
        {
            "category_id": int(entries.category_ids[row]),
            "name": entries.category_names[row],
            "boxes": int(counts.boxes[row]),
            "crowds": int(counts.crowds[row]),
            "images": int(counts.images[row]),
        }
        for row in range(len(entries.category_ids))
    ]
