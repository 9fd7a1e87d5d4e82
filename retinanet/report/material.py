"""The numbers that the page of a trained detector is made from.

The detections of the checkpoint's evaluation in `eval/` of its run are used if they are there and
have the mAP that the run recorded; otherwise the detector runs on all images.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from common.console import Advance, print_line, progress_in_bytes
from common.errors import InputError
from common.files import open_regular, or_unreadable, read_json_lines
from common.walk import real_path
from data.annotations import Annotations, ClassMap, TrainingRules, positions_in
from data.dataset import DetectionDataset
from data.index import open_annotations
from data.json_lists import Window, list_entries, no_garbage_collection
from retinanet.config import Config
from retinanet.config_file import config_from_tree, configured_split, load_config
from retinanet.config_types import Precision
from retinanet.evaluation.command import (
    evaluate_split,
    noted_precision,
    read_trained,
    validation_split,
)
from retinanet.evaluation.matching import SplitDetections
from retinanet.evaluation.metric import Evaluation, coco_metric
from retinanet.evaluation.output import evaluation_files, evaluation_name
from retinanet.report.curves import (
    Curve,
    OperatingPoint,
    class_curves,
    class_thresholds,
    joint_curve,
)
from retinanet.report.mistakes import Mistakes, find_mistakes
from retinanet.training.checkpoint import Checkpoint
from retinanet.training.progress import START
from retinanet.training.run_folder import RunFolder
from retinanet.training.schedule import (
    Ending,
    has_its_length,
    patience_is_exhausted,
)

PICTURES = 24
"""Worst images that the page shows."""
BATCH_SIZE = 8
SAME_MAP = 1e-6
"""Difference of mAP up to which kept detections are those of the recorded evaluation."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Material:
    """A checkpoint, its detections on a split, and what follows from them."""

    checkpoint: Checkpoint
    precision: str  # `bf16` or `float32`: the arithmetic that the detections are from
    run: RunFolder | None  # None: the checkpoint is not in a run's folder
    config: Config  # The run's as of its last start, else the checkpoint's
    dataset: DetectionDataset
    own_annotations: Path | None  # As the user gave them; None: the validation split of the run
    trained_images: int | None  # Images that the detector was trained on; None: not known
    detections: SplitDetections
    evaluation: Evaluation
    curves: Sequence[Curve]  # In the categories' order, as all that follows
    joint: Curve
    thresholds: NDArray[np.float64]  # [K]
    mistakes: Mistakes
    records: Sequence[dict[str, Any]]  # The run's `metrics.jsonl`
    trained: DetectionDataset | None = None  # The training images, if they are here

    @property
    def name(self) -> str:
        """The name of the run, or of the checkpoint's folder."""
        folder = self.run.path if self.run else self.checkpoint.folder
        return real_path(folder).name

    @property
    def annotations(self) -> Annotations:
        """The true boxes of the split."""
        return self.dataset.annotations

    @property
    def best(self) -> OperatingPoint | None:
        """The best single threshold for all classes; None if no box is right."""
        return self.joint.best

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The recorded evaluations of the run that have a mAP."""
        return [
            record
            for record in self.records
            if record.get("kind") == "evaluation" and record.get("map") is not None
        ]

    @property
    def steps_done(self) -> int:
        """The steps that the run has recorded."""
        return max((record.get("step", 0) for record in self.records), default=0)

    @property
    def epochs_done(self) -> float:
        """The epochs that the run has recorded, with the fraction of the last one."""
        return max((record.get("epoch", 0) for record in self.records), default=0)

    @property
    def endings(self) -> set[Ending]:
        """Why the run takes no further step, by its records and settings; empty: it goes on."""
        training, maps = self.config.training, [record["map"] for record in self.evaluations]
        progress = START
        for value in maps:
            progress = progress.evaluated(value)
        endings: set[Ending] = set()
        if training.target_map is not None and maps and maps[-1] >= training.target_map:
            endings.add("target")
        if patience_is_exhausted(training, progress.evaluations_since_best):
            endings.add("patience")
        if has_its_length(training, step=self.steps_done, epoch=self.epochs_done):
            endings.add("length")
        return endings

    @property
    def is_trained_on(self) -> bool:
        """Whether all images are those that the detector was trained on."""
        return self.trained_images == len(self.annotations)


def read_material(
    path: Path,
    *,
    annotations: Path | None,
    images: Path | None,
    precision: Precision = "auto",
    console: Console,
) -> Material:
    """Read a checkpoint and its detections, or detect in a precision.

    Kept detections are in the precision of the training, which `auto` takes as it is.

    Raises:
        InputError: There is no checkpoint, or its images or annotations are missing.
    """
    checkpoint = read_trained(path)
    run = find_run(checkpoint.folder)
    dataset = validation_split(checkpoint, annotations=annotations, images=images)
    config = current_config(checkpoint, run)
    records = read_json_lines(run.metrics) if run else []
    kept, used = None, checkpoint.model.precision
    if run is not None and annotations is None and precision in ("auto", used):
        kept = kept_evaluation(
            run, dataset, step=checkpoint.position.step, records=records, console=console
        )
    if kept is None:
        used = noted_precision(precision, console)
        result = evaluate_split(
            checkpoint, dataset, precision=used, batch_size=BATCH_SIZE, console=console
        )
        kept = result.detections, result.evaluation
    detections, evaluation = kept
    curves = class_curves(dataset.annotations, detections)
    joint = joint_curve(curves)
    default = joint.best.threshold if joint.best else 0.5
    trained = training_images(dataset, config=config, run=run)
    thresholds = class_thresholds(curves, default=default)
    return Material(
        checkpoint=checkpoint,
        precision=used,
        run=run,
        config=config,
        dataset=dataset,
        own_annotations=annotations,
        trained_images=None if trained is None else dataset.count_images_in(trained),
        detections=detections,
        evaluation=evaluation,
        curves=curves,
        joint=joint,
        thresholds=thresholds,
        mistakes=find_mistakes(dataset.annotations, detections, thresholds, images=PICTURES),
        records=records,
        trained=trained,
    )


def current_config(checkpoint: Checkpoint, run: RunFolder | None) -> Config:
    """Return the settings of the run's last start, which may have continued it with others.

    Without its file they are those with which the checkpoint was written.

    Raises:
        InputError: The settings are not valid.
    """
    if run is not None and run.config.is_file():
        return load_config(str(run.config))
    return config_from_tree(checkpoint.state.config, str(checkpoint.folder / "state.json"))


def training_images(
    measured: DetectionDataset, *, config: Config, run: RunFolder | None
) -> DetectionDataset | None:
    """Return the images that the training used; None if they are not here."""
    settings = config.data
    root = settings.root if settings.scenes is None or run is None else run.scenes
    try:
        split = configured_split(settings, "train", root=root)
        annotations = open_annotations(split.annotations)
        return DetectionDataset(
            annotations,
            split.images,
            ClassMap.contiguous(annotations.category_ids, annotations.category_names),
            TrainingRules(
                image_size=measured.rules.image_size,
                skip_images_without_boxes=settings.images_without_boxes == "skip",
            ),
            train=True,
        )
    except InputError:
        return None


def find_run(checkpoint: Path) -> RunFolder | None:
    """Return the folder of the run that a checkpoint's folder is in, as the user named it."""
    # Not resolved: `best` is a link beside the checkpoint that it points to.
    checkpoints = (
        checkpoint.parent if str(checkpoint.parent) != "." else real_path(checkpoint).parent
    )
    if checkpoints.name != "checkpoints":
        return None
    return RunFolder(checkpoints.parent)


