"""The sections of the page of a trained detector, as plain values for `common.page`."""

import math
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from common.charts import BLUE, GREEN, ORANGE, Cell, Column, Table, new_figure, text_column
from common.cli import installed_command
from common.page import (
    Block,
    Commands,
    Facts,
    Line,
    Links,
    Matrix,
    Pictures,
    Plot,
    Plots,
    Section,
    Suggestions,
    Text,
    chart,
)
from common.walk import real_path
from data.annotations import shown_size
from retinanet.report.curves import Curve
from retinanet.report.findings import all_suggestions
from retinanet.report.material import Material
from retinanet.report.mistakes import FALSE_POSITIVES, Kind, confused_pairs
from retinanet.report.pictures import LEGEND, candidate_picture, worst_picture
from retinanet.report.unlabelled import Candidate
from retinanet.training.detector_weights import describe_start
from retinanet.training.recorder import format_metric, running_mean
from retinanet.training.run_folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MATRIX_CLASSES = 20  # Of more classes, the matrix has those with the most mistakes
CURVE_CLASSES = 100  # Of more classes, the weakest have curves
OPEN_PICTURES = 9  # Of more pictures, the others are unfolded by a click
OPEN_CLASSES = 12  # Up to this number of classes the curves are visible at once
MOST_PAIRS = 100  # Rows of the table of pairs
CURVE_POINTS = 60
LOSS_POINTS = 400


def all_sections(material: Material, *, page: Path) -> list[Section]:
    """Return the sections; `page` is the file that they are for, from which links lead."""
    next_blocks = next_steps(material, page=page)
    return [
        Section("result", "The result", result_blocks(material)),
        Section("next", "What to do next", next_blocks),
        Section("pictures", "Worst pictures first", picture_blocks(material)),
        Section("confusion", "Which classes are confused", confusion_blocks(material)),
        Section(
            "classes",
            "Each class, and its best threshold",
            [classes_table(material), *curve_blocks(material)],
        ),
        Section("words", "What the words mean", [Facts(WORDS)]),
    ]


def summarize(material: Material) -> list[str]:
    """Return sentences on what the detector finds, for a reader who knows no metric."""
    boxes, best, mistakes = material.joint.true_boxes, material.best, material.mistakes
    images = len(material.annotations)
    what = f"{images:,} images with {boxes:,} labelled objects"
    measured = f"Measured in {material.precision} on {what}: {describe_images(material)}."
    if best is None:
        return [measured, "The detector finds none of the objects at any threshold."]
    return [
        measured,
        f"With one threshold for all classes, {best.threshold:g}, it finds {best.recall:.0%} of "
        f"the objects, and {best.precision:.0%} of its boxes are right. "
        f"mAP is {format_metric(material.evaluation.summary['map'])}, "
        f"mAP50 {format_metric(material.evaluation.summary['map_50'])}.",
        f"With each class's own best threshold, {mistakes.right:,} objects are found, "
        f"{mistakes.missed:,} missed and {mistakes.swaps:,} taken for another class; "
        f"{mistakes.false_positives:,} boxes are where no such object is.",
    ]


def describe_images(material: Material) -> str:
    """Describe the measured images by their part in the training."""
    trained = material.trained_images
    if material.is_trained_on:
        return "the pictures it was trained on"
    if trained:
        return f"{trained:,} of them are pictures it was trained on"
    if trained == 0:
        given = "pictures that were given, and that" if material.own_annotations else "pictures"
        return f"{given} it was not trained on"
    given = "pictures that were given" if material.own_annotations else "the validation pictures"
    return f"{given}; its training pictures are not here, so these may be among them"


