"""Predictions as labels that a person corrects instead of drawing: `predict --labels FORMAT`."""

import os
import shlex
from pathlib import Path

import numpy as np
from rich.console import Console

from common.cli import installed_command
from common.console import print_line
from common.errors import InputError
from common.files import removed_on_failure, write_atomically
from data.annotations import UNNAMED, ClassMap
from data.decoding import AS_STORED, read_photo
from data.formats.coco import coco_labels
from data.formats.labels import Box, LabelPart, Writer
from data.formats.voc import voc_labels
from data.formats.yolo import yolo_labels
from retinanet.commands import PredictOptions
from retinanet.evaluation.command import read_trained
from retinanet.evaluation.matching import ImageDetections
from retinanet.predict.search import Sources

WRITERS: dict[str, Writer] = {"yolo": yolo_labels, "voc": voc_labels, "coco": coco_labels}


class Labels:
    """The labels of pictures in the format of `--labels`, collected and written at the end."""

    def __init__(self, options: PredictOptions, sources: Sources) -> None:
        """Find the `files` that will be written; raise InputError for what has no labels."""
        self.format, self.folder = str(options.labels), options.out or Path()
        if options.out is None:
            raise InputError("command line: --labels: needs --out DIR, the folder for the labels")
        if sources.videos:
            file = sources.videos[0].file
            raise InputError(f"{file}: --labels is for pictures; save frames of it as pictures")
        folders = {path if path.is_dir() else path.parent for path in options.pictures}
        shared = os.path.commonpath([path.absolute() for path in folders])
        self.images = folders.pop() if len(folders) == 1 else Path(shared)
        self.classes = ClassMap.from_json(read_trained(options.checkpoint).model.classes)
        # Outputs without a class, and classes of one name, are no classes of their own.
        names = dict.fromkeys(each for each in self.classes.names if each != UNNAMED)
        self.names = dict(enumerate(names, start=1))
        self.scores, part = list[float](), LabelPart()
        for source in sources.pictures:
            part.add(self.name_of(source.file), (1, 1), [])
        self.files, self.part = [file for file, _ in self.texts(part)], LabelPart()

    def name_of(self, file: Path) -> str:
        """Return a picture's name in the labels, relative to the folder that has all pictures."""
        return os.path.relpath(file, self.images)

    def texts(self, part: LabelPart) -> list[tuple[Path, str]]:
        """Return the files of some labels, and their texts."""
        annotations = part.finish().annotations(self.names, part.boxes["category"])
        files = WRITERS[self.format](annotations, self.scores)
        return [(self.folder / path, text) for path, text in files]

    def add(self, file: Path, size: tuple[int, int], found: ImageDetections) -> None:
        """Add the boxes of a picture of a size (width, height), in hundredths of pixels."""
        numbers, boxes = {name: number for number, name in self.names.items()}, []
        corners = np.clip(found.boxes, 0, np.tile(size, 2)).round(2).tolist()
        labels = self.classes.to_labels(found.category_ids).tolist()
        for label, (x1, y1, x2, y2), score in zip(labels, corners, found.scores, strict=True):
            if number := numbers.get(self.classes.names[label]):
                boxes.append(Box(number, (x1, y1, x2, y2), round((x2 - x1) * (y2 - y1), 2)))
                self.scores.append(round(float(score), 4))
        is_displayed = read_photo(file)[1] != AS_STORED
        self.part.add(self.name_of(file), size, boxes, is_displayed=is_displayed)

    def write(self, console: Console) -> None:
        """Write all labels, or after an error none, and print the command that reads them back."""
        with removed_on_failure(self.files):
            for file, text in self.texts(self.part):
                write_atomically(file, text)
        print_line(console, "next: correct them (docs/formats.md says how), and read them again:")
        command = [*installed_command("data"), "convert", str(self.folder), "--from", self.format]
        print_line(console, f"  {shlex.join([*command, '--images', str(self.images)])} --out …")
