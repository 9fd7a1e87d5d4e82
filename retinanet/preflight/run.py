"""Check a run: its folder, disk space, weights, ranks and data; nothing is changed."""

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from common.errors import InputError
from common.locks import has_locks, is_locked
from common.walk import LeftOut, Reach, walk_files
from data.annotations import SPLITS, Annotations, ClassMap, Split, SplitName, TrainingRules
from data.coco_json import read_annotations
from data.dataset import DetectionDataset, SampleKey, make_class_map
from data.decoding import resolve_decoder
from data.index import current_index, index_homes, index_of_folder, read_stamp
from data.loader import steps_per_epoch
from data.rare_classes import Images, require_known_classes
from data.synthetic import KINDS
from retinanet.config import Config
from retinanet.config_file import configured_split, training_rules
from retinanet.config_sections import DataConfig, ModelConfig
from retinanet.config_types import (
    COCO_DETECTORS,
    TORCHVISION,
    planned_groups,
    planned_split,
)
from retinanet.memory import ModelBytes
from retinanet.preflight.findings import Finding, amount, failure, ok, warning
from retinanet.training.build import build_model, dropped_parts, starting_weights
from retinanet.training.checkpoint import newest_valid
from retinanet.training.data import require_no_files
from retinanet.training.detector_weights import load_detector, match_classes, read_detector
from retinanet.training.published import COCO, IMAGENET, cached_file, published_weights
from retinanet.training.resume import require_same_settings
from retinanet.training.run_folder import (
    LOCK,
    holds_work,
    input_paths,
    notes_on_folder,
    problem_of_folder,
)
from retinanet.training.schedule import has_its_length, patience_is_exhausted


@dataclass(frozen=True, kw_only=True)
class KnownData:
    """The sizes of a run's data; None if unknown before the run."""

    num_classes: int | None
    train_images: int | None
    validation_images: int | None

    @property
    def classes(self) -> int:
        """The number of classes; 1 if it is not known."""
        return self.num_classes or 1


def known_data(config: Config) -> KnownData:
    """Return the sizes in the configuration and existing indexes; annotations are not read."""
    data, classes = config.data, config.model.num_classes
    if data.scenes is not None:
        classes = len(KINDS) if classes is None else classes
        images: list[int | None] = [data.scenes.train, data.scenes.validation]
    else:
        try:
            train, validation = (
                indexed(configured_split(data, name, root=data.root).annotations)
                for name in ("train", "validation")
            )
            if classes is None and train is not None:
                classes = class_map_of(config, train).num_classes
        # The same error is reported by the check that opens the data.
        except InputError:
            train = validation = None
        images = [None if split is None else len(split) for split in (train, validation)]
    return KnownData(num_classes=classes, train_images=images[0], validation_images=images[1])


def class_map_of(config: Config, train: Annotations, *, source: object = "") -> ClassMap:
    """Return the classes of a run; raise InputError if the training split does not fit them."""
    return make_class_map(train, training_rules(config, decoder="pillow"), source=str(source))


RUN_FOLDER = "run folder"


def check_run_folder(path: Path, config: Config, *, resume: bool, overwrite: bool) -> Finding:
    """Check the folder `runs/NAME`, and its newest checkpoint; nothing is changed."""
    if is_locked(path / LOCK):
        fix = "set run.name, or wait for its end"
        return failure(RUN_FOLDER, f"{path}: another run is writing there", fix=fix)
    inputs = input_paths(config)
    refused = problem_of_folder(path, resume=resume, overwrite=overwrite, inputs=inputs)
    if refused is not None:
        detail, _, fix = refused.rpartition("; ")
        return failure(RUN_FOLDER, detail, fix=fix)
    if not holds_work(path):
        detail = f"{path} contains no run yet" if path.exists() else f"{path} will be created"
        return ok(RUN_FOLDER, "; ".join((detail, *notes_on_folder(path))))
    if overwrite:
        fix = "to keep it, replace --overwrite by --resume or run.name=NEW"
        return warning(RUN_FOLDER, f"{path}: the run in it will be removed", fix=fix)
    if not resume:
        fix = "give --resume, --overwrite, or run.name=NEW"
        return failure(RUN_FOLDER, f"{path}: contains another run", fix=fix)
    return check_newest_checkpoint(path / "checkpoints", config)


