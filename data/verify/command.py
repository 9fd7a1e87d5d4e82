"""Check a data set before a run depends on it.

Reads the annotations of both splits and decodes every image with the run's decoder, on all cores.
Tells everything that would stop training, what training leaves out or mends (boxes without size,
boxes that reach beyond their image, …), and what is worth knowing; then the counts of classes.

  python -m data verify --config coco.yaml data.root=/data/coco
  python -m data verify --config coco.yaml data.root=/data/coco --no-images      # seconds
  python -m data verify --config coco.yaml data.root=/data/coco --sample 1000
  python -m data verify --config coco.yaml data.root=/data/coco --json found.json
  python -m data verify --config coco.yaml data.root=/data/coco --write-clean clean

--write-clean makes an index of each split without the bad images and boxes, and prints the command
that trains on it. Nothing else is changed: not the annotations, not the images.

Exit status: 0 nothing stops training, 1 something would, 2 wrong arguments or no such file,
130 Ctrl-C.
"""

import argparse
import json
import os
import shlex
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from common.cli import add_json_option, add_overrides, installed, positive
from common.console import make_console
from common.errors import FINISHED, InputError
from common.files import require_free_json, write_whole
from data.annotations import Annotations, TextColumn
from data.decoding import resolve_decoder
from data.index import write_index
from data.sources import SPLITS, Split, SplitName
from data.verify.checks import check_categories_agree
from data.verify.entries import Entries, Good
from data.verify.report import as_json, conclusion, print_split, say
from data.verify.split_check import (
    CheckedSplit,
    add_image_findings,
    check_annotations,
    check_images,
    check_unused_files,
)
from retinanet.config import Config
from retinanet.config_file import configured_split, load_config


def add_verify(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `verify`."""
    parser = commands.add_parser(
        "verify",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--config",
        required=True,
        metavar="NAME",
        help="a YAML file, or a name in configs/, as train.py takes it",
    )
    add_overrides(parser)
    parser.add_argument(
        "--split",
        choices=["train", "validation"],
        help="only this one (default: both, whose categories are then compared)",
    )
    how_many = parser.add_mutually_exclusive_group()
    how_many.add_argument(
        "--no-images", action="store_true", help="check annotations alone: a quick look"
    )
    how_many.add_argument(
        "--sample", type=positive, metavar="N", help="decode only N images of each split"
    )
    add_output_arguments(parser)


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """What is written, and where."""
    add_json_option(
        parser, "write everything here too: the first 1000 places of each kind, every class"
    )
    parser.add_argument(
        "--write-clean",
        dest="clean_folder",
        type=Path,
        metavar="DIR",
        help="write DIR/train.index and DIR/validation.index without the bad entries",
    )


def run(
    *,
    config: str,
    overrides: list[str],
    split: SplitName | None,
    no_images: bool,
    sample: int | None,
    json_file: Path | None,
    clean_folder: Path | None,
) -> int:
    """Run the command; returns the exit code."""
    if sample is not None and clean_folder is not None:
        raise InputError(
            "--write-clean: not with --sample, which leaves most images unchecked; leave one out"
        )
    splits: tuple[SplitName, ...] = SPLITS if split is None else (split,)
    return verify(
        Request(
            config=config,
            overrides=overrides,
            splits=splits,
            images=not no_images,
            sample=sample,
            json_file=json_file,
            clean_folder=clean_folder,
        )
    )


class Request(NamedTuple):
    """What was asked for."""

    config: str
    overrides: Sequence[str]
    splits: Sequence[SplitName]
    images: bool
    sample: int | None
    json_file: Path | None
    clean_folder: Path | None

    def command(self, program: str, *more: str) -> str:
        """A command with the same configuration, to be typed."""
        arguments = ["--config", self.config, *self.overrides, *more]
        return f"{installed('python')} {program} {shlex.join(arguments)}"


STOPS_TRAINING = 1
"""The exit status when something would stop training."""


def verify(request: Request) -> int:
    """Check what a configuration names; returns the exit code.

    Raises:
        InputError: The configuration is wrong, a file is missing, or an output exists.
    """
    config = load_config(request.config, request.overrides)
    console = make_console()
    if request.json_file is not None:
        require_free_json(request.json_file)
        require_writable(request.json_file.absolute().parent)
    if request.clean_folder is not None:
        require_no_index(request.clean_folder, request.splits)
    root = config.data.root
    if config.data.scenes is not None:
        root = scenes_of(config)
        if not root.is_dir():
            say(console, f"{root}: not drawn yet; there is nothing to verify before the run does")
            return FINISHED
    decoder = resolve_decoder(config.data.decoder)
    splits = {
        name: configured_split(config.data, name, root=root)
        for name in SPLITS
        if name in request.splits
    }
    checked = check(request, config, splits, decoder=decoder, console=console)
    for one in checked:
        print_split(console, one)
    if request.json_file is not None:
        write_whole(request.json_file, json.dumps(as_json(checked, decoder=decoder), indent=1))
    console.print()
    say(console, conclusion(checked), wrap=True)
    advise(request, checked, console)
    return STOPS_TRAINING if any(one.findings.stopping() for one in checked) else FINISHED


def scenes_of(config: Config) -> Path:
    """Where a run draws its scenes.

    Raises:
        InputError: Files are given beside them.
    """
    # These load torch, 400 MB and seconds that checking a data set does without.
    from retinanet.training.data import require_no_files  # noqa: PLC0415
    from retinanet.training.run_folder import RunFolder  # noqa: PLC0415

    require_no_files(config.data)
    return RunFolder(config.run.root / config.run.name).scenes


def check(
    request: Request,
    config: Config,
    splits: dict[SplitName, Split],
    *,
    decoder: str,
    console: Console,
) -> list[CheckedSplit]:
    """All checks: of annotations first, which take less time, then of images."""
    checked = [
        check_annotations(name, split, config, console=console) for name, split in splits.items()
    ]
    contents = [one.contents for one in checked if one.contents is not None]
    whole = not any(one.entries.unreadable_categories for one in contents)
    if whole and len(contents) == len(SPLITS):
        check_categories_agree(contents[0].entries, contents[1].entries, checked[1].findings)
    if request.images:
        for one in checked:
            check_images(one, decoder=decoder, sample=request.sample, console=console)
        add_image_findings(checked, config.data)
        # One split's files may lie in the other's folder.
        if request.sample is None and len(checked) == len(SPLITS):
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


def advise(request: Request, checked: Sequence[CheckedSplit], console: Console) -> None:
    """Write the clean indexes where they are wanted, and say what to do next."""
    obstacles = [reason for reason in map(obstacle, checked) if reason is not None]
    if request.clean_folder is not None and obstacles:
        say(console, f"no clean index was written: {obstacles[0]}", wrap=True)
    elif request.clean_folder is not None:
        write_clean(request, request.clean_folder, checked, console)
    elif not any(one.findings.stopping() for one in checked):
        say_next(console, "next:", request.command("train.py"))
    elif obstacles:
        reason = f"next: mend it; an index without it cannot be made: {obstacles[0]}"
        say(console, reason, wrap=True)
    else:
        command = request.command("-m data verify", "--write-clean", "clean")
        say_next(console, "next: mend it, or make an index without it to train on:", command)


def write_clean(
    request: Request, folder: Path, checked: Sequence[CheckedSplit], console: Console
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
    say_next(console, "next:", request.command("train.py", *fields))


def say_next(console: Console, why: str, command: str) -> None:
    """A command to type, on a line of its own."""
    say(console, why)
    say(console, f"  {command}")
