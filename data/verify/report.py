"""Check splits, report the findings, and write indexes without the bad entries.

The console shows, for each split, a table of findings with the first place of each, the classes
with most and fewest boxes, and the next command; `--json` has the first places of every finding.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.text import Text

from common.charts import save_chart
from common.console import clock
from common.errors import FINISHED, InputError, printable
from common.files import (
    or_refused,
    require_writable_later,
    write_atomically,
)
from common.walk import real_path
from common.wording import counted
from data.annotations import Split, SplitName, TrainingRules
from data.coco_json import Entries, clean_annotations, clean_images
from data.findings import KINDS, Finding, Severity
from data.formats.labels import some
from data.index import write_index
from data.parts import processes_for
from data.verify.chart import draw_objects
from data.verify.objects import (
    AnchorRule,
    Examined,
    examine,
    format_objects,
    format_proposal,
    objects_json,
    proposal_json,
)
from data.verify.splits import IMAGES_AT_ONCE, CheckedSplit, check_splits

CLASSES_SHOWN = 5
KINDS_SHOWN = 4
LONGEST_EXAMPLE = 160
STYLES = {Severity.STOPS: "bold red", Severity.MENDED: "yellow", Severity.NOTE: "dim"}
CATEGORY_FINDINGS = ("category_id_duplicate", "categories_do_not_fit", "categories_differ")
STOPS_TRAINING = 1  # the exit status when something would stop training


def require_free_folder(folder: Path, splits: Sequence[SplitName]) -> None:
    """Raise InputError, before the work, if clean indexes exist there or cannot be written."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; --write-clean needs a folder")
    for split in splits:
        path = index_folder(folder, split)
        if path.exists():
            raise InputError(f"{path}: exists; give --write-clean another folder, or remove it")
    require_writable_later(index_folder(folder, splits[0]))


def index_folder(folder: Path, split: str) -> Path:
    """Return the path of a split's clean index."""
    return folder / f"{split}.index"


class VerifyOutputs(NamedTuple):
    """What is written, unless None."""

    json: Path | None = None  # all findings
    chart: Path | None = None  # a picture of the objects
    clean: Path | None = None  # a folder for indexes without the bad entries


def verify(
    splits: Mapping[str, Split],
    rules: TrainingRules,
    outputs: VerifyOutputs,
    *,
    sample: int | None,
    make_anchor_rule: Callable[[], AnchorRule],
    command_with_config: Callable[..., str],
    console: Console,
) -> int:
    """Check splits (the training split first), print the findings, and return the exit code.

    `sample` images of each split are decoded, None: all. `make_anchor_rule` is called later: it may
    load torch, which must not be in the processes that decode. `command_with_config` returns a
    command line, given `train`, or `data` for `verify`, and further arguments.

    Raises:
        InputError: An output cannot be written.
    """
    checked = check_splits(splits, rules, sample=sample, console=console)
    examined = examine(
        {split.name: split.entries for split in checked if split.entries is not None},
        make_anchor_rule,
        rules,
    )
    for split in checked:
        print_split(console, split)
        if examined is not None and split.name in examined.objects:
            for line in format_objects(examined.objects[split.name], examined.rule):
                print_line(console, line, wrap=True)
    if examined is not None:
        console.print()
        first = next(iter(examined.objects.values()))
        for line in format_proposal(examined.proposal, first):
            print_line(console, line, wrap=True)
    stopping = [
        f"{finding.count:,} {finding.name} ({split.name})"
        for split in checked
        for finding in split.findings.stopping()
    ]
    if outputs.json is not None:
        report = {
            "stops_training": bool(stopping),
            "decoder": rules.decoder,
            "proposed_image_size": proposal_json(examined.proposal) if examined else None,
            "splits": {split.name: split_json(split, examined) for split in checked},
        }
        write_atomically(outputs.json, json.dumps(report, indent=1))
    if outputs.chart is not None:
        console.print()
        if examined is not None:
            save_chart(draw_objects(examined), outputs.chart)
            print_line(console, f"picture: {outputs.chart}")
        else:
            print_line(console, f"{outputs.chart}: not written: there is no box to draw")
    console.print()
    print_line(console, format_conclusion(checked, stopping), wrap=True)
    print_shared(console, checked)
    print_next(console, checked, outputs.clean, command_with_config)
    return STOPS_TRAINING if stopping else FINISHED