def result_blocks(material: Material) -> list[Block]:
    """Return the metrics, the settings, and the course of the training."""
    summary, config = material.evaluation.summary, material.config
    model, position = material.checkpoint.model, material.checkpoint.position
    classes = len(material.annotations.category_ids)
    facts = [
        ("mAP (IoU 0.50:0.95)", format_metric(summary["map"])),
        ("mAP50 (IoU 0.50)", format_metric(summary["map_50"])),
        ("mAR (100 boxes per image)", format_metric(summary["mar_100"])),
        ("images", f"{len(material.annotations):,}"),
        ("labelled objects", f"{material.joint.true_boxes:,}"),
        ("classes", f"{classes:,}"),
        ("run", material.name),
        ("checkpoint", f"after step {position.step:,}, epoch {position.epoch:,}"),
        ("image size", f"{shown_size(model.image_size)} pixels"),
        ("detections in", material.precision),
    ]
    if material.run:
        training = config.training
        start = describe_start(material.run.start) or config.model.weights
        if not start:
            backbone = config.model.pretrained_backbone
            start = f"a pretrained backbone, {backbone}" if backbone else "random weights"
        facts += [
            ("training", f"{training.epochs} epochs, batches of {training.batch_size}"),
            ("optimizer", f"{training.optimizer}, rate {training.learning_rate:g}, "
                          f"{training.schedule}"),
            ("started from", start),
        ]  # fmt: skip
        rare = {"class weights": training.class_weights, "repeat_rare": config.data.repeat_rare}
        facts += [(name, str(value)) for name, value in rare.items() if value is not None]
    blocks: list[Block] = [Facts(facts)]
    if any(record.get("kind") == "step" for record in material.records):
        blocks.append(
            chart(
                lambda: draw_training(material.records),
                name="training",
                label="Training loss, and mAP of the evaluations, by epoch",
                caption="Left: the loss in training, which should fall and then level off. Right: "
                "the quality on the validation images after each evaluation, which should rise. "
                "Where it falls again while the loss goes on falling, the detector memorizes its "
                "training pictures.",
            )
        )
    return blocks


def draw_training(records: Sequence[dict[str, Any]]) -> "Figure":
    """Return a figure of the loss and of mAP by epoch."""
    figure = new_figure(height=3.4)
    left, right = figure.subplots(1, 2)
    steps = [record for record in records if record.get("kind") == "step"]
    epochs = np.array([record["epoch"] for record in steps], float)
    losses = running_mean(np.array([record["loss"] for record in steps], float))
    shown = np.unique(np.linspace(0, len(steps) - 1, LOSS_POINTS).round().astype(int))
    left.plot(epochs[shown], losses[shown], color=BLUE)
    left.set(xlabel="epochs", title="training loss (mean of 20 steps)")
    left.set_ylim(bottom=0)
    evaluations = [record for record in records if record.get("kind") == "evaluation"]
    for name, label, colour in (("map_50", "mAP50", ORANGE), ("map", "mAP", GREEN)):
        values = np.array([record.get(name) for record in evaluations], float)
        places = [record["epoch"] for record in evaluations]
        right.plot(places, values, marker="o", color=colour, label=label)
    right.set(xlabel="epochs", title="validation", ylim=(0, 1))
    if evaluations:
        right.legend(loc="upper left")
    for axes in (left, right):
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
    return figure


def next_steps(material: Material, *, page: Path) -> list[Block]:
    """Return the findings, the next commands, and links to the files of the run."""
    suggestions = all_suggestions(material)
    blocks: list[Block] = []
    if suggestions:
        blocks.append(
            Text(["By the numbers of this page, in the order in which to look at them. The limits "
                  "behind these sentences are rules of thumb."])
        )  # fmt: skip
        blocks.append(Suggestions(suggestions))
    else:
        blocks.append(Text(["The numbers of this page show no weakness: try it on your pictures."]))
    blocks.append(Text([f"Commands, to be run in `{Path.cwd()}`:"]))
    blocks.append(Commands(list(next_commands(material))))
    links = list(linked_files(material, page=page))
    if links:
        blocks.append(Text(["Files, if this page is still beside them:"]))
        blocks.append(Links(links))
    return blocks


def label_section(found: Sequence[Candidate], material: Material) -> Section:
    """Return the pictures to label next, in their order."""
    columns = tuple(map(text_column, Candidate._fields[:3]))
    rows = [each[:3] for each in found]
    pictures = [candidate_picture(each, material) for each in found[:OPEN_PICTURES]]
    note = "The reasons take turns; docs/evaluation.md says how each is measured."
    table = Table("Label these, in this order", columns, rows, notes=[note])
    return Section("label", "Which pictures to label next", [table, Pictures(pictures)])


def next_commands(material: Material) -> Iterator[tuple[str, str]]:
    """Yield what to do with the detector, with paths and threshold filled in."""
    folder = str(material.checkpoint.folder)
    start = [*installed_command("retinanet")]
    score = f"{material.best.threshold:g}" if material.best else "0.4"
    checkpoint = ["--checkpoint", folder]

    def line(*words: str) -> str:
        return shlex.join([*start, *words])

    yield (
        "Find objects in your own pictures, with the best single threshold of this page:",
        line("predict", *checkpoint, "--score", score, "photo.jpg"),
    )
    yield (
        "Write one file for other programs, with the same threshold (or .pt2 for torch.export):",
        line("export", *checkpoint, "--score", score, "--out", "model.onnx"),
    )
    yield (
        "Make this page for other labelled pictures:",
        line("report", folder, "--annotations", "mine.json", "--images", "photos",
             "--out", "mine.html"),
    )  # fmt: skip
    yield (
        "Only the metric, on other labelled pictures:",
        line("evaluate", *checkpoint, "--annotations", "mine.json", "--images", "photos"),
    )
    if material.run and material.run.config.is_file():
        yield continuing_command(material, material.run)
        if material.config.data.scenes is None:
            verify = [*installed_command("data"), "verify", "--config", str(material.run.config)]
            yield (
                "Check the labels, and count the boxes of each class in the training pictures:",
                shlex.join(verify),
            )


