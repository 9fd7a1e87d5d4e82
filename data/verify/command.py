"""Check splits: print what was found, and write indexes without the bad entries."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from common.errors import FINISHED, InputError
from common.files import require_free_json, write_whole
from data.annotations import Annotations, TextColumn
from data.index import write_index
from data.sources import SPLITS, Split, SplitName
from data.verify.checks import check_categories_agree
from data.verify.entries import Entries, Good
from data.verify.report import as_json, conclusion, print_split, say
from data.verify.split_check import (
    CheckedSplit,
    TrainingRules,
    add_image_findings,
    check_annotations,
    check_split_images,
    check_unused_files,
)

STOPS_TRAINING = 1
"""The exit status when something would stop training."""


def require_free_outputs(
    *, json_file: Path | None, clean_folder: Path | None, splits: Sequence[SplitName]
) -> None:
    """Refuse outputs that exist or cannot be written, before the work.

    Raises:
        InputError: Names the one that exists, or the folder that cannot be written to.
    """
    if json_file is not None:
        require_free_json(json_file)
        require_writable(json_file.absolute().parent)
    if clean_folder is not None:
        require_no_index(clean_folder, splits)


def verify(
    splits: Mapping[SplitName, Split],
    rules: TrainingRules,
    *,
    check_images: bool,
    sample: int | None,
    json_file: Path | None,
    clean_folder: Path | None,
    command_with_config: Callable[..., str],
    console: Console,
) -> int:
    """Check splits, print what was found, and return the exit code.

    Args:
        splits: Where the splits lie, the training split first.
        rules: What training accepts.
        check_images: Whether images are decoded.
        sample: Decode only this many images of each split; None for all.
        json_file: Where all findings are written; None for nowhere.
        clean_folder: Where indexes without the bad entries are written; None for nowhere.
        command_with_config: Returns a command line, given a program such as `train.py` and more
            arguments.
        console: Where findings and progress are printed.

    Raises:
        InputError: An output cannot be written.
    """
    checked = check(splits, rules, check_images=check_images, sample=sample, console=console)
    for one in checked:
        print_split(console, one)
    if json_file is not None:
        report = as_json(checked, decoder=rules.decoder)
        write_whole(json_file, json.dumps(report, indent=1))
    console.print()
    say(console, conclusion(checked), wrap=True)
    advise(checked, clean_folder, command_with_config, console)
    return STOPS_TRAINING if any(one.findings.stopping() for one in checked) else FINISHED


def check(
    splits: Mapping[SplitName, Split],
    rules: TrainingRules,
    *,
    check_images: bool,
    sample: int | None,
    console: Console,
) -> list[CheckedSplit]:
    """Check annotations first, which takes less time, then images."""
    checked = [
        check_annotations(name, split, rules, console=console) for name, split in splits.items()
    ]
    contents = [one.contents for one in checked if one.contents is not None]
    whole = not any(one.entries.unreadable_categories for one in contents)
    if whole and len(contents) == len(SPLITS):
        check_categories_agree(contents[0].entries, contents[1].entries, checked[1].findings)
    if check_images:
        for one in checked:
            check_split_images(one, decoder=rules.decoder, sample=sample, console=console)
        add_image_findings(checked, rules)
        # One split's files may lie in the other's folder.
        if sample is None and len(checked) == len(SPLITS):
            find_unused(checked)
    return checked


def find_unused(checked: Sequence[CheckedSplit]) -> None:
    """Find files without annotations, in every folder whose splits' annotations can be read.

    A folder that both splits share is the first one's.
    """
    sharing: dict[Path, list[CheckedSplit]] = {}
    for one in checked:
        sharing.setdefault(one.split.images.resolve(), []).append(one)
    for folder, sharers in sharing.items():
        contents = [one.contents for one in sharers if one.contents is not None]
        if len(contents) == len(sharers):
            names = chain.from_iterable(one.entries.file_names for one in contents)
            check_unused_files(folder, names, sharers[0].findings)


CATEGORY_FINDINGS = ("category_id_duplicate", "categories_do_not_fit", "categories_differ")


def index_folder(folder: Path, split: str) -> Path:
    """Where a split's clean index goes."""
    return folder / f"{split}.index"