def print_next(
    console: Console,
    checked: Sequence[CheckedSplit],
    clean: Path | None,
    command_with_config: Callable[..., str],
) -> None:
    """Write the clean indexes to a folder, unless it is None, and print what to do next."""
    obstacles = [reason for reason in map(obstacle, checked) if reason is not None]
    command = None
    if clean is not None and obstacles:
        advice = f"clean index not written: {obstacles[0]}"
    elif clean is not None:
        fields = write_clean(clean, checked, console)
        advice, command = "next:", command_with_config("train", *fields)
    elif not any(split.findings.stopping() for split in checked):
        advice, command = "next:", command_with_config("train")
    elif obstacles:
        advice = f"next: fix the data; a clean index cannot be made: {obstacles[0]}"
    else:
        advice = "next: fix the data, or write an index without the bad entries:"
        command = command_with_config("data", "--write-clean", "clean")
    print_line(console, advice, wrap=command is None)
    if command is not None:
        print_line(console, f"  {command}")


def print_split(console: Console, checked: CheckedSplit) -> None:
    """Print one split: its size, its findings and its classes."""
    console.print()
    print_line(
        console, f"{checked.name}: {checked.split.annotations}, images in {checked.split.images}"
    )
    entries = checked.entries
    if entries is not None:
        print_line(console, format_totals(entries), wrap=True)
        print_line(console, format_time(checked, len(entries.image_ids)), wrap=True)
    findings = checked.findings.in_order()
    if findings:
        print_findings(console, findings)
    else:
        print_line(console, "no findings")
    if entries is not None:
        print_classes(console, entries)