def continuing_command(material: Material, run: RunFolder) -> tuple[str, str]:
    """Return a purpose and the command that trains on, with another limit if the run has ended."""
    training, endings = material.config.training, material.endings
    limits: list[str] = []
    if not endings:
        purpose = "Continue the training to its end:"
    elif "length" in endings:
        purpose = "Train for twice as long, from where the run ended:"
        steps, epochs = 2 * material.steps_done, math.ceil(2 * material.epochs_done)
        if training.max_steps is not None and training.max_steps < steps:
            limits.append(f"training.max_steps={steps}")
        if training.epochs < epochs:
            limits.append(f"training.epochs={epochs}")
    else:
        reason = "its target mAP" if "target" in endings else "its patience"
        purpose = f"Train on after {reason} ended the run, to the end of its settings:"
    limits += [
        f"training.{name}=null"
        for name, ending in (("target_map", "target"), ("patience", "patience"))
        if ending in endings
    ]
    # The run may have been moved, or the page is made in another folder than the run.
    settings = material.config.run
    if real_path(settings.root / settings.name) != real_path(run.path):
        folder = real_path(run.path)
        limits += [f"run.root={folder.parent}", f"run.name={folder.name}"]
    train = [*installed_command("train"), "--config", str(run.config)]
    return purpose, shlex.join([*train, *limits, "--resume"])


def linked_files(material: Material, *, page: Path) -> Iterator[tuple[str, str]]:
    """Yield files of the run with their addresses relative to the page."""
    files = [("checkpoint of this page", material.checkpoint.folder)]
    if material.run:
        run = material.run
        files += [
            ("model card", material.checkpoint.folder / "MODEL_CARD.md"),
            ("last checkpoint, from which training continues", run.checkpoints / "last"),
            ("pictures of each evaluation", run.pictures),
            ("detections and tables of each evaluation", run.evaluations),
            ("configuration", run.config),
            ("numbers of each step", run.metrics),
        ]
    for text, file in files:
        if file.exists():
            # Not resolved: `best` and `last` are links, which may lead elsewhere later.
            address = os.path.relpath(file.absolute(), page.absolute().parent)
            yield f"{text}: {address}", quote(Path(address).as_posix())


def picture_blocks(material: Material) -> list[Block]:
    """Return the images with the most mistakes."""
    mistakes = material.mistakes
    if not mistakes.worst:
        return [Text(["No image has a mistake at these thresholds."])]
    shown = len(mistakes.worst)
    text = (
        f"{mistakes.images_with_mistakes:,} of {len(material.annotations):,} images have a mistake "
        f"at the best threshold of each class; these are the {shown} with the most."
    )
    pictures = [worst_picture(material.dataset, result) for result in mistakes.worst]
    blocks: list[Block] = [Text([text]), Pictures(pictures[:OPEN_PICTURES], legend=LEGEND)]
    if more := pictures[OPEN_PICTURES:]:
        blocks.append(Pictures(more, fold=f"{len(more)} more pictures"))
    return [*blocks, kinds_table(material)]


def kinds_table(material: Material) -> Table:
    """Return the table of what became of all boxes."""
    mistakes = material.mistakes
    rows: list[tuple[object, ...]] = [
        ("labelled objects that were found", mistakes.right, "a box of the class overlaps them"),
        ("labelled objects taken for another class", mistakes.swaps, "only another class's box"),
        ("labelled objects missed", mistakes.missed, "no box overlaps them enough"),
    ]
    meanings = {
        Kind.DUPLICATE: "another box was matched to the object already",
        Kind.MISPLACED: "overlaps an object of its class by 0.1 to 0.5 only",
        Kind.BACKGROUND: "either a mistake, or a label is missing",
    }
    rows += [
        (f"false positives: {kind.value}", mistakes.kinds[kind], meanings[kind])
        for kind in FALSE_POSITIVES
    ]
    rows.append(
        ("ignored boxes", mistakes.kinds[Kind.IGNORED], "lie on a crowd or group of their class")
    )
    columns = (text_column("in all images"), Column("number", ",d"), text_column("meaning"))
    return Table("What became of the objects and of the boxes", columns, rows)


