"""Convert other programs' data sets into what training reads, and report what is wrong with them.

The labels of each split become a file in COCO's format, with the index that training opens. The
images stay where they are, unless they are to be copied. The findings are those of
`retinanet data verify`, without decoding the images.
"""

import json
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from common.cli import installed_command
from common.console import Advance, ignore_progress, print_line, progress
from common.errors import FINISHED, InputError
from common.files import (
    copy_atomically,
    removed_on_failure,
    require_free_outputs,
    write_atomically,
    write_parts,
)
from common.outputs import require_no_input
from common.walk import identity
from data.annotations import SPLITS, Annotations, Split, TrainingRules, require_pixels
from data.coco_json import DISPLAYED
from data.decoding import image_fault
from data.formats.labels import (
    CheckNames,
    LabelledSplit,
    merge_classes,
    select_classes,
)
from data.index import find_or_make_index
from data.json_lists import entries_of, list_parts, slices
from data.packed import open_image_file
from data.verify.report import STOPS_TRAINING, print_shared, print_split
from data.verify.splits import check_splits

DEFAULT_RULES = TrainingRules(image_size=800, skip_images_without_boxes=True)
"""Those of a run with the default settings; no image is decoded."""


def convert_labels(
    source: Path,
    read: Callable[[CheckNames], list[LabelledSplit]],
    *,
    out: Path,
    classes: Sequence[str],
    merge: Sequence[str],
    copy_images: bool,
    overwrite: bool,
    console: Console,
) -> int:
    """Convert a data set, print the findings and the next command, and return the exit code.

    `read` reads the data set, and calls its argument first.

    Raises:
        InputError: A file of the data set is faulty or missing, or an output exists.
    """

    def require_free(names: Collection[str], read: Collection[Path]) -> None:
        """Refuse outputs of these splits that exist, before their labels are read."""
        files = [json_of(out, name) for name in names]
        require_no_input(files, read)
        require_free_outputs(files, overwrite=overwrite)
        for folder in (images_of(out, name) for name in names):
            if copy_images and folder.exists() and not overwrite:
                raise InputError(f"{folder}: exists; give --overwrite or another --out")

    splits = read(require_free)
    for split in splits:
        require_pixels(split.annotations.boxes, source=f"{source}: split {split.name}")
    splits = merge_classes(splits, merge)
    if classes:
        splits = select_classes(splits, classes)
    written = write_splits(splits, out, copy_images=copy_images, console=console)
    notes = {split.name: split.notes for split in splits}
    del splits  # the checks read the indexes, which are mapped files
    checked = check_splits(written, DEFAULT_RULES, sample=0, console=console)
    for result in checked:
        print_split(console, result)
        for note in notes[result.name]:
            print_line(console, f"note: {note}")
    console.print()
    print_shared(console, checked)
    print_next(console, written, out=out)
    return STOPS_TRAINING if any(result.findings.stopping() for result in checked) else FINISHED


def json_of(out: Path, name: str) -> Path:
    """Return the annotations of a split."""
    return out / f"{name}.json"


def images_of(out: Path, name: str) -> Path:
    """Return the folder of a split's copied images."""
    return out / "images" / name


def write_splits(
    splits: Sequence[LabelledSplit], out: Path, *, copy_images: bool, console: Console
) -> dict[str, Split]:
    """Write all splits with their indexes, and copy the images if asked; return their paths.

    If it is interrupted, or the disk is full, nothing of it remains.
    """
    outputs = [
        path
        for split in splits
        for file in [json_of(out, split.name)]
        for path in (file, file.with_name(f"{file.name}.index"), images_of(out, split.name))
    ]
    if copy_images:
        require_other_images(splits, out)
    written = {}
    with removed_on_failure(outputs):
        for split in splits:
            file, images, annotations = json_of(out, split.name), split.images, split.annotations
            if copy_images:
                images = images_of(out, split.name)
                annotations = copy_files(split, images, console=console)
            write_annotations(file, annotations, console=console)
            find_or_make_index(file, console=console)
            written[split.name] = Split(file, images)
    return written


def require_other_images(splits: Sequence[LabelledSplit], out: Path) -> None:
    """Raise InputError if a copy would replace another image of the data set."""
    copies = {
        split.images / name: images_of(out, split.name) / name
        for split in splits
        if images_of(out, split.name).exists()
        for name in split.annotations.file_names
    }
    # A file that is its own copy stays as it is.
    others = [copy for source, copy in copies.items() if identity(source) != identity(copy)]
    if others:
        images = (split.images / name for split in splits for name in split.annotations.file_names)
        require_no_input(others, images)


