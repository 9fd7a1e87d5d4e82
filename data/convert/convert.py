"""JSON on its way to an index, and what is said of the result."""

import resource
import shutil
import time
from pathlib import Path

from rich.console import Console

from data.annotations import Annotations
from data.coco_json import read_annotations
from data.index import is_index, open_index, write_index
from data.index_cache import find_or_make_index, stamp_of
from data.sources import SPLITS, known_trees
from retinanet.errors import InputError
from retinanet.progress import MEGABYTE, clock, progress_in_bytes


def convert_json(path: Path, *, out: Path | None, overwrite: bool, console: Console) -> int:
    """Make the index of a COCO-format JSON, beside it or at `out`; returns the exit code.

    Raises:
        InputError: The file is not COCO's, or `out` is there already.
    """
    began = time.monotonic()
    if out is None:
        found = find_or_make_index(path, console=console)
        if found.folder is None:
            raise InputError(f"{path.parent}: cannot be written; name a folder with --out")
        how = f"made in {clock(time.monotonic() - began)}" if found.was_made else "up to date"
        describe(found.annotations, path, found.folder, how=how, console=console)
        return 0
    if out.exists() and not (overwrite and is_index(out)):
        advice = "add --overwrite, or name another" if is_index(out) else "name another folder"
        raise InputError(f"{out}: is there already; {advice}")
    size = stamp_of(path).size
    with progress_in_bytes(console, f"reading {path.name}", total=size) as advance:
        annotations = read_annotations(path, advance=lambda done: advance(done, ""))
    try:
        if out.exists():
            shutil.rmtree(out)
        write_index(out, annotations, made_from=str(path.resolve()))
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror}") from error
    how = f"made in {clock(time.monotonic() - began)}"
    describe(open_index(out), path, out, how=how, console=console)
    return 0


def convert_folder(root: Path, *, console: Console) -> int:
    """Make the indexes of a data set's splits, those that are there; returns the exit code.

    Raises:
        InputError: There is no JSON where COCO's and MLPerf's trees have theirs.
    """
    trees = [known_trees(root, split).values() for split in SPLITS]
    files = [tree.annotations for of_split in trees for tree in of_split]
    there = [file for file in files if file.is_file()]
    if not there:
        raise InputError(
            f"{root}: holds no annotations; looked for {', '.join(map(str, files))}; "
            "give a JSON file itself"
        )
    for file in there:
        convert_json(file, out=None, overwrite=False, console=console)
    return 0


def describe(
    annotations: Annotations, source: Path, folder: Path, *, how: str, console: Console
) -> None:
    """Two lines: what is in the index, and what it took."""
    size = sum(file.stat().st_size for file in folder.iterdir()) / MEGABYTE
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    crowds = int(annotations.box_is_crowd.sum())
    console.print(
        f"{source}: {len(annotations):,} images, {len(annotations.boxes):,} boxes "
        f"({crowds:,} of crowds or groups), {len(annotations.category_ids)} categories",
        soft_wrap=True,
    )
    console.print(
        f"  index  {folder}, {size:,.1f} MB, {how}, {memory:,.0f} MB of memory at the most",
        soft_wrap=True,
    )