MATRIX_NOTES = (
    "Each row is a true class and adds up to its labelled objects; green is right, orange is a "
    "mistake, and the stronger the colour, the larger the share of the row.",
    "Boxes below their class's best threshold are left out. In each image, boxes are first matched "
    "to objects of their own class with an overlap (IoU) of at least 0.50, the surest first, as in "
    "COCO's metric. A box that is left and overlaps an object without a match is a class swap. "
    "What then remains is missed, or a false positive. Crowds and groups do not count.",
)


def confusion_blocks(material: Material) -> list[Block]:
    """Return the confusion matrix, of many classes a part of it, and the most confused pairs."""
    matrix, names = material.mistakes.matrix, list(material.annotations.category_names)
    classes = len(names)
    shown, title = list(range(classes)), f"{classes} classes at IoU 0.50"
    if classes > MATRIX_CLASSES:
        swapped = matrix[:-1, :-1] * ~np.eye(classes, dtype=np.bool_)
        errors = swapped.sum(axis=0) + swapped.sum(axis=1)
        # Of classes without swaps, those with the most objects.
        order = np.lexsort((-matrix[:-1].sum(axis=1), -errors))
        shown = sorted(order[:MATRIX_CLASSES].tolist())
        title = f"the {MATRIX_CLASSES} most confused of {classes} classes at IoU 0.50"
    rows = [*shown, classes]
    counts = matrix[np.ix_(rows, rows)]
    rest = matrix[rows].sum(axis=1) - counts.sum(axis=1)
    headings = [names[place] for place in shown]
    columns = [*headings, "missed"]
    table = counts.tolist()
    if classes > MATRIX_CLASSES:
        columns.append("other class")
        table = [[*row, int(other)] for row, other in zip(table, rest, strict=True)]
    blocks: list[Block] = [
        Matrix(title, "true ↓ predicted →", [*headings, "nothing"], columns, table, MATRIX_NOTES)
    ]
    pairs = pairs_table(material)
    if not pairs.rows:
        return [*blocks, Text(["No object was taken for one of another class."])]
    number = f"the {MOST_PAIRS} most frequent of {len(pairs.rows):,} pairs"
    title = pairs.title + (f": {number}" if len(pairs.rows) > MOST_PAIRS else "")
    return [*blocks, replace(pairs, title=title, rows=pairs.rows[:MOST_PAIRS])]


PAIR_COLUMNS = (
    text_column("true class", name="true"),
    text_column("predicted class", name="predicted"),
    Column("boxes", ",d"),
    Column("share of true", ".1%", name="share", meaning="Of the true class's objects"),
)


def pairs_table(material: Material) -> Table:
    """Return all pairs of classes of which one was taken for the other, the most frequent first."""
    names = material.annotations.category_names
    rows = [
        (names[pair.true_class], names[pair.predicted_class], pair.boxes, pair.share)
        for pair in confused_pairs(material.mistakes.matrix)
    ]
    return Table("Class swaps", PAIR_COLUMNS, rows)


CLASS_COLUMNS = (
    text_column("class", name="name"),
    Column("AP", ".3f", name="map", meaning="Average precision, mean over IoU 0.50 to 0.95"),
    Column("AP50", ".3f", name="map_50", meaning="Average precision at IoU 0.50"),
    Column("best threshold", "g", name="threshold", meaning="Score with the highest F1"),
    Column("precision", ".0%", meaning="Share of its boxes above the threshold that are right"),
    Column("recall", ".0%", meaning="Share of its objects that are found above the threshold"),
    Column("F1", ".3f", name="f1", meaning="Harmonic mean of precision and recall"),
    Column("objects", ",d", name="true_boxes", meaning="Labelled boxes, without crowds"),
)


def classes_table(material: Material) -> Table:
    """Return AP, best threshold, precision and recall of each class, the lowest AP first."""
    rows = []
    for curve, result in zip(material.curves, material.evaluation.classes, strict=True):
        best = curve.best
        point = (best.threshold, best.precision, best.recall, best.f1) if best else [None] * 4
        numbers = [None if math.isnan(value) else value for value in (result.map, result.map_50)]
        rows.append((result.name, *numbers, *point, result.true_boxes))
    rows.sort(key=lambda row: (row[1] is None, row[1], row[0]))
    best = material.best
    totals: list[tuple[object, ...]] = []
    if best:
        summary = material.evaluation.summary
        label = Cell("all, one threshold")
        totals = [(label, summary["map"], summary["map_50"], best.threshold, best.precision,
                   best.recall, best.f1, material.joint.true_boxes)]  # fmt: skip
    notes = (
        "Precision, recall and F1 are at IoU 0.50, with boxes from the best threshold of the class "
        "upwards. A threshold lies between two scores of these images: of few objects it is a "
        "rough guess. Empty: no object, or no box is right.",
        "`--score` of `predict` is one threshold for all classes: the last line.",
    )
    return Table("All classes, the weakest first", CLASS_COLUMNS, rows, totals=totals, notes=notes)