def check_newest_checkpoint(folder: Path, config: Config) -> Finding:
    """Check the checkpoint from which --resume continues, including its SHA-256."""
    checkpoint, problems = newest_valid(folder)
    if checkpoint is None and problems:
        detail = f"{problems[0]}; no checkpoint in {folder} is intact"
        fix = "give --overwrite to start again, or another run.name"
        return failure(RUN_FOLDER, detail, fix=fix)
    if checkpoint is None:
        return ok(RUN_FOLDER, f"{folder} contains no checkpoint yet: the run starts from step 0")
    try:
        require_same_settings(checkpoint, config)
    except InputError as error:
        return failure(RUN_FOLDER, str(error))
    detail = f"resumes from {checkpoint.folder}, which is intact"
    position, training = checkpoint.position, config.training
    to_raise = ""
    if has_its_length(training, step=position.step, epoch=position.epoch):  # whatever its target
        to_raise = "training.epochs or training.max_steps"
    elif patience_is_exhausted(training, position.evaluations_since_best):
        to_raise = "training.patience"
    if to_raise:
        detail = f"{checkpoint.folder} is the end of a finished run; raise {to_raise} to continue"
    if problems:
        return warning(RUN_FOLDER, f"{detail}; {problems[0]}", fix="none needed: it is skipped")
    return ok(RUN_FOLDER, detail)


WRITING = "writing"
ANOTHER_ROOT = "set run.root to a folder that can be written"
WRITTEN_TO = ("checkpoints", "eval", "pictures", "tensorboard")
"""Folders of a run that may be there already, and another user's."""


def check_writing(folder: Path) -> Finding:
    """Check write access to a run's folder, or its nearest existing parent, with a temporary file.

    Modes alone do not show it: root may write where they forbid it, and read-only mounts exist.
    """
    try:
        place = existing(folder)
        places = [place]
        if place == folder.absolute():
            places += [place / name for name in WRITTEN_TO if (place / name).is_dir()]
    except OSError as error:
        detail = f"{folder}: cannot be read: {error.strerror}"
        return failure(WRITING, detail, fix=ANOTHER_ROOT)
    if not place.is_dir():
        return failure(WRITING, f"{place}: is a file", fix="set run.name or run.root")
    for written_to in places:
        try:
            # A file that has no name, so that not even a kill leaves it behind.
            with tempfile.TemporaryFile(dir=written_to) as file:
                # A full disk may take an empty file, so bytes are written and flushed.
                file.write(bytes(4096))
                file.flush()
        except OSError as error:
            detail = f"{written_to}: cannot be written: {error.strerror or error}"
            return failure(WRITING, detail, fix=ANOTHER_ROOT)
    made = "" if place == folder.absolute() else f", where {folder} will be created"
    written = f"a test file was written to {place}{made}"
    if not has_locks(place):
        written += "; its file system has no locks: a second run in the folder is not refused"
    return ok(WRITING, written)


def existing(path: Path) -> Path:
    """Return the absolute path, or its nearest existing parent.

    Raises:
        OSError: A folder on the way may not be entered.
    """
    absolute = path.absolute()
    return next(folder for folder in (absolute, *absolute.parents) if folder.exists())


DISK = "disk space"
HEADERS, RANDOM_STATES = 1_000_000, 10_000
"""Upper bounds of a checkpoint's names and JSON, and of the random states of a rank. [bytes]"""
BYTES_A_SCENE, BYTES_A_DETECTION, BYTES_A_STEP, BYTES_AN_EVALUATION = 24_000, 110, 600, 2_000_000
"""A step has metrics and TensorBoard's events, an evaluation pictures and curves."""
DETECTIONS = 300
FILES_OF_A_CHECKPOINT = 5


@dataclass(frozen=True, kw_only=True)
class DiskNeed:
    """The disk space that a run needs for checkpoints and results. [bytes]"""

    checkpoint: int
    checkpoints: int
    results: int  # Synthetic data, detections and metrics, roughly and at most

    @property
    def all(self) -> int:
        """The sum. [bytes]"""
        return self.checkpoint * self.checkpoints + self.results