def copy_files(split: LabelledSplit, folder: Path, *, console: Console) -> Annotations:
    """Copy a split's images to a folder, and return the annotations of the copied ones.

    Only images are copied, since the folder may be published: a file that is none, whatever its
    name, is left out with a note.
    """
    names = split.annotations.file_names
    is_image = np.ones(len(names), dtype=np.bool_)
    first = ""
    with progress(console, f"copying {split.name} images", total=len(names)) as advance:
        for row, name in enumerate(names):
            source, target = split.images / name, folder / name
            fault = image_fault(source)
            if fault is not None:
                is_image[row] = False
                first = first or f"{source}: {fault}"
            elif not (target.exists() and target.samefile(source)):
                copy_atomically(source, target, open_source=open_image_file)
            advance(row + 1, "")
    number = int((~is_image).sum())
    if not number:
        return split.annotations
    if number == len(names):
        raise InputError(f"{first}; no image can be copied")
    split.notes.append(f"files that are not images (left out): {number:,}, first {first}")
    return split.annotations.select(images=is_image)


def write_annotations(file: Path, annotations: Annotations, *, console: Console) -> None:
    """Write COCO-format JSON, some thousand entries at a time."""
    with progress(console, f"writing {file.name}", total=len(annotations.boxes)) as advance:
        write_parts(file, json_parts(annotations, advance))


def json_parts(
    annotations: Annotations, advance: Advance = ignore_progress, *, scores: Sequence[float] = ()
) -> Iterator[bytes]:
    """Return COCO-format JSON in parts; with a score of each box, for labelling programs."""
    ids, names = annotations.category_ids.tolist(), annotations.category_names
    head = {
        "categories": [{"id": each, "name": name} for each, name in zip(ids, names, strict=True)]
    }
    boxes = box_entries(annotations, scores, advance)
    return list_parts(head, (("images", image_entries(annotations)), ("annotations", boxes)))


Entries = Iterator[list[dict[str, Any]]]


def image_entries(annotations: Annotations) -> Entries:
    """Yield blocks of the list of images."""
    for rows in slices(len(annotations)):
        entries = entries_of(
            id=annotations.image_ids[rows].tolist(),
            file_name=annotations.file_names[rows],
            width=annotations.widths[rows].tolist(),
            height=annotations.heights[rows].tolist(),
        )
        for row in np.flatnonzero(annotations.is_displayed[rows]).tolist():
            entries[row][DISPLAYED] = True
        yield entries


def box_entries(annotations: Annotations, scores: Sequence[float], advance: Advance) -> Entries:
    """Yield blocks of the list of boxes."""
    images = np.repeat(annotations.image_ids, np.diff(annotations.box_offsets))
    for rows in slices(len(annotations.boxes)):
        boxes = annotations.boxes[rows]
        entries = entries_of(
            id=annotations.box_ids[rows].tolist(),
            image_id=images[rows].tolist(),
            category_id=annotations.box_category_ids[rows].tolist(),
            bbox=np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1).tolist(),
            area=annotations.box_areas[rows].tolist(),
            iscrowd=annotations.box_is_crowd[rows].astype(int).tolist(),
        )
        for entry, score in zip(entries, scores[rows], strict=False):
            # Without `segmentation` CVAT refuses a box.
            entry |= {"segmentation": [], "score": score}
            entry["bbox"] = [round(number, 2) for number in entry["bbox"]]
        yield entries
        advance(rows.start + len(boxes), "")


CONFIGURATION = """\
# The settings that this data set needs; docs/tutorial.md has the others, with advice.
#
#   retinanet train --config {file}

data:
{paths}
  class_indices: contiguous

model:
  num_classes: null            # as many as the data set has
  # weights: runs/demo         # a detector to start from: a run, or a converted detector
"""


def write_configuration(file: Path, written: Mapping[str, Split]) -> None:
    """Write the configuration of a run on both splits, which works in any folder."""
    text = CONFIGURATION.format(file=shlex.quote(str(file)), paths=format_paths(written))
    write_atomically(file, text)


def format_paths(written: Mapping[str, Split]) -> str:
    """Return the lines of the section `data` that name the files of both splits."""
    return "\n".join(
        f"  {name}_{field}: {json.dumps(str(path.absolute()))}"
        for name in SPLITS
        for field, path in written[name]._asdict().items()
    )


def print_next(console: Console, written: Mapping[str, Split], *, out: Path) -> None:
    """Print the command that follows: the check of all images, or the split into two files.

    The check has the configuration of a divided set, which is written unless there is one, as a
    user may have changed it.
    """
    if set(SPLITS) <= set(written):
        file = out / "my-photos.yaml"
        if file.is_symlink() or file.exists():
            print_line(console, f"note: {file} exists and stays as it is")
        else:
            write_configuration(file, written)
        print_line(console, f"next: check every image, with the configuration {file}:")
        command = [*installed_command("data"), "verify", "--config", str(file)]
    else:
        name, split = next(iter(written.items()))
        print_line(console, f"next: divide it into two files; the images are in {split.images}:")
        folder = out if name not in SPLITS else out / "split"
        command = [*installed_command("data"), "split", str(split.annotations)]
        command += ["--out", str(folder)]
    print_line(console, f"  {shlex.join(command)}")