def require_no_index(folder: Path, splits: Sequence[str]) -> None:
    """Refuse to replace an index, before the work.

    Raises:
        InputError: Names the one that exists, or the file that is in the folder's place.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; give --write-clean a folder")
    for split in splits:
        path = index_folder(folder, split)
        if path.exists():
            raise InputError(f"{path}: exists; give --write-clean another folder, or remove it")
    require_writable(folder)


def require_writable(path: Path) -> None:
    """Refuse a path below which nothing can be written, before hours of work.

    Raises:
        InputError: Names the folder that is in the way.
    """
    existing = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise InputError(f"{existing}: is no folder that can be written to; name another")


def obstacle(checked: CheckedSplit) -> str | None:
    """Why no clean index of a split can be made; None if one can."""
    contents = checked.contents
    if contents is None:
        return f"{checked.name}: the annotations cannot be read"
    if contents.entries.unreadable_categories or any(
        checked.findings.count(name) for name in CATEGORY_FINDINGS
    ):
        return (
            f"{checked.name}: mistakes in categories cannot be left out: boxes would get other "
            "classes; mend them first"
        )
    if not clean_images(contents.entries, contents.good).any():
        return f"{checked.name}: no image would remain"
    return None


def write_clean_index(folder: Path, checked: CheckedSplit) -> Annotations:
    """Write the clean index of a split that no obstacle hinders; returns what is in it.

    Raises:
        InputError: It cannot be written there.
    """
    assert checked.contents is not None
    annotations = clean_annotations(checked.contents.entries, checked.contents.good)
    path = index_folder(folder, checked.name)
    try:
        write_index(path, annotations, made_from=f"{checked.split.annotations.resolve()}, cleaned")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
    return annotations


def clean_images(entries: Entries, good: Good) -> NDArray[np.bool_]:
    """Images [I] that remain.

    One all of whose boxes are bad goes with them: it would teach that there is nothing in it.
    """
    images = len(entries.image_ids)
    named = entries.image_of_box[entries.image_of_box >= 0]
    had_boxes = np.bincount(named, minlength=images) > 0
    had_boxes |= entries.image_had_unreadable_boxes
    has_boxes = np.bincount(entries.image_of_box[good.boxes], minlength=images) > 0
    return good.images & (has_boxes | ~had_boxes)


def clean_annotations(entries: Entries, good: Good) -> Annotations:
    """The good entries, boxes in the order of their images."""
    images = clean_images(entries, good)
    kept = np.flatnonzero(good.boxes & images[entries.image_of_box])
    rows = np.cumsum(images) - 1
    image_of_box = rows[entries.image_of_box[kept]]
    order = kept[np.argsort(image_of_box, kind="stable")]
    per_image = np.bincount(image_of_box, minlength=int(images.sum()))
    names = (entries.file_names[row] for row in np.flatnonzero(images).tolist())
    return Annotations(
        category_ids=entries.category_ids,
        category_names=tuple(entries.category_names),
        image_ids=entries.image_ids[images],
        file_names=TextColumn.of(names),
        widths=entries.widths[images],
        heights=entries.heights[images],
        box_offsets=np.concatenate([[0], np.cumsum(per_image)]).astype(np.int64),
        boxes=entries.boxes[order],
        box_category_ids=entries.box_category_ids[order],
        box_is_crowd=entries.box_is_crowd[order],
        box_areas=entries.box_areas[order],
        box_ids=entries.box_ids[order],
    )


def advise(
    checked: Sequence[CheckedSplit],
    clean_folder: Path | None,
    command_with_config: Callable[..., str],
    console: Console,
) -> None:
    """Write the clean indexes where they are wanted, and say what to do next."""
    obstacles = [reason for reason in map(obstacle, checked) if reason is not None]
    if clean_folder is not None and obstacles:
        say(console, f"no clean index was written: {obstacles[0]}", wrap=True)
    elif clean_folder is not None:
        write_clean(clean_folder, checked, command_with_config, console)
    elif not any(one.findings.stopping() for one in checked):
        say_next(console, "next:", command_with_config("train.py"))
    elif obstacles:
        reason = f"next: mend it; an index without it cannot be made: {obstacles[0]}"
        say(console, reason, wrap=True)
    else:
        command = command_with_config("-m data verify", "--write-clean", "clean")
        say_next(console, "next: mend it, or make an index without it to train on:", command)


def write_clean(
    folder: Path,
    checked: Sequence[CheckedSplit],
    command_with_config: Callable[..., str],
    console: Console,
) -> None:
    """Write the clean indexes, say what remains, and how to train on them."""
    fields = []
    say(console, "written, without what is bad:")
    for one in checked:
        annotations = write_clean_index(folder, one)
        assert one.contents is not None
        entries, path = one.contents.entries, index_folder(folder, one.name)
        images = len(entries.image_ids) + entries.unreadable_images
        boxes = len(entries.boxes) + entries.unreadable_boxes
        say(
            console,
            f"  {path}: {len(annotations):,} of {images:,} images and "
            f"{len(annotations.boxes):,} of {boxes:,} boxes remain",
        )
        fields += [
            f"data.{one.name}_annotations={path}",
            f"data.{one.name}_images={one.split.images}",
        ]
    if not all(one.checked_all_images for one in checked):
        say(console, "images were not all checked: bad ones may still be in it", wrap=True)
    say_next(console, "next:", command_with_config("train.py", *fields))


def say_next(console: Console, why: str, command: str) -> None:
    """A command to type, on a line of its own."""
    say(console, why)
    say(console, f"  {command}")