def print_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Print aligned lines of any length, in colours on a terminal."""
    names = max(len(finding.name) for finding in findings)
    counts = max(len(f"{finding.count:,}") for finding in findings)
    severities = max(len(finding.severity) for finding in findings)
    for finding in findings:
        line = Text(f"{finding.name:<{names}}  {finding.count:>{counts},}  ")
        line.append(f"{finding.severity:<{severities}}", STYLES[finding.severity])
        line.append(f"  {format_example(finding)}")
        console.print(line, soft_wrap=True)


def format_example(finding: Finding) -> str:
    """Return the first place of a finding in one line."""
    place = finding.places[0]
    file = f" ({place.file})" if place.file and place.file != place.found else ""
    text = printable(f"{place.entry}{file}: {place.found}")
    return text if len(text) <= LONGEST_EXAMPLE else f"{text[: LONGEST_EXAMPLE - 3]}..."


def format_totals(entries: Entries) -> str:
    """Return the numbers of images, boxes and classes of a split."""
    unreadable = ""
    if entries.unreadable_images or entries.unreadable_boxes:
        unreadable = (
            f"; {entries.unreadable_images:,} more images and {entries.unreadable_boxes:,} more "
            "boxes cannot be read"
        )
    return (
        f"{len(entries.image_ids):,} images, {len(entries.boxes):,} boxes "
        f"({int(entries.box_is_crowd.sum()):,} of crowds), {len(entries.category_ids):,} classes"
        f"{unreadable}"
    )


def format_time(checked: CheckedSplit, total: int) -> str:
    """Return the time that the checks took, and the number of images that were decoded."""
    # From a minute on as h:mm:ss.
    spent = [
        f"{seconds:.1f} s" if seconds < 60 else clock(seconds)
        for seconds in (checked.seconds_of_annotations, checked.seconds_of_images)
    ]
    annotations = f"annotations checked in {spent[0]}"
    images, seconds = checked.images_checked, checked.seconds_of_images
    if not images:
        return f"{annotations}; NO IMAGE WAS CHECKED"
    which = "all" if checked.checked_all_images else f"ONLY {images:,} OF"
    processes = processes_for(images, at_once=IMAGES_AT_ONCE)
    return (
        f"{annotations}, {which} {total:,} images decoded in "
        f"{spent[1]} ({images / max(seconds, 1e-9):.0f} images/s, "
        f"{counted(processes, 'process', 'processes')})"
    )


def print_classes(console: Console, entries: Entries) -> None:
    """Print the classes with most and with fewest boxes, and those without any."""
    names, boxes = entries.category_names, entries.class_counts[0]
    ranked = np.argsort(-boxes, kind="stable")
    used = [f"{printable(names[row])} {boxes[row]:,}" for row in ranked[boxes[ranked] > 0].tolist()]
    empty = [names[row] for row in np.flatnonzero(boxes == 0).tolist()]
    if len(used) <= 2 * CLASSES_SHOWN:
        print_line(console, f"boxes by class: {', '.join(used) or 'none'}", wrap=True)
    else:
        print_line(console, f"most boxes:   {', '.join(used[:CLASSES_SHOWN])}", wrap=True)
        print_line(console, f"fewest boxes: {', '.join(used[-CLASSES_SHOWN:])}", wrap=True)
    if empty:
        print_line(console, f"no boxes:     {some(empty, CLASSES_SHOWN)}", wrap=True)


def format_conclusion(checked: Sequence[CheckedSplit], stopping: Sequence[str]) -> str:
    """Return in one line whether the data would stop training."""
    if stopping:
        hidden = len(stopping) - KINDS_SHOWN
        others = f" and {hidden} more kinds" if hidden > 0 else ""
        return f"training would stop: {', '.join(stopping[:KINDS_SHOWN])}{others}"
    if all(split.checked_all_images for split in checked):
        return "nothing stops training"
    return "nothing found that stops training, but not all images were checked"


def print_shared(console: Console, checked: Sequence[CheckedSplit]) -> None:
    """Print how many validation images the detector will be trained on."""
    for split in checked:
        shared = split.findings.count("image_in_both_splits")
        if split.entries is not None and shared:
            text = f"{shared:,} of {len(split.entries.image_ids):,} validation images"
            advice = "the mAP will be higher than on other images"
            print_line(console, f"{text} are training images too: {advice}", wrap=True)


def print_line(console: Console, text: str, *, wrap: bool = False) -> None:
    """Print a line as it is, however long; with `wrap` a terminal breaks it between words."""
    console.print(Text(printable(text)), soft_wrap=not (wrap and console.is_terminal))


def split_json(checked: CheckedSplit, examined: Examined | None) -> dict[str, Any]:
    """Return one split as JSON; `null` where the annotations cannot be read."""
    entries = checked.entries
    return {
        "annotations": str(checked.split.annotations),
        "images_folder": str(checked.split.images),
        "images": None if entries is None else len(entries.image_ids),
        "images_checked": checked.images_checked,
        "images_unreadable": None if entries is None else entries.unreadable_images,
        "boxes": None if entries is None else len(entries.boxes),
        "boxes_unreadable": None if entries is None else entries.unreadable_boxes,
        "crowds": None if entries is None else int(entries.box_is_crowd.sum()),
        "annotations_s": checked.seconds_of_annotations,
        "images_s": checked.seconds_of_images,
        "findings": [
            {
                "name": finding.name,
                "severity": finding.severity.name.lower(),
                "meaning": KINDS[finding.name].meaning,
                "count": finding.count,
                "places_left_out": finding.count - len(finding.places),
                "places": [place._asdict() for place in finding.places],
            }
            for finding in checked.findings.in_order()
        ],
        "classes": None if entries is None else classes_json(entries),
        "objects": objects_json(examined.objects[checked.name], examined.rule)
        if examined is not None and checked.name in examined.objects
        else None,
    }


def classes_json(entries: Entries) -> list[dict[str, Any]]:
    """Return boxes, crowds and images of every class, in the order of the categories."""
    columns = (
        entries.category_ids.tolist(),
        entries.category_names,
        *entries.class_counts.tolist(),
    )
    fields = ("category_id", "name", "boxes", "crowds", "images")
    return [dict(zip(fields, values, strict=True)) for values in zip(*columns, strict=True)]


def obstacle(checked: CheckedSplit) -> str | None:
    """Return why no clean index of a split can be made; None if one can."""
    entries = checked.entries
    if entries is None:
        return f"{checked.name}: the annotations cannot be read"
    if entries.unreadable_categories or checked.findings.has(*CATEGORY_FINDINGS):
        return (
            f"{checked.name}: faulty categories cannot be left out, as boxes would get other "
            "classes; fix them first"
        )
    return None if clean_images(entries).any() else f"{checked.name}: no image would remain"


def write_clean(folder: Path, checked: Sequence[CheckedSplit], console: Console) -> list[str]:
    """Write the clean indexes, print what remains, and return the config fields of the indexes."""
    fields = []
    print_line(console, "written without the bad entries:")
    for split in checked:
        assert split.entries is not None
        entries, path = split.entries, index_folder(folder, split.name)
        annotations = clean_annotations(entries)
        made_from = f"{real_path(split.split.annotations)}, cleaned"
        with or_refused(path):
            write_index(path, annotations, made_from=made_from)
        images = len(entries.image_ids) + entries.unreadable_images
        boxes = len(entries.boxes) + entries.unreadable_boxes
        print_line(
            console,
            f"  {path}: {len(annotations):,} of {images:,} images and "
            f"{len(annotations.boxes):,} of {boxes:,} boxes remain",
        )
        fields += [
            f"data.{split.name}_annotations={path}",
            f"data.{split.name}_images={split.split.images}",
        ]
    if not all(split.checked_all_images for split in checked):
        print_line(console, "not all images were checked; bad ones may remain", wrap=True)
    return fields
