"""Samples: an image resized to the model's input with its targets, and a data set's two splits."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor
from torch.utils.data import Dataset

from common.errors import MOST_CLASSES, InputError, require_few_classes
from data.annotations import (
    Annotations,
    ClassMap,
    Split,
    TrainingRules,
    image_path,
    images_in_other,
    input_size,
    shown,
)
from data.augmentation import Augmentation, view_boxes, whole_view
from data.decoding import decode_annotated, is_resized_copy
from data.index import open_annotations
from data.packed import missing_fix, open_image_file, pack_of
from data.rare_classes import (
    ClassWeights,
    Images,
    Objects,
    class_weights,
    describe_repeats,
    describe_weights,
    repeat_factors,
    trained_objects,
)
from data.transforms import pad_image, resize_image

REPLACEMENTS_TRIED = 10
"""If so many images in a row cannot be read, the folder of images itself must be wrong."""


class SampleKey(NamedTuple):
    """The key of a sample: the image's index, and the seed of its augmentation."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which no one calls on a key
    seed: int


class Sample(NamedTuple):
    """One image with its targets."""

    image: Tensor  # uint8 [3, H, W], channels last in memory
    target: dict[str, Tensor]
    """boxes: float32 [B, 4] xyxy in pixels of the network's input; labels: int64 [B]"""
    image_id: int  # the JSON's id
    original_size: tuple[int, int]
    """(height, width) in pixels: the JSON's, which original-size boxes refer to"""
    bad_images: tuple[str, ...] = ()  # unreadable images that this sample replaces, a line each


class Batch(NamedTuple):
    """N samples; the lists are in the order of the images. Fields are as in `Sample`."""

    images: Tensor  # uint8 [N, 3, H, W] channels_last
    targets: list[dict[str, Tensor]]
    image_ids: list[int]
    original_sizes: list[tuple[int, int]]
    bad_images: tuple[str, ...] = ()
    turned: "Batch | None" = None
    """The images of the other orientation, where the input is a rectangle and the batch has both"""

    def parts(self) -> "list[Batch]":
        """Return the images of each orientation: one or two batches."""
        return [self] if self.turned is None else [self._replace(turned=None), self.turned]

    @property
    def total(self) -> int:
        """The number of images of both orientations."""
        return sum(len(part.image_ids) for part in self.parts())


