"""Whether a run's data can be read: annotations, classes, and a sample of images of each split.

TODO-DOC What can be told of a run's data at once: how many images and classes there are.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.errors import InputError
from data.annotations import Annotations, ClassMap
from data.coco_json import read_annotations
from data.dataset import DetectionDataset, SampleKey, class_map_of
from data.decoding import resolve_decoder
from data.index import current_index, index_homes, index_of_folder, stamp_of
from data.sampler import steps_per_epoch
from data.sources import SPLITS, Split, SplitName
from data.synthetic import KINDS
from retinanet.config import Config, DataConfig
from retinanet.config_file import configured_split
from retinanet.preflight.findings import Finding, failure, ok, warning
from retinanet.training.data import require_no_files

SUBJECT = "data"
SAMPLED = 24
"""Images of each split: the first, the last, and others at random."""
SECONDS = 2.0
"""After which no further image of a split is decoded."""
LOOKED_AT_ALL = "`python -m data verify` looks at all"


def check_data(config: Config, *, ranks: int) -> list[Finding]:
    """Look at both splits, without making an index.

    Args:
        config: Its sections `data` and `training`, and `model.num_classes`.
        ranks: Of the whole job.
    """
    settings = config.data
    try:
        decoder = resolve_decoder(settings.decoder)
        if settings.scenes is not None:
            require_no_files(settings)
            scenes = settings.scenes
            found = f"{scenes.train} scenes to train on and {scenes.validation} others"
            drawn = ok(SUBJECT, f"{found} are drawn by the run, no files are needed")
            steps = check_steps(config, scenes.train, ranks=ranks)  # at most: a few have no box
            return [drawn, steps] if steps.level == "failure" else [drawn]
        splits = {split: configured_split(settings, split, root=settings.root) for split in SPLITS}
        opened = {name: indexed_or_small(split.annotations) for name, split in splits.items()}
        findings = [not_indexed(splits[name]) for name in SPLITS if opened[name] is None]
        train, validation = opened["train"], opened["validation"]
        if train is None:
            return findings
        classes = classes_of(config, train, splits["train"].annotations)
        if validation is not None:
            categories = validation.category_ids, validation.category_names
            classes.check_categories(*categories, file=splits["validation"].annotations)
    except InputError as error:
        return [failed(error)]
    for name in SPLITS:
        annotations = opened[name]
        if annotations is not None:
            findings += check_split(
                name, annotations, splits[name], classes, settings, decoder=decoder
            )
    return [*findings, check_steps(config, trained_images(config, train), ranks=ranks)]


def classes_of(config: Config, train: Annotations, source: Path) -> ClassMap:
    """The model's classes. Raises InputError where the categories do not fit."""
    return class_map_of(
        train,
        source=str(source),
        class_indices=config.data.class_indices,
        num_classes=config.model.num_classes,
    )


def not_indexed(split: Split) -> Finding:
    """Annotations that are too large to be read now."""
    megabytes = split.annotations.stat().st_size // 10**6
    found = f"{split.annotations} ({megabytes} MB) has no index yet; its images were not looked at"
    return warning(SUBJECT, found, fix="the run makes it first, or `python -m data convert`")


def check_split(
    name: SplitName,
    annotations: Annotations,
    split: Split,
    classes: ClassMap,
    settings: DataConfig,
    *,
    decoder: str,
) -> list[Finding]:
    """Decode a sample of a split's images, as the run will."""
    try:
        dataset = DetectionDataset(
            annotations,
            split.images,
            classes,
            source=str(split.annotations),
            image_size=settings.image_size,
            train=name == "train",
            skip_images_without_boxes=name == "train" and settings.images_without_boxes == "skip",
            decoder=decoder,
        )
    except InputError as error:
        return [bad_images([str(error)], settings)]
    began, problems, looked_at = time.monotonic(), list[str](), 0
    for index in sampled(len(dataset)):
        if time.monotonic() - began > SECONDS:
            break
        looked_at += 1
        try:
            dataset.read(SampleKey(index, 0))
        except InputError as error:
            problems.append(str(error))
    if problems:
        return [bad_images(problems, settings)]
    seen = f"{len(dataset)} images in {split.images}, {classes.num_classes} classes"
    return [ok(f"{SUBJECT}, {name}", f"{seen}; {looked_at} decoded ({LOOKED_AT_ALL})")]