def curve_blocks(material: Material) -> list[Block]:
    """Return precision against recall, and F1 against score, of all classes together and each."""
    found = [
        (result, curve)
        for curve, result in zip(material.curves, material.evaluation.classes, strict=True)
        if curve.best is not None
    ]
    if not found:
        return []
    found.sort(key=lambda pair: (pair[0].map, pair[0].name))
    everything = ("all classes, one threshold", class_plots("all classes", material.joint))
    groups = [
        (f"{result.name}: AP50 {result.map_50:.3f}", class_plots(result.name, curve))
        for result, curve in found[:CURVE_CLASSES]
    ]
    if len(found) <= OPEN_CLASSES:
        return [Plots([everything, *groups], CURVES_CAPTION)]
    number = f"{len(found)} classes, the weakest first"
    if len(found) > CURVE_CLASSES:
        number = f"the {CURVE_CLASSES} weakest of {len(found)} classes"
    return [
        Plots([everything], CURVES_CAPTION),
        Plots(groups, CURVES_CAPTION, fold=f"Curves of {number}"),
    ]


CURVES_CAPTION = (
    "Left: precision (upwards) against recall (to the right), at IoU 0.50; the more of the square "
    "is below the line, the better. Right: F1 against the score from which boxes are kept; the "
    "dashed line is the best threshold. All axes run from 0 to 1. Classes without a right box have "
    "no curve."
)


def class_plots(name: str, curve: Curve) -> tuple[Plot, Plot]:
    """Return precision against recall, and F1 against score."""
    best = curve.best
    recall_precision = list(zip(curve.recall.tolist(), curve.precision.tolist(), strict=True))
    score_f1 = list(zip(curve.scores.tolist(), curve.f1.tolist(), strict=True))
    return (
        Plot(
            f"Precision against recall of {name}",
            [Line("first", thin_out(recall_precision))],
            axis="precision by recall",
        ),
        Plot(
            f"F1 against score of {name}",
            [Line("second", thin_out(score_f1))],
            mark=best.threshold if best else None,
            axis=f"F1 by score, best at {best.threshold:g}" if best else "F1 by score",
        ),
    )


def thin_out(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most `CURVE_POINTS` points, evenly spread along the horizontal axis."""
    if len(points) <= CURVE_POINTS:
        return points
    places = np.array([x for x, _ in points])
    targets = np.linspace(places[0], places[-1], CURVE_POINTS)
    ascending = places[-1] >= places[0]
    nearest = np.searchsorted(places if ascending else -places, targets if ascending else -targets)
    rows = np.unique(np.minimum(nearest, len(points) - 1))
    return [points[row] for row in rows.tolist()]


def curve_records(curve: Curve) -> list[dict[str, float]]:
    """Return the points of a class's curve that the page shows, for JSON."""
    rows = zip(curve.scores, curve.precision, curve.recall, curve.f1, strict=True)
    names = ("score", "precision", "recall", "f1")
    points = [dict(zip(names, map(float, row), strict=True)) for row in rows]
    wanted = {score for score, _ in thin_out([(point["score"], 0.0) for point in points])}
    return [point for point in points if point["score"] in wanted]


WORDS = (
    ("score", "How sure the detector is of a box, from 0 to 1."),
    ("threshold", "The score from which a box is kept. A higher one gives fewer wrong boxes and "
                  "misses more objects."),
    ("precision", "The share of the boxes that are right: of ten boxes, how many show what they "
                  "say?"),
    ("recall", "The share of the objects that are found: of ten objects, how many have a box?"),
    ("F1", "One number for both, high only if precision and recall are."),
    ("IoU", "Overlap of two boxes: the area they share divided by the area they cover together. "
            "From 0.50 on, a box counts as found here."),
    ("AP, mAP", "Average precision: the mean of the precision over all recalls, so over all "
                "thresholds. mAP is the mean over the classes, and over IoU 0.50 to 0.95; mAP50 is "
                "at IoU 0.50 only."),
    ("mAR", "The mean recall with all boxes, up to 100 in an image and class."),
)  # fmt: skip