class DetectionDataset(Dataset[Sample]):
    """A split's images as samples. The sample of a key depends on the key alone.

    Targets leave out crowd and group boxes: they mark no single object (the MLPerf reference
    trains on them). Images that are left without boxes stay as background, or are skipped with
    `rules.skip_images_without_boxes`; keys count among the remaining images, `rows`.

    An image that is missing, damaged or of another shape than annotated is an InputError on
    reading. With `rules.bad_image_limit` another image replaces it in training, chosen by the key's
    seed, and a black one in evaluation, where nothing is found; the sample's `bad_images` names it.

    `rules.augmentation` is for training. With `skip_images_without_boxes`, none of its changes
    removes all boxes of an image; without, an image whose boxes are all out of sight is background.

    Raises InputError, which names `source` where it is about the annotations, if a category has no
    class, the first image is not in the folder, or all images are skipped.
    """

    def __init__(
        self,
        annotations: Annotations,
        image_folder: Path,
        class_map: ClassMap,
        rules: TrainingRules,
        *,
        train: bool,
        source: str = "annotations",
    ) -> None:
        try:
            # Called for its check: an unknown category is an error now, not in a later step.
            class_map.to_labels(annotations.category_ids)
        except InputError as error:
            raise InputError(f"{source}: {error}") from error
        pack_of(image_folder.absolute())  # raises: a damaged index is no fault of each image
        if rules.bad_image_limit is None:
            # One file is enough to notice a wrong folder; `retinanet data verify` checks all.
            first = image_path(image_folder, annotations.file_names[0])
            try:
                open_image_file(first).close()
            except FileNotFoundError as error:
                raise InputError(f"{first}: no such image file; {missing_fix(first)}") from error
            except OSError as error:  # such as a name of more than 255 bytes
                advice = "check the folder of images and file_name"
                raise InputError(f"{first}: {error.strerror}; {advice}") from error
        self.rows = (
            annotations.images_with_objects()
            if rules.skip_images_without_boxes
            else np.arange(len(annotations), dtype=np.int32)
        )
        if not len(self.rows):
            raise InputError(
                f"{source}: no image has a box of a single object, so there is nothing to train "
                "on; add boxes, or set data.images_without_boxes=train"
            )
        self.images: Images = len(self.rows)
        """Those of an epoch in training: their number, or how often each is in it."""
        self.annotations = annotations
        self.image_folder = image_folder
        self.class_map = class_map
        self.rules = rules
        self.train = train
        self.augmentation = Augmentation(rules.augmentation if train else ())
        if train and rules.repeat_rare is not None:
            self.images = repeat_factors(
                self.objects(), num_images=len(self), threshold=rules.repeat_rare
            )

    def __len__(self) -> int:
        return len(self.rows)

    def objects(self) -> Objects:
        """Return the image and the label of each box that is trained on."""
        return trained_objects(self.annotations, self.rows, self.class_map)

    def class_weights(self, setting: ClassWeights | None) -> Tensor | None:
        """Return the classes' weights in the loss, float64 [K]; None for None: all 1.

        Raises:
            InputError: The setting names a class that is not there.
        """
        if setting is None:
            return None
        names = self.class_map.names
        return torch.from_numpy(class_weights(setting, self.objects(), self.images, names))

    def describe_rare(self, weights: Tensor | None) -> dict[str, str]:
        """Return rows about the weights of classes and the repeated images, if there are any."""
        rows = {}
        if weights is not None:
            rows["class weights"] = describe_weights(weights.numpy(), self.class_map.names)
        if self.train and self.rules.repeat_rare is not None:
            rows["repeats"] = describe_repeats(self.images, self.rules.repeat_rare)
        return rows

    def count_images_in(self, other: "DetectionDataset") -> int:
        """Return how many of the images are images of another split too, by their files."""
        splits = [
            ([split.annotations.file_names[row] for row in split.rows.tolist()], split.image_folder)
            for split in (self, other)
        ]
        (names, folder), (other_names, other_folder) = splits
        rows = images_in_other(names, folder, other_names=other_names, other_folder=other_folder)
        return len(rows)

    def __getitem__(self, key: SampleKey) -> Sample:
        try:
            return self.read(key)
        except InputError as error:
            if self.rules.bad_image_limit is None:
                raise
            return self._replacement(key, str(error))

    def read(self, key: SampleKey) -> Sample:
        """Return a key's sample, in training augmented, or raise InputError."""
        row, rules = int(self.rows[key.index]), self.rules
        original_size = self.annotations.image_size(row)
        pixels = read_pixels(self.annotations, self.image_folder, row, decoder=rules.decoder)
        height, width = pixels.shape[:2]
        boxes, labels = self._objects(row)
        size = input_size((height, width), rules.image_size)
        view = self.augmentation.draw_view(
            boxes,
            seed=key.seed,
            original_size=original_size,
            image_size=(height, width),
            size=size,
            resize=rules.resize,
            keeps_an_object=rules.skip_images_without_boxes,
        )
        left, top, right, bottom = view.source
        image = resize_image(pixels[top:bottom, left:right], view.size)
        boxes, keep = view_boxes(
            boxes, view, original_size=original_size, image_size=(height, width)
        )
        boxes = boxes[keep].to(torch.float32)
        image, boxes = self.augmentation.mirror(image, boxes, seed=key.seed)
        image = self.augmentation.change_colours(image, seed=key.seed)
        left, top = view.target[:2]
        target = {"boxes": boxes + boxes.new_tensor((left, top) * 2), "labels": labels[keep]}
        image = pad_image(image, size=size, top=top, left=left)
        return Sample(image, target, int(self.annotations.image_ids[row]), original_size)

    def _replacement(self, key: SampleKey, problem: str) -> Sample:
        """Return another sample in training, a black one in evaluation, with the problems."""
        if not self.train:
            row = int(self.rows[key.index])
            original_size = self.annotations.image_size(row)
            size = input_size(original_size, self.rules.image_size)
            view = whole_view(original_size, size=size, resize=self.rules.resize)
            # The image keeps its boxes: they count as not found, so the mAP is not too high.
            boxes, labels = self._objects(row)
            boxes, keep = view_boxes(
                boxes, view, original_size=original_size, image_size=original_size
            )
            target = {"boxes": boxes[keep].to(torch.float32), "labels": labels[keep]}
            black = torch.zeros(*size, 3, dtype=torch.uint8)
            image_id = int(self.annotations.image_ids[row])
            return Sample(black.permute(2, 0, 1), target, image_id, original_size, (problem,))
        problems = [problem]
        # The 1 makes another stream than that of the flip, which has the seed alone.
        others = np.random.default_rng([key.seed, 1]).integers(len(self), size=REPLACEMENTS_TRIED)
        for index in others.tolist():
            try:
                return self.read(key._replace(index=index))._replace(bad_images=tuple(problems))
            except InputError as error:
                problems.append(str(error))
        raise InputError(
            f"{problems[-1]}; {REPLACEMENTS_TRIED} images before it could not be read either; "
            "check the folder of images, or run `retinanet data verify`"
        )

    def _objects(self, row: int) -> tuple[Tensor, Tensor]:
        """Return boxes in annotated pixels, float64, and labels, of single objects."""
        rows = self.annotations.box_slice(row)
        single = ~self.annotations.box_is_crowd[rows]
        # In float64 until clipped, as `data.verify` computes them: both leave out the same boxes.
        boxes = torch.from_numpy(self.annotations.boxes[rows][single]).to(torch.float64)
        labels = self.class_map.to_labels(self.annotations.box_category_ids[rows][single])
        return boxes, torch.from_numpy(labels)


