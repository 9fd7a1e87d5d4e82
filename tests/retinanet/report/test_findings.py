"""What the page recommends, from splits whose numbers are known."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from data.annotations import Annotations
from retinanet.config_file import load_config
from retinanet.evaluation.matching import SplitDetections
from retinanet.evaluation.metric import coco_metric
from retinanet.report.curves import class_curves, class_thresholds, joint_curve
from retinanet.report.findings import all_suggestions
from retinanet.report.material import Material
from retinanet.report.mistakes import find_mistakes
from retinanet.report.sections import confusion_blocks, curve_blocks, summarize
from tests.retinanet.report.samples import (
    CAT,
    DOG,
    Predicted,
    True_,
    predictions,
    random_split,
    split,
)

LEFT, RIGHT, BIG = (0, 0, 50, 50), (100, 0, 150, 50), (0, 0, 198, 98)


def material(
    truth: Annotations,
    found: SplitDetections,
    *,
    maps: tuple[float, ...] = (),
    epochs: int = 8,
    overrides: tuple[str, ...] = (),
    trained_images: int | None = 0,
) -> Material:
    """Return the material of a run with an evaluation after each epoch, of `epochs` epochs."""
    curves = class_curves(truth, found)
    joint = joint_curve(curves)
    thresholds = class_thresholds(curves, default=joint.best.threshold if joint.best else 0.5)
    config = load_config("demo.yaml", [f"training.epochs={epochs}", "training.target_map=null",
                                       *overrides])  # fmt: skip
    records: list[dict[str, Any]] = [
        {"kind": "evaluation", "step": 10 * epoch, "epoch": epoch, "map": value}
        for epoch, value in enumerate(maps, 1)
    ]
    described: Any = SimpleNamespace(model=SimpleNamespace(image_size=320))
    return Material(
        checkpoint=described,
        precision="float32",
        run=None,
        config=config,
        dataset=SimpleNamespace(annotations=truth),  # type: ignore[arg-type]
        own_annotations=None,
        trained_images=trained_images,
        detections=found,
        evaluation=coco_metric(truth, found),
        curves=curves,
        joint=joint,
        thresholds=thresholds,
        mistakes=find_mistakes(truth, found, thresholds, images=3),
        records=records,
    )


def titles(given: Material) -> str:
    return "\n".join(suggestion.title for suggestion in all_suggestions(given))


def many(
    truth: list[True_], found: list[Predicted], *, images: int = 60
) -> tuple[Annotations, SplitDetections]:
    """Return the same image many times, so that there are boxes enough to measure."""
    return split(*[truth] * images), predictions(*[found] * images)


PERFECT = many([(CAT, LEFT), (DOG, RIGHT)], [(CAT, LEFT, 0.9), (DOG, RIGHT, 0.9)])


def test_perfect_detector_has_only_a_class_without_boxes() -> None:
    (finding,) = all_suggestions(material(*PERFECT))
    assert finding.evidence == "No box at all: 1 class."


def test_rising_map_asks_for_more_epochs() -> None:
    assert "mAP was still rising" in titles(material(*PERFECT, maps=(0.2, 0.3), epochs=2))
    assert "rising" not in titles(material(*PERFECT, maps=(0.2, 0.3, 0.31), epochs=3))


def test_falling_map_is_a_training_that_was_too_long() -> None:
    falling = material(*PERFECT, maps=(0.2, 0.4, 0.3), epochs=3)
    assert "went on too long" in titles(falling)
    assert (
        "after 2 epochs, has mAP 0.400, the last one 0.300" in all_suggestions(falling)[0].evidence
    )


@pytest.mark.parametrize(
    ("overrides", "maps", "endings"),
    [
        ((), (0.2, 0.3), set()),
        (("training.target_map=0.3",), (0.2, 0.3), {"target"}),
        (("training.target_map=0.3",), (0.4, 0.2), set()),  # It was continued with a higher target
        (("training.max_steps=20",), (0.2, 0.3), {"length"}),
        (("training.patience=2",), (0.3, 0.2, 0.1), {"patience"}),
        (("training.patience=3",), (0.3, 0.2, 0.1), set()),
        (("training.patience=2",), (0.1,) * 8, {"patience", "length"}),
        ((), (0.1,) * 8, {"length"}),
    ],
)
def test_end_of_a_run(
    overrides: tuple[str, ...], maps: tuple[float, ...], endings: set[str]
) -> None:
    given = material(*PERFECT, maps=maps, overrides=overrides)
    assert given.endings == endings
    assert ("is not finished" in titles(given)) is not bool(endings)


def test_detector_without_right_boxes_finds_nothing() -> None:
    nothing = material(*many([(CAT, LEFT)], [(CAT, RIGHT, 0.9)], images=7))
    assert "finds nothing yet" in titles(nothing)
    assert "there are only 7 labelled boxes" in titles(nothing)
    assert "finds none of the objects" in summarize(nothing)[1]
    assert curve_blocks(nothing) == []


@pytest.mark.parametrize(
    ("trained_images", "own", "summary", "title"),
    [
        (60, False, "the pictures it was trained on.", "are the images that the detector was"),
        (60, True, "the pictures it was trained on.", "are the images that the detector was"),
        (7, False, "7 of them are pictures it was trained on.", "trained on 7 of these 60 images"),
        (0, False, ": pictures it was not trained on.", ""),
        (0, True, ": pictures that were given, and that it was not trained on.", ""),
        (None, False, "so these may be among them.", ""),
        (None, True, ": pictures that were given; its training pictures are not here, so", ""),
    ],
)
def test_training_images_are_a_doubt(
    trained_images: int | None, own: bool, summary: str, title: str
) -> None:
    given = material(*PERFECT, trained_images=trained_images)
    given = replace(given, own_annotations=Path("mine.json") if own else None)
    assert summary in summarize(given)[0]
    assert title in titles(given) and ("trained on" in titles(given)) is bool(title)


TWO_CATS: list[True_] = [(CAT, LEFT), (CAT, RIGHT)]
ONE_OF_THREE = "60 of 180 boxes above the thresholds (33%)."


@pytest.mark.parametrize(
    ("truth", "found", "title", "evidence"),
    [
        (
            [(CAT, LEFT), (DOG, RIGHT)],
            [(DOG, LEFT, 0.95), (DOG, RIGHT, 0.9)],
            "classes are taken for one another",
            "cat taken for dog (60 times, 100%).",
        ),
        (
            [(CAT, LEFT), (DOG, RIGHT)],
            [(CAT, LEFT, 0.8)],
            "1 class is found much less well",
            "dog (AP50 0.00, 60 boxes)",
        ),
        (
            [(CAT, BIG), (CAT, (0, 0, 20, 20))],
            [(CAT, BIG, 0.8)],
            "small objects",
            "mAP is 0.000 for objects below 32×32 pixels, and 1.000 for objects above 96×96. The "
            "network sees each picture at 320×320 pixels.",
        ),
        *(
            (TWO_CATS, [(CAT, LEFT, 0.9), (CAT, box, 0.8), (CAT, RIGHT, 0.3)], title, ONE_OF_THREE)
            for box, title in (
                ((100, 60, 150, 90), "where nothing is labelled"),
                ((30, 0, 80, 50), "too far off"),
                ((0, 0, 50, 45), "more than one box"),
            )
        ),
        (
            TWO_CATS,
            [(CAT, LEFT, 0.9)],
            "objects are missed",
            "60 of 120 labelled objects have no box at all (50%).",
        ),
    ],
)
def test_weakness_is_named_with_its_numbers(
    truth: list[True_], found: list[Predicted], title: str, evidence: str
) -> None:
    given = material(*many(truth, found))
    [finding] = [suggestion for suggestion in all_suggestions(given) if title in suggestion.title]
    assert evidence in finding.evidence
    assert title not in titles(material(*PERFECT))


def test_many_classes_have_a_matrix_of_the_most_confused() -> None:
    truth, found = random_split(seed=1, images=200, classes=40)
    given = material(truth, found)
    matrix: Any = confusion_blocks(given)[0]
    assert len(matrix.rows) == 21 and matrix.rows[-1] == "nothing"
    assert matrix.columns[-2:] == ["missed", "other class"]
    counts = np.array(matrix.counts)
    names = list(truth.category_names)
    for row, name in enumerate(matrix.rows[:-1]):
        whole = given.mistakes.matrix[names.index(name)]
        assert counts[row].sum() == whole.sum() and counts[row, row] == whole[names.index(name)]
        assert counts[row, -2] == whole[-1]


@pytest.mark.parametrize(("classes", "folds"), [(3, [""]), (14, ["", "Curves of 14 classes, "])])
def test_curves_of_many_classes_are_folded(classes: int, folds: list[str]) -> None:
    ids = range(1, classes + 1)
    truth = split([(number, LEFT) for number in ids], names=[f"n{n}" for n in ids], ids=ids)
    found = predictions([(number, LEFT, 0.9) for number in ids])
    blocks: list[Any] = curve_blocks(material(truth, found))
    assert [block.fold.removesuffix("the weakest first") for block in blocks] == folds
    assert sum(len(block.groups) for block in blocks) == 1 + classes