def sampled(count: int) -> Sequence[int]:
    """The first, the last, and others at random, each once."""
    random = np.random.default_rng(0)
    others = random.choice(count, size=min(count, SAMPLED), replace=False).tolist()
    return list(dict.fromkeys((0, count - 1, *others)))[:SAMPLED]


def bad_images(problems: Sequence[str], settings: DataConfig) -> Finding:
    """Images that cannot be read: what ends a run, or what others stand in for."""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    found = f"{problems[0]}{more}"
    if settings.on_bad_image == "skip":
        return warning(SUBJECT, found, fix=f"others stand in for them; {LOOKED_AT_ALL}")
    fix = f"{LOOKED_AT_ALL}; data.on_bad_image=skip goes on without"
    return failure(SUBJECT, found, fix=fix)


def trained_images(config: Config, train: Annotations) -> int:
    """Return the number of images of an epoch."""
    is_skipping = config.data.images_without_boxes == "skip"
    return len(train.images_with_objects()) if is_skipping else len(train)


def check_steps(config: Config, images: int, *, ranks: int) -> Finding:
    """Whether an epoch of so many images has a step."""
    training = config.training
    batches = steps_per_epoch(images, batch_size=training.batch_size, ranks=ranks)
    batch = f"{ranks} ranks × {training.batch_size}" if ranks > 1 else f"{training.batch_size}"
    if batches < training.gradient_accumulation:
        found = f"training.gradient_accumulation: {training.gradient_accumulation} batches a step, "
        fix = "lower it or training.batch_size"
        return failure("steps", f"{found}but an epoch has only {batches}", fix=fix)
    steps = batches // training.gradient_accumulation
    accumulated = training.gradient_accumulation
    return ok("steps", f"{steps} an epoch, of {batch} × {accumulated} images")


def failed(error: InputError) -> Finding:
    """What the run would say, and end."""
    return failure(SUBJECT, str(error), fix="")


READ_UP_TO = 30_000_000
"""A JSON file of so many bytes is read in a second. Above that it waits for its index."""


@dataclass(frozen=True, kw_only=True)
class KnownData:
    """Sizes; None where only the run itself will tell."""

    num_classes: int | None
    train_images: int | None
    validation_images: int | None


def known_data(config: Config) -> KnownData:
    """From the configuration and from indexes that are there; nothing is made, nothing is read."""
    scenes, wanted = config.data.scenes, config.model.num_classes
    if scenes is not None:
        classes = len(KINDS) if wanted is None else wanted
        return KnownData(
            num_classes=classes, train_images=scenes.train, validation_images=scenes.validation
        )
    try:
        train = indexed(configured_split(config.data, "train", root=config.data.root).annotations)
        split = configured_split(config.data, "validation", root=config.data.root)
        validation = indexed(split.annotations)
        if wanted is None and train is not None:
            wanted = class_map_of(
                train, source="", class_indices=config.data.class_indices, num_classes=None
            ).num_classes
    except InputError:  # whoever opens the data says it
        train = validation = None
    return KnownData(
        num_classes=wanted,
        train_images=None if train is None else len(train),
        validation_images=None if validation is None else len(validation),
    )


def indexed(path: Path) -> Annotations | None:
    """Annotations whose index is there.

    Raises:
        InputError: They cannot be read, or a folder is no index.
    """
    if path.is_dir():
        return index_of_folder(path).annotations
    stamp = stamp_of(path)
    found = (current_index(home, stamp) for home in index_homes(path))
    return next((one.annotations for one in found if one), None)


def indexed_or_small(path: Path) -> Annotations | None:
    """`indexed`, or read from the file where that takes a second; no index is made.

    Raises:
        InputError: They cannot be read, or are not COCO's.
    """
    annotations = indexed(path)
    if annotations is None and stamp_of(path).size <= READ_UP_TO:
        annotations = read_annotations(path)
    return annotations
