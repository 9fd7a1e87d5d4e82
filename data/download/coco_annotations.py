"""COCO's zip of annotations: a split's JSON out of it, whole or for chosen images."""

import json
import shutil
import zipfile
from collections import defaultdict
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from data.download.receiving import PART_SUFFIX
from data.json_stream import stream_lists
from retinanet.errors import InputError

LARGEST_JSON = 2_000_000_000
"""Inflated, COCO's instances_train2017.json has 470 MB. [B]"""
LISTS = ("images", "annotations", "categories")


class Chosen(NamedTuple):
    """What of a split is wanted."""

    image_ids: frozenset[int]
    category_ids: frozenset[int]
    file_names: tuple[str, ...]
    """Sorted"""


def write_annotations(
    archive: Path, path: Path, *, classes: tuple[str, ...] | None, limit: int | None
) -> tuple[str, ...]:
    """Write a split's JSON: as it is in the zip, or the part of it that is asked for.

    A part has the chosen images, their boxes of the classes, and these as categories.

    Args:
        archive: The zip; the JSON in it is `annotations/` and the name of `path`.
        path: Where it goes; written only if it is not this already.
        classes: Names of categories: images with a box of one of them; None for all images.
        limit: The first so many images by file name; None for all.

    Returns:
        The images' file names, sorted.

    Raises:
        InputError: A class is none of COCO's or no image has one, or the JSON is not COCO's.
    """
    whole = path.with_name(f"{path.name}.whole{PART_SUFFIX}")
    part = path.with_name(f"{path.name}{PART_SUFFIX}")
    try:
        is_whole = _extract(archive, path, whole)
        source = path if is_whole else whole
        chosen = choose(source, classes=classes, limit=limit)
        if classes is not None or limit is not None:
            _write_chosen(source, chosen, part)
            part.replace(path)
        elif not is_whole:
            whole.replace(path)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{archive}: {path.name}: not COCO's annotations: {error!r}; remove it, download again"
        ) from error
    finally:
        whole.unlink(missing_ok=True)
        part.unlink(missing_ok=True)
    return chosen.file_names


def _extract(archive: Path, path: Path, whole: Path) -> bool:
    """Write the JSON as it is in the zip to `whole`, unless `path` is that, which is returned."""
    with zipfile.ZipFile(archive) as members:
        member = members.getinfo(f"annotations/{path.name}")
        if member.file_size > LARGEST_JSON:
            raise InputError(
                f"{archive}: {member.filename} has {member.file_size:,} bytes inflated, more than "
                f"the {LARGEST_JSON:,} expected; remove it, download again"
            )
        if path.is_file() and path.stat().st_size == member.file_size:
            return True
        with members.open(member) as source, whole.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    return False


def choose(path: Path, *, classes: Collection[str] | None, limit: int | None) -> Chosen:
    """Which images and categories of a JSON are wanted; arguments as for `write_annotations`."""
    id_of_name: dict[str, int] = {}
    image_ids_of: dict[int, set[int]] = defaultdict(set)
    images: list[tuple[str, int]] = []
    for name, entries in stream_lists(path, LISTS, advance=lambda done: None):
        if name == "categories":
            id_of_name |= {entry["name"]: entry["id"] for entry in entries}
        elif name == "images":
            images += [(_plain(entry["file_name"], path), entry["id"]) for entry in entries]
        elif classes is not None:
            for entry in entries:
                image_ids_of[entry["category_id"]].add(entry["image_id"])
    if classes is None:
        category_ids = frozenset(id_of_name.values())
    else:
        category_ids = frozenset(_id_of(name, id_of_name) for name in classes)
        wanted = set().union(*(image_ids_of[category_id] for category_id in category_ids))
        images = [(name, image_id) for name, image_id in images if image_id in wanted]
    if not images:
        raise InputError(f"--classes: no image of {path.name} has a box of these classes")
    first = sorted(images)[:limit]
    return Chosen(
        image_ids=frozenset(image_id for _, image_id in first),
        category_ids=category_ids,
        file_names=tuple(name for name, _ in first),
    )


def _write_chosen(source: Path, chosen: Chosen, path: Path) -> None:
    """Copy what is chosen, entry by entry, in the file's order."""
    keep = {
        "images": lambda entry: entry["id"] in chosen.image_ids,
        "annotations": lambda entry: (
            entry["image_id"] in chosen.image_ids and entry["category_id"] in chosen.category_ids
        ),
        "categories": lambda entry: entry["id"] in chosen.category_ids,
    }
    lines: dict[str, int] = {}
    with path.open("w", encoding="utf-8") as file:
        file.write('{"info": {"description": "a part of COCO 2017"}')
        for name, entries in stream_lists(source, LISTS, advance=lambda done: None):
            if name not in lines:
                file.write(f',\n"{name}": [' if not lines else f'\n],\n"{name}": [')
                lines[name] = 0
            for entry in filter(keep[name], entries):
                file.write(",\n" if lines[name] else "\n")
                json.dump(entry, file)
                lines[name] += 1
        file.write("\n]}\n")


def _id_of(name: str, id_of_name: dict[str, Any]) -> int:
    if name not in id_of_name:
        near = get_close_matches(name.lower(), id_of_name, n=1)
        hint = f"did you mean {near[0]}?" if near else f"they are {', '.join(id_of_name)}"
        raise InputError(f"--classes: {name!r} is no class of COCO; {hint}")
    return int(id_of_name[name])


def _plain(name: str, path: Path) -> str:
    """The name, if it is one inside a folder of images."""
    is_plain = name == Path(name).name and not name.startswith(".") and name.isprintable()
    if not name or not is_plain or name.endswith(PART_SUFFIX):
        raise InputError(f"{path}: file_name {name!r} is no plain name of an image file")
    return name