def read_pixels(
    annotations: Annotations, folder: Path, row: int, *, decoder: str
) -> NDArray[np.uint8]:
    """Return the pixels [H, W, 3] of an image whose boxes fit it, perhaps scaled.

    Raises:
        InputError: It cannot be read, or has another shape than annotated.
    """
    pixels = decode_annotated(annotations, folder, row, decoder=decoder)
    (height, width), annotated = pixels.shape[:2], annotations.image_size(row)
    if not is_resized_copy((height, width), annotated):
        path = image_path(folder, annotations.file_names[row])
        raise InputError(
            f"{path}: the image is {width}×{height} pixels, annotated as {annotated[1]}×"
            f"{annotated[0]}; fix the annotations or the image"
        )
    return pixels


def stack_images(images: Sequence[Tensor]) -> Tensor:
    """Return images uint8 [3, H, W] of one size as [N, 3, H, W], channels_last."""
    # torch.stack would return a contiguous [N, C, H, W], whatever the layout of the images.
    shape = (len(images), *images[0].shape)
    stacked = torch.empty(shape, dtype=torch.uint8, memory_format=torch.channels_last)
    for place, image in zip(stacked, images, strict=True):
        place.copy_(image)
    return stacked


def collate(samples: list[Sample]) -> Batch:
    """Join samples into a batch, the images channels_last, those of each orientation together."""
    shape = samples[0].image.shape
    if others := [sample for sample in samples if sample.image.shape != shape]:
        of_shape = [sample for sample in samples if sample.image.shape == shape]
        return collate(of_shape)._replace(turned=collate(others))
    return Batch(
        stack_images([sample.image for sample in samples]),
        [sample.target for sample in samples],
        [sample.image_id for sample in samples],
        [sample.original_size for sample in samples],
        tuple(problem for sample in samples for problem in sample.bad_images),
    )


class DetectionData(NamedTuple):
    """The splits of a run, and its classes."""

    train: DetectionDataset
    validation: DetectionDataset
    classes: ClassMap


def open_data(
    train: Split, validation: Split, rules: TrainingRules, *, console: Console | None = None
) -> DetectionData:
    """Open both splits' annotations; the training split's categories determine the classes.

    The console shows the progress of making an index.

    Raises:
        InputError: Annotations are not COCO's, or the categories differ or do not fit.
    """
    files = (train.annotations, validation.annotations)
    content = [open_annotations(file, console=console) for file in files]
    names = list(map(str, files))
    classes = make_class_map(content[0], rules, source=names[0])
    categories = content[1].category_ids, content[1].category_names
    classes.check_categories(*categories, file=validation.annotations)
    of_validation = replace(rules, skip_images_without_boxes=False)
    return DetectionData(
        DetectionDataset(content[0], train.images, classes, rules, train=True, source=names[0]),
        DetectionDataset(
            content[1], validation.images, classes, of_validation, train=False, source=names[1]
        ),
        classes,
    )


def make_class_map(annotations: Annotations, rules: TrainingRules, *, source: str) -> ClassMap:
    """Return the model's classes; raise InputError if the categories do not fit `num_classes`."""
    ids, names = annotations.category_ids, annotations.category_names
    num_classes = rules.num_classes
    require_few_classes(f"{source}: categories", len(ids))
    for index, name in enumerate(names):
        if re.search("[\ud800-\udfff]", name):  # half of a pair, which JSON cannot hold
            raise InputError(
                f"{source}: categories[{index}].name: {shown(name)} is not valid Unicode; rename it"
            )
    if rules.class_indices == "category_id":
        outputs = int(ids.max()) + 1 if num_classes is None else num_classes
        if outputs > MOST_CLASSES:
            raise InputError(
                f"{source}: categories: id {ids.max()} needs {outputs:,} classes, the limit is "
                f"{MOST_CLASSES:,}; set data.class_indices=contiguous"
            )
        return ClassMap.by_category_id(ids, names, outputs, source=source)
    if num_classes not in (None, len(ids)):
        raise InputError(
            f"{source}: has {len(ids)} categories, model.num_classes is {num_classes}; "
            "leave it out, or set data.class_indices=category_id"
        )
    return ClassMap.contiguous(ids, names)
