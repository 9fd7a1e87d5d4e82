"""Predictions as labels that a person corrects instead of drawing: `predict --labels FORMAT`."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from common.cli import installed_command
from common.console import print_line
from common.errors import InputError
from common.files import removed_on_failure
from data.annotations import UNNAMED, ClassMap
from data.decoding import AS_STORED, read_photo
from data.formats.known import FORMATS
from data.formats.labels import Box, LabelPart, class_list
from retinanet.evaluation.matching import ImageDetections

DIGITS = 2
"""Decimals of a box's pixels, as in `predict --json`."""


class Labels:
    """The labels of pictures, which are collected and written at the end."""

    def __init__(
        self, name: str, folder: Path, *, pictures: Sequence[Path], classes: ClassMap
    ) -> None:
        """Write to `folder` in the format `name`; `pictures` are what the user named.

        Raises InputError for a class whose name no format holds.
        """
        self.folder = folder
        self._name, self._format = name, FORMATS[name]
        # Outputs without a class, and classes of one name, are no classes of their own.
        self._names = list(dict.fromkeys(each for each in classes.names if each != UNNAMED))
        class_list(self._names)
        numbers = {each: place for place, each in enumerate(self._names, start=1)}
        pairs = zip(classes.category_ids, classes.names, strict=True)
        self._numbers = {number: numbers[each] for number, each in pairs if each in numbers}
        folders = {path if path.is_dir() else path.parent for path in pictures}
        shared = os.path.commonpath([folder.absolute() for folder in folders])
        self._images = folders.pop() if len(folders) == 1 else Path(shared)
        self._part, self._scores = LabelPart(), list[float]()

    def name_of(self, file: Path) -> str:
        """Return a picture's name in the labels: relative to the folder that has all pictures."""
        return os.path.relpath(file, self._images)

    def outputs(self, pictures: Sequence[Path]) -> list[Path]:
        """Return the files that will be written; raise InputError if two pictures share labels."""
        names = [self.name_of(file) for file in pictures]
        files = self._format.outputs(self.folder, names)
        # COCO's format has one file, in which a picture has its name.
        places = files if len(files) > len(names) else map(Path, names)
        taken: dict[Path, Path] = {}
        for picture, place in zip(pictures, places, strict=False):
            if (other := taken.setdefault(place, picture)) is not picture:
                raise InputError(
                    f"{picture}: its labels, {place}, would be those of {other} too; rename one, "
                    "or give it only once"
                )
        return files

    def add(self, file: Path, size: tuple[int, int], detections: ImageDetections) -> None:
        """Add the boxes of a picture of a size (width, height)."""
        corners = np.clip(detections.boxes, 0, np.tile(size, 2)).round(DIGITS)
        sides = corners[:, 2:] - corners[:, :2]
        boxes = []
        rows = zip(detections.category_ids.tolist(), corners.tolist(), sides.tolist(), strict=True)
        for place, (number, (x1, y1, x2, y2), (width, height)) in enumerate(rows):
            if number in self._numbers:
                area = round(width * height, DIGITS)
                boxes.append(Box(self._numbers[number], (x1, y1, x2, y2), area))
                self._scores.append(round(float(detections.scores[place]), 4))
        is_displayed = read_photo(file)[1] != AS_STORED
        self._part.add(self.name_of(file), size, boxes, is_displayed=is_displayed)

    def write(self, console: Console) -> None:
        """Write all labels, or after an error none, and print the command that reads them back."""
        part = self._part.finish()
        names = dict(enumerate(self._names, start=1))
        annotations = part.annotations(names, part.boxes["category"])
        if not len(annotations):
            return
        with removed_on_failure(self._format.outputs(self.folder, annotations.file_names)):
            self._format.write(self.folder, annotations, self._scores, console)
        print_line(console, "next: correct them (docs/formats.md says how), and read them again:")
        command = [*installed_command("data"), "convert", str(self.folder), "--from", self._name]
        print_line(console, f"  {shlex.join([*command, '--images', str(self._images)])} --out …")