def kept_evaluation(
    run: RunFolder,
    dataset: DetectionDataset,
    *,
    step: int,
    records: Sequence[dict[str, Any]],
    console: Console,
) -> tuple[SplitDetections, Evaluation] | None:
    """Return the detections that the run kept of a step, and their metric; None if unusable.

    The mAP must be the one in `metrics.jsonl`: a file of the same name may be of other data.
    """
    recorded = [
        record["map"]
        for record in records
        if record.get("kind") == "evaluation" and record.get("step") == step
    ]
    file = evaluation_files(run.evaluations, name=evaluation_name(step))[0]
    if not recorded or not file.is_file():
        return None
    total = file.stat().st_size
    try:
        with progress_in_bytes(console, f"reading {file.name}", total=total) as advance:
            detections = read_detections(file, dataset.annotations, advance=advance)
    except InputError as error:
        problem = str(error)
    else:
        evaluation = coco_metric(dataset.annotations, detections)
        expected = math.nan if recorded[-1] is None else float(recorded[-1])
        # NaN differs from nothing: neither evaluation had a box to measure.
        if not abs(evaluation.summary["map"] - expected) > SAME_MAP:
            return detections, evaluation
        problem = f"{file}: has mAP {evaluation.map:.4f}, the run recorded {expected:.4f}"
    print_line(console, f"note: {problem}; the images are searched again")
    return None


def read_detections(file: Path, annotations: Annotations, *, advance: Advance) -> SplitDetections:
    """Read detections in COCO's result format, in parts.

    Raises:
        InputError: It is no such file, or has boxes of unknown images or categories.
    """
    ids, boxes, scores, categories = [], [], [], []
    try:
        with (
            or_unreadable(file),
            no_garbage_collection(),
            TextIOWrapper(open_regular(file), encoding="utf-8", newline="") as stream,
        ):
            for entries in list_entries(Window(file, stream, advance), "detections"):
                ids.append(np.array([entry["image_id"] for entry in entries], np.int64))
                boxes.append(np.array([entry["bbox"] for entry in entries], float).reshape(-1, 4))
                scores.append(np.array([entry["score"] for entry in entries], float))
                categories.append(np.array([entry["category_id"] for entry in entries], np.int64))
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{file}: is not in COCO's result format") from error
    corners = np.concatenate(boxes)
    corners[:, 2:] += corners[:, :2]
    detections = SplitDetections(
        image_ids=np.concatenate(ids),
        boxes=corners.astype(np.float32),
        scores=np.concatenate(scores).astype(np.float32),
        category_ids=np.concatenate(categories),
    )
    for name, known, column in (
        ("image_id", annotations.image_ids, detections.image_ids),
        ("category_id", annotations.category_ids, detections.category_ids),
    ):
        unknown = np.flatnonzero(positions_in(known, column) < 0)
        if len(unknown):
            raise InputError(f"{file}: {name} {column[unknown[0]]} is not in the annotations")
    return detections