def disk_need(config: Config, sizes: ModelBytes, known: KnownData, *, ranks: int) -> DiskNeed:
    """Estimate the disk space of a run on a number of ranks, with an upper bound of results."""
    training, scenes = config.training, config.data.scenes
    # Without the number of ranks, which divides the steps: an upper bound.
    batch = training.batch_size * training.gradient_accumulation
    steps = training.epochs * max(1, (known.train_images or 0) // batch)
    if training.max_steps is not None:
        steps = min(steps, training.max_steps)
    # One more for a run that ends between two evaluations.
    evaluations = -(-training.epochs // config.evaluation.every) + 1
    detections = DETECTIONS * BYTES_A_DETECTION * (known.validation_images or 0)
    images = (scenes.train + scenes.validation) * BYTES_A_SCENE if scenes else 0
    return DiskNeed(
        checkpoint=sizes.checkpoint + ranks * (sizes.statistics + RANDOM_STATES) + HEADERS,
        checkpoints=config.checkpoint.keep + 2,  # the best, and one being written
        results=images + steps * BYTES_A_STEP + evaluations * (detections + BYTES_AN_EVALUATION),
    )


@dataclass(frozen=True, kw_only=True)
class FreeSpace:
    """The space that a file system has left for this user. [bytes]"""

    size: int
    files: int | None  # Files that it can still take (inodes); None where it sets no limit


def free_space(folder: Path) -> FreeSpace:
    """Return the free space of a folder's file system, without quotas that it does not report.

    Raises:
        OSError: The file system does not answer.
    """
    status = os.statvfs(folder)
    is_root = os.geteuid() == 0
    # Root may also use the blocks and inodes that a file system reserves.
    blocks = status.f_bfree if is_root else status.f_bavail
    # Some file systems, such as Btrfs, have no fixed number of inodes and report 0.
    files = (status.f_ffree if is_root else status.f_favail) if status.f_files else None
    return FreeSpace(size=blocks * status.f_frsize, files=files)


def check_disk(place: Path, *, free: FreeSpace, need: DiskNeed, held: int, freed: int) -> Finding:
    """Compare the space that a run needs beyond `held` with the free space. [bytes]"""
    room = free.size + freed
    wanted = max(0, need.all - held)
    parts = f"{need.checkpoints} checkpoints of {amount(need.checkpoint)}"
    if held:
        parts += f" ({amount(held)} exist already)"
    if need.results:
        parts += f" and up to {amount(need.results)} of results"
    have = f"{amount(room)} are free on the file system of {place}"
    if freed:
        have += f", with the {amount(freed)} that --overwrite removes"
    fix = "free some space, set run.root, or lower checkpoint.keep"
    if room < need.checkpoint and held < need.checkpoint:
        detail = f"a checkpoint takes {amount(need.checkpoint)}, but only {have}"
        return failure(DISK, detail, fix="free some space, or set run.root to another file system")
    if free.files is not None and free.files < FILES_OF_A_CHECKPOINT * need.checkpoints:
        detail = f"only {free.files} inodes (files) are free on the file system of {place}"
        return warning(DISK, detail, fix="remove files, or set run.root")
    if room < wanted:
        return warning(DISK, f"{have}, but the run writes {parts}", fix=fix)
    return ok(DISK, f"{have}; the run writes {parts}")


def disk_usage(folder: Path) -> int:
    """Return the disk space of all files below a folder. [bytes]"""
    size = 0
    for name in walk_files(folder, Reach.of(folder), LeftOut(), hidden=True):
        with suppress(OSError):  # a live run removes and renames meanwhile
            # The unit of st_blocks is 512 bytes, whatever the block size of the file system.
            size += (folder / name).lstat().st_blocks * 512
    return size


WEIGHTS = "weights"


def check_weights(config: Config) -> Finding:
    """Load the weights to start from into a model, without downloading them."""
    try:
        if config.model.weights is not None:
            return check_detector(config.model.weights, config)
        return check_backbone(config.model)
    except InputError as error:
        return failure(WEIGHTS, str(error))


def check_detector(source: str, config: Config) -> Finding:
    """Load `model.weights` into a model, and match its classes with those of the data set."""
    if source in COCO_DETECTORS and (missing := not_downloaded(source, COCO)):
        return missing
    detector = read_detector(source)
    names = training_class_names(config)
    match = match_classes(detector.names if names is None else names, detector.names)
    with torch.device("cpu"):
        model = build_model(config.model, num_classes=len(match.outputs), weights=None)
    load_detector(model, detector, match)
    detail = f"{detector.file}: loaded into the model"
    if names is None:
        return ok(WEIGHTS, f"{detail}; its classes are matched when the run reads the data")
    counts = f"classes: {len(match.kept)} kept, {len(match.new)} new, {len(match.dropped)} dropped"
    if not match.kept:
        fix = "none needed if the classes are new; otherwise give equal names to equal classes"
        return warning(WEIGHTS, f"{detail}; {counts}", fix=fix)
    return ok(WEIGHTS, f"{detail}; {counts}")


def training_class_names(config: Config) -> Sequence[str] | None:
    """Return the name of each class index; None if reading the annotations would take long."""
    data = config.data
    if data.scenes is not None:
        return [kind.name for kind in KINDS]
    try:
        annotations = configured_split(data, "train", root=data.root).annotations
        content = indexed_or_small(annotations)
        if content is None:
            return None
        return class_map_of(config, content, source=annotations).names
    # The same error is reported by the check that opens the data.
    except InputError:
        return None


def check_backbone(settings: ModelConfig) -> Finding:
    """Load the pretrained backbone into a model, without downloading it."""
    source = settings.pretrained_backbone
    if source == TORCHVISION and (missing := not_downloaded(settings.backbone, IMAGENET)):
        return missing
    weights = starting_weights(settings)
    if weights is None:
        return ok(WEIGHTS, "random")
    with torch.device("cpu"):
        # Only the backbone is loaded, so one class is enough: the smallest head.
        build_model(settings, num_classes=1, weights=weights)
    dropped = dropped_parts(weights)
    unused = f"; a complete detector, not used: {dropped}" if dropped else ""
    return ok(WEIGHTS, f"{source}: loaded into the model{unused}")


def not_downloaded(model: str, data: str) -> Finding | None:
    """Return a warning if torchvision's weights of a model are not in torch's cache."""
    file = cached_file(published_weights(model, data))
    if file.is_file():
        return None
    field = "pretrained_backbone" if data == IMAGENET else "weights"
    fix = (
        f"the run downloads them; without a network copy the file there, or set model.{field}=FILE"
    )
    return warning(WEIGHTS, f"torchvision's weights are not in {file} yet", fix=fix)


def check_ranks(config: Config, *, ranks: int) -> list[Finding]:
    """Check whether batches can be split among the ranks, and the ranks be grouped.

    There is no finding for even batches, nor for a single group.
    """
    distributed, batch_size = config.distributed, config.training.batch_size
    findings = []
    for subject, plan in (
        ("batches", partial(planned_split, distributed.batch_split, batch_size=batch_size)),
        ("compute groups", partial(planned_groups, distributed.groups)),
    ):
        try:
            text = plan(ranks=ranks)
        except InputError as error:
            findings.append(failure(subject, str(error)))
        else:
            findings += [ok(subject, text)] if text else []
    return findings


SUBJECT = "data"
SAMPLED = 24  # Images of each split: the first, the last, and others at random
SECONDS = 2.0
VERIFY_ALL = "`retinanet data verify` checks all"


def check_data(config: Config, *, ranks: int) -> list[Finding]:
    """Check both splits for a job of a number of ranks, without creating an index."""
    settings = config.data
    try:
        rules = training_rules(config, decoder=resolve_decoder(settings.decoder))
        if settings.scenes is not None:
            require_no_files(settings)
            require_known_classes(config.training.class_weights, [kind.name for kind in KINDS])
            scenes = settings.scenes
            sizes = f"{scenes.train} images for training and {scenes.validation} for validation"
            synthetic = ok(SUBJECT, f"synthetic, {sizes}; no files needed")
            # An upper bound: a few scenes have no box and are skipped.
            steps = check_steps(config, scenes.train, ranks=ranks)
            return [synthetic, steps] if steps.level == "failure" else [synthetic]
        splits = {split: configured_split(settings, split, root=settings.root) for split in SPLITS}
        opened = {name: indexed_or_small(split.annotations) for name, split in splits.items()}
        findings = []
        for name, split in splits.items():
            if opened[name] is None:  # too large to be read now
                megabytes = split.annotations.stat().st_size // 10**6
                detail = f"{split.annotations} ({megabytes} MB) has no index yet; its images were "
                fix = "the run creates it, or `retinanet data convert`"
                findings.append(warning(SUBJECT, f"{detail}not checked", fix=fix))
        train, validation = opened["train"], opened["validation"]
        if train is None:
            return findings
        classes = class_map_of(config, train, source=splits["train"].annotations)
        require_known_classes(config.training.class_weights, classes.names)
        if validation is not None:
            categories = validation.category_ids, validation.category_names
            classes.check_categories(*categories, file=splits["validation"].annotations)
    except InputError as error:
        return [failure(SUBJECT, str(error))]
    for name in SPLITS:
        annotations = opened[name]
        if annotations is not None:
            findings.append(
                check_split(name, annotations, splits[name], classes, rules, settings=settings)
            )
    try:
        # With a limit of bad images, it does not look for the first one.
        rules = replace(rules, bad_image_limit=0)
        dataset = DetectionDataset(train, splits["train"].images, classes, rules, train=True)
    except InputError:
        return findings  # No image can be trained on, as `check_split` has found
    rows = dataset.describe_rare(dataset.class_weights(config.training.class_weights))
    findings += [ok(name, text) for name, text in rows.items()]
    return [*findings, check_steps(config, dataset.images, ranks=ranks)]


def check_split(
    name: SplitName,
    annotations: Annotations,
    split: Split,
    classes: ClassMap,
    rules: TrainingRules,
    *,
    settings: DataConfig,
) -> Finding:
    """Decode a sample of a split's images as the run will."""
    is_train = name == "train"
    try:
        dataset = DetectionDataset(
            annotations,
            split.images,
            classes,
            replace(
                rules,
                skip_images_without_boxes=is_train and rules.skip_images_without_boxes,
                bad_image_limit=None,
            ),
            train=is_train,
            source=str(split.annotations),
        )
    except InputError as error:
        return bad_images([str(error)], settings)
    began, problems, decoded = time.monotonic(), list[str](), 0
    for index in sampled(len(dataset)):
        if time.monotonic() - began > SECONDS:
            break
        decoded += 1
        try:
            dataset.read(SampleKey(index, 0))
        except InputError as error:
            problems.append(str(error))
    if problems:
        return bad_images(problems, settings)
    size = f"{len(dataset)} images in {split.images}, {classes.num_classes} classes"
    return ok(f"{SUBJECT}, {name}", f"{size}; {decoded} decoded ({VERIFY_ALL})")


def sampled(count: int) -> Sequence[int]:
    """Return places of the first, the last, and others at random, each once."""
    # The same images each time, so that a repeated check has the same result.
    random = np.random.default_rng(0)
    others = random.choice(count, size=min(count, SAMPLED), replace=False).tolist()
    return list(dict.fromkeys((0, count - 1, *others)))[:SAMPLED]


def bad_images(problems: Sequence[str], settings: DataConfig) -> Finding:
    """Return the finding on unreadable images: they end a run, or are replaced."""
    others = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    detail = f"{problems[0]}{others}"
    if settings.on_bad_image == "skip":
        return warning(SUBJECT, detail, fix=f"other images replace them; {VERIFY_ALL}")
    fix = f"{VERIFY_ALL}; data.on_bad_image=skip replaces bad images"
    return failure(SUBJECT, detail, fix=fix)


def check_steps(config: Config, images: Images, *, ranks: int) -> Finding:
    """Check whether an epoch of these images has at least one step."""
    batch_size, accumulated = config.training.batch_size, config.training.gradient_accumulation
    batches = steps_per_epoch(images, batch_size=batch_size, ranks=ranks)
    if batches < accumulated:
        detail = f"training.gradient_accumulation: {accumulated} batches per step, "
        fix = "lower it or training.batch_size"
        return failure("steps", f"{detail}but an epoch has only {batches}", fix=fix)
    batch = f"{ranks} ranks × {batch_size}" if ranks > 1 else f"{batch_size}"
    return ok("steps", f"{batches // accumulated} per epoch, of {batch} × {accumulated} images")


READ_UP_TO = 30_000_000
"""A JSON file of so many bytes is read in a second. Above that it waits for its index."""


def indexed(path: Path) -> Annotations | None:
    """Return annotations whose index is there."""
    if path.is_dir():
        return index_of_folder(path).annotations
    stamp = read_stamp(path)
    indexes = (current_index(home, stamp) for home in index_homes(path))
    return next((index.annotations for index in indexes if index), None)


def indexed_or_small(path: Path) -> Annotations | None:
    """Return `indexed`, or read the file where that takes a second; no index is made."""
    annotations = indexed(path)
    if annotations is None and read_stamp(path).size <= READ_UP_TO:
        annotations = read_annotations(path)
    return annotations
