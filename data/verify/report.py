"""What a person reads: a table of findings for each split, counts of classes, and what to do.

TODO-DOC What was found, for programs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from common.console import clock
from common.errors import printable
from data.verify.findings import KINDS, Finding, Severity
from data.verify.split_check import CheckedSplit, Contents, processes_for

CLASSES_SHOWN = 5
KINDS_SHOWN = 4
LONGEST_EXAMPLE = 160
STYLES = {Severity.STOPS: "bold red", Severity.MENDED: "yellow", Severity.NOTE: "dim"}


def print_split(console: Console, checked: CheckedSplit) -> None:
    """One split: its size, its findings and its classes."""
    console.print()
    say(console, f"{checked.name}: {checked.split.annotations}, images in {checked.split.images}")
    if checked.contents is not None:
        say(console, totals(checked.contents), wrap=True)
        say(console, time_taken(checked, checked.contents), wrap=True)
    findings = checked.findings.in_order()
    if findings:
        print_findings(console, findings)
    else:
        say(console, "nothing found")
    if checked.contents is not None:
        print_classes(console, checked.contents)


def print_findings(console: Console, findings: Sequence[Finding]) -> None:
    """A table on a terminal, aligned lines in a pipe."""
    if not console.is_terminal:
        print_plain_findings(console, findings)
        return
    table = Table(Column("finding", no_wrap=True), Column("count", justify="right", no_wrap=True))
    table.add_column("severity", max_width=14)
    table.add_column("first example", overflow="fold")
    for one in findings:
        severity = Text(one.severity, style=STYLES[one.severity])
        table.add_row(one.name, f"{one.count:,}", severity, Text(example(one)))
    console.print(table)


def print_plain_findings(console: Console, findings: Sequence[Finding]) -> None:
    """A line each, however long."""
    names = max(len(one.name) for one in findings)
    counts = max(len(f"{one.count:,}") for one in findings)
    severities = max(len(one.severity) for one in findings)
    for one in findings:
        columns = f"{one.name:<{names}}  {one.count:>{counts},}  {one.severity:<{severities}}"
        say(console, f"{columns}  {example(one)}")


def example(finding: Finding) -> str:
    """The first place of a finding."""
    place = finding.places[0]
    file = f" ({place.file})" if place.file and place.file != place.found else ""
    text = printable(f"{place.entry}{file}: {place.found}")
    return text if len(text) <= LONGEST_EXAMPLE else f"{text[: LONGEST_EXAMPLE - 3]}..."


def totals(contents: Contents) -> str:
    """How much there is."""
    entries = contents.entries
    unreadable = ""
    if entries.unreadable_images or entries.unreadable_boxes:
        unreadable = (
            f"; {entries.unreadable_images:,} images and {entries.unreadable_boxes:,} boxes more "
            "cannot be read"
        )
    return (
        f"{len(entries.image_ids):,} images, {len(entries.boxes):,} boxes "
        f"({int(entries.box_is_crowd.sum()):,} of crowds), {len(entries.category_ids):,} classes"
        f"{unreadable}"
    )


def time_taken(checked: CheckedSplit, contents: Contents) -> str:
    """How long it took, and how many images were looked at."""
    annotations = f"annotations checked in {duration(checked.seconds_of_annotations)}"
    images, seconds = checked.images_checked, checked.seconds_of_images
    if not images:
        return f"{annotations}; NO IMAGE WAS CHECKED"
    which = "all" if checked.checked_all_images else f"ONLY {images:,} OF"
    return (
        f"{annotations}, {which} {len(contents.entries.image_ids):,} images decoded in "
        f"{duration(seconds)} ({images / max(seconds, 1e-9):.0f} images/s, "
        f"{processes_for(images)} {'processes' if processes_for(images) > 1 else 'process'})"
    )


def duration(seconds: float) -> str:
    """Seconds, or from a minute on h:mm:ss."""
    return f"{seconds:.1f} s" if seconds < 60 else clock(seconds)


def print_classes(console: Console, contents: Contents) -> None:
    """The classes with most and with fewest boxes, and those without any."""
    names, boxes = contents.entries.category_names, contents.classes.boxes
    ranked = np.argsort(-boxes, kind="stable")
    used = [f"{printable(names[row])} {boxes[row]:,}" for row in ranked[boxes[ranked] > 0].tolist()]
    empty = [printable(names[row]) for row in np.flatnonzero(boxes == 0).tolist()]
    if len(used) <= 2 * CLASSES_SHOWN:
        say(console, f"boxes by class: {', '.join(used) or 'none'}", wrap=True)
    else:
        say(console, f"most boxes:   {', '.join(used[:CLASSES_SHOWN])}", wrap=True)
        say(console, f"fewest boxes: {', '.join(used[-CLASSES_SHOWN:])}", wrap=True)
    if empty:
        more = f" and {len(empty) - CLASSES_SHOWN} more" if len(empty) > CLASSES_SHOWN else ""
        say(console, f"no boxes:     {', '.join(empty[:CLASSES_SHOWN])}{more}", wrap=True)


def conclusion(checked: Sequence[CheckedSplit]) -> str:
    """Whether training would start and go on."""
    stopping = [
        f"{one.count:,} {one.name} ({split.name})"
        for split in checked
        for one in split.findings.stopping()
    ]
    if stopping:
        more = len(stopping) - KINDS_SHOWN
        rest = f" and {more} more kinds" if more > 0 else ""
        return f"training would stop: {', '.join(stopping[:KINDS_SHOWN])}{rest}"
    if all(split.checked_all_images for split in checked):
        return "nothing stops training"
    return "nothing was found that stops training, but not all images were checked"


def say(console: Console, text: str, *, wrap: bool = False) -> None:
    """A line as it is, however long; with `wrap` a terminal gets it word by word."""
    console.print(Text(printable(text)), soft_wrap=not (wrap and console.is_terminal))


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
