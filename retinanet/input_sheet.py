"""A sheet of pictures of what the network sees in training: `retinanet data show`."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console

from common.console import make_console, print_line, progress
from common.errors import FINISHED, InputError, printable
from common.outputs import require_no_input
from common.wording import counted
from data.annotations import Split, as_setting, image_path, shown_size
from data.dataset import DetectionDataset, Sample, SampleKey, make_class_map
from data.decoding import decode_annotated, resolve_decoder
from data.index import open_annotations
from data.loader import training_keys
from data.rare_classes import Images
from data.synthetic import make_synthetic_data
from retinanet.config import Config
from retinanet.config_file import configured_split, load_config, training_rules
from retinanet.config_types import augmentation_names
from retinanet.evaluation.output import (
    LONGEST_NAME,
    Pixels,
    class_colour,
    draw_boxes,
    draw_truth,
    picture_grid,
    save_picture,
)
from retinanet.show_command import ShowOptions
from retinanet.training.data import require_no_files
from retinanet.training.run_folder import RunFolder

OWN_FILES = "coco.yaml"  # The configuration of --images; its classes are set to those of the file
MOST_PICTURES = 400  # A sheet with more pictures would take gigabytes
LONGEST_FILE = 28  # Characters of a file name in a caption

Picture = tuple[Pixels, str]
"""Pixels and a caption."""


def show(options: ShowOptions) -> int:
    """Draw the sheet, write it, and return the exit code.

    Raises:
        InputError: Options contradict each other, or a file is missing or wrong.
    """
    count, epochs, out = options.count, options.epochs, options.out
    if out.suffix.lower() != ".png":
        raise InputError(f"--out: {out}: expected the name of a .png file")
    if count * (epochs + 2) > MOST_PICTURES:
        limit = f"at most {MOST_PICTURES} pictures fit on a sheet"
        raise InputError(f"--count: {count} images in {epochs} epochs: {limit}; lower it")
    settings = chosen_config(options)
    seed = settings.run.seed if options.seed is None else options.seed
    console = make_console()
    with training_files(settings, seed=seed, console=console) as split:
        train, plain = open_datasets(settings, split, console=console)
        images = (image_path(train.image_folder, name) for name in train.annotations.file_names)
        require_no_input([out], images)
        rows = choose_images(len(train), count=count, seed=seed)
        with progress(console, "drawing images", total=len(rows)) as advance:
            pictures = []
            for number, index in enumerate(rows, start=1):
                pictures.append(
                    list(row_of_pictures(train, plain, index, epochs=epochs, seed=seed))
                )
                advance(number, "")
    title = describe(settings, seed=seed, images=len(train))
    save_picture(picture_grid(pictures, title=title), out)
    print_line(console, title)
    print_line(console, f"→ {out}")
    return FINISHED


def chosen_config(options: ShowOptions) -> Config:
    """Return the configuration of --config, or of --images and --annotations.

    Raises:
        InputError: Neither or both ways are given, or the configuration is wrong.
    """
    if (options.images is None) != (options.annotations is None):
        missing = "--images" if options.images is None else "--annotations"
        raise InputError(f"command line: {missing}: give --images and --annotations together")
    if (options.config is None) == (options.images is None):
        problem = "is missing" if options.config is None else "not allowed with --images"
        raise InputError(
            f"command line: --config: {problem}; give --config NAME, or --images DIR and "
            "--annotations FILE"
        )
    if options.config is not None:
        return load_config(options.config, options.overrides)
    own = [
        f"data.train_images={options.images}",
        f"data.train_annotations={options.annotations}",
        "data.class_indices=contiguous",
        "model.num_classes=null",
    ]
    return load_config(OWN_FILES, [*own, *options.overrides])


@contextmanager
def training_files(settings: Config, *, seed: int, console: Console) -> Iterator[Split]:
    """Yield the training split; synthetic data that no run has made yet is made for the while.

    Raises:
        InputError: Files are missing.
    """
    scenes = settings.data.scenes
    if scenes is None:
        yield configured_split(settings.data, "train", root=settings.data.root)
        return
    require_no_files(settings.data)
    with tempfile.TemporaryDirectory(prefix="data-show-") as scratch:
        root = RunFolder(settings.run.root / settings.run.name).scenes
        if seed != settings.run.seed or not root.is_dir():
            root = Path(scratch, "scenes")
            with progress(console, "generating images", total=scenes.train + 1) as advance:
                make_synthetic_data(
                    root, seed=seed, train=scenes.train, validation=1, advance=advance
                )
        yield configured_split(settings.data, "train", root=root)


def open_datasets(
    settings: Config, split: Split, *, console: Console
) -> tuple[DetectionDataset, DetectionDataset]:
    """Return the training split as training reads it, and as an evaluation would."""
    annotations, source = open_annotations(split.annotations, console=console), split.annotations
    # Both have the same images, under the same indices.
    rules = training_rules(settings, decoder=resolve_decoder(settings.data.decoder))
    rules = replace(rules, bad_image_limit=None)
    classes = make_class_map(annotations, rules, source=str(source))
    train, plain = (
        DetectionDataset(
            annotations, split.images, classes, rules, train=is_train, source=str(source)
        )
        for is_train in (True, False)
    )
    return train, plain


def choose_images(total: int, *, count: int, seed: int) -> list[int]:
    """Return up to `count` indices below `total`, the same for a seed, in ascending order."""
    random = np.random.default_rng([seed, 2])  # 0 and 1 are those of `training_keys`
    return sorted(random.choice(total, size=min(count, total), replace=False).tolist())


def row_of_pictures(
    train: DetectionDataset, plain: DetectionDataset, index: int, *, epochs: int, seed: int
) -> Iterator[Picture]:
    """Yield an image as it is annotated, as an evaluation sees it, and as each epoch does."""
    annotations, row = train.annotations, int(train.rows[index])
    file, size = annotations.file_names[row], annotations.image_size(row)
    pixels = decode_annotated(annotations, train.image_folder, row, decoder=train.rules.decoder)
    name = printable(Path(file).name)
    name = name if len(name) <= LONGEST_FILE else f"…{name[1 - LONGEST_FILE :]}"
    boxes = annotations.box_slice(row)
    caption = f"{name}\n{size[1]}×{size[0]}, {counted(boxes.stop - boxes.start, 'box', 'boxes')}"
    yield draw_truth(scaled_copy(pixels, size), annotations, row), caption
    sample = plain[SampleKey(index, 0)]
    height, width = sample.image.shape[1:]
    seen = shown_size((height, width))
    yield draw_sample(plain, sample), f"in evaluation\n{seen}, {boxes_of(sample)}"
    for epoch in range(epochs):
        sample = train[key_in_epoch(train.images, index, epoch=epoch, seed=seed)]
        yield draw_sample(train, sample), f"epoch {epoch + 1}\n{boxes_of(sample)}"


def key_in_epoch(images: Images, index: int, *, epoch: int, seed: int) -> SampleKey:
    """Return the key that a run with this seed has for an image in an epoch."""
    keys = chain.from_iterable(training_keys(images, seed=seed, epoch=epoch, batch_size=1))
    return next(key for key in keys if key.index == index)


def scaled_copy(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """Return pixels of the annotated (height, width), in which boxes are given."""
    if pixels.shape[:2] == size:
        return pixels
    # Shrunk without aliases, unlike what the network gets.
    return np.asarray(Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BICUBIC))


def draw_sample(dataset: DetectionDataset, sample: Sample) -> Pixels:
    """Return a sample's image with its boxes and the names of their classes."""
    classes, labels = dataset.class_map, sample.target["labels"].numpy()
    ids = classes.to_category_ids(labels).tolist()
    return draw_boxes(
        sample.image.permute(1, 2, 0).numpy(),
        sample.target["boxes"].double().numpy(),
        labels=[classes.names[label][:LONGEST_NAME] for label in labels.tolist()],
        colours=[*map(class_colour, ids)],
    )


def boxes_of(sample: Sample) -> str:
    """Return the number of a sample's boxes, as a caption has it."""
    return counted(len(sample.target["labels"]), "box", "boxes")


def describe(settings: Config, *, seed: int, images: int) -> str:
    """Return the settings that the sheet shows, as they are written on a command line."""
    data, names = settings.data, augmentation_names(settings.data.augmentation)
    value = names[0] if len(names) == 1 else f"[{', '.join(names)}]"
    return (
        f"data.image_size={as_setting(data.image_size)} data.resize={data.resize} "
        f"data.augmentation={value} run.seed={seed}, {images:,} training images"
    )
