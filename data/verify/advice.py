"""What to do next, and the clean indexes where they are wanted."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from data.verify.clean import index_folder, obstacle, write_clean_index
from data.verify.report import say
from data.verify.request import Request
from data.verify.split_check import CheckedSplit


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
