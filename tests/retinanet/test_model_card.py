import html
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from ruamel.yaml import YAML

from retinanet.config_types import DEFAULT_ARCHITECTURE
from retinanet.evaluation.metric import METRICS
from retinanet.model_card import CARD, CardFacts, SplitFacts, model_card, write_card
from tests.retinanet.report.samples import class_result

HOSTILE = (
    "a | b",
    "```\n---\nlicense: mit\n---",
    "<script>alert(1)</script>",
    "[x](http://x) ![y](z) `code` *bold* _low_ ~~gone~~",
    "\x1b[2J\u202e\ud800",
    "name: {yaml: [1, 2]} # 'quoted\" &anchor *alias !tag",
    "\\| --- |",
    "w" * 10_000,
)


def facts(**changes: Any) -> CardFacts:
    split = SplitFacts(
        annotations="a.json", images="photos", number_of_images=5000, number_of_boxes=9000
    )
    values = CardFacts(
        name="street",
        checkpoint="runs/street/checkpoints/step-000009",
        program=[".venv/bin/python", "-m", "retinanet"],
        step=9,
        total_steps=9,
        epochs=2.5,
        image_size=320,
        resize="square",
        architecture=DEFAULT_ARCHITECTURE,
        parameters=31_800_000,
        is_pretrained=True,
        start="",
        is_synthetic=False,
        train=split,
        validation=replace(split, annotations="b.json", number_of_images=500),
        shared_images=0,
        settings={"optimizer": "adam"},
        summary=dict.fromkeys(METRICS, 0.5),
        classes=(class_result("bus", 0.7), class_result("cup", 0.4)),
    )
    return replace(values, **changes)


def parse(text: str) -> tuple[Any, str]:
    """Return the header as read from YAML, and the body as HTML."""
    opening, head, body = text.split("---\n", maxsplit=2)
    assert opening == ""
    return YAML(typ="safe").load(head), MarkdownIt("commonmark").enable("table").render(body)


def limitations(**changes: Any) -> str:
    text = model_card(facts(**changes))
    return text.split("## Intended use and limitations")[1].split("\n## ")[0]


def test_header_has_the_fields_of_hubs() -> None:
    head, _ = parse(model_card(facts()))
    assert head["license"] == "unknown" and head["pipeline_tag"] == "object-detection"
    assert head["library_name"] == "pytorch"
    [model] = head["model-index"]
    [result_entry] = model["results"]
    assert model["name"] == "street" and result_entry["task"]["type"] == "object-detection"
    assert result_entry["dataset"] == {"name": "b.json", "type": "coco"}
    assert {"type": "map", "name": "mAP, IoU 0.50:0.95", "value": 0.5} in result_entry["metrics"]


def test_unmeasured_values_are_missing_in_the_header_and_dashes_in_the_table() -> None:
    summary = dict.fromkeys(METRICS, math.nan) | {"map": 0.25}
    head, body = parse(model_card(facts(summary=summary)))
    [metric] = head["model-index"][0]["results"][0]["metrics"]
    assert metric["value"] == 0.25
    assert "<td>mAP, IoU 0.50</td>\n<td>–</td>" in body
    empty = dict.fromkeys(METRICS, math.nan)
    head, body = parse(model_card(facts(summary=empty, classes=(class_result("bus", math.nan),))))
    assert head["model-index"][0]["results"] == []
    assert "No class was measured" in body


def test_best_and_worst_of_many_classes_are_shown() -> None:
    names = [class_result(f"class{number:03}", number / 100, number) for number in range(100)]
    _, body = parse(model_card(facts(classes=tuple(names))))
    shown = re.findall(r"<td>(class\d+)</td>", body)
    assert shown == [f"class{n:03}" for n in (*range(99, 89, -1), *range(9, -1, -1))]
    assert "The 10 best and 10 worst of 100" in body
    assert all(entry.name in body for entry in names)


def test_limitations_follow_from_the_facts() -> None:
    usual = limitations()
    for text in ("synthetic", "memorized", "set is small", "random weights", "not finished"):
        assert text not in usual
    train = facts().train
    assert "evaluated on its training images" in limitations(shared_images=500)
    some = "evaluated on 500 images of which 7 are training images: the metrics show how well"
    assert some in limitations(shared_images=7)
    assert "trained on synthetic images" in limitations(is_synthetic=True)
    assert "step 9 of 20" in limitations(total_steps=20)
    assert "set is small: 128 images" in limitations(train=replace(train, number_of_images=128))
    assert "random weights" in limitations(is_pretrained=False)
    classes = (class_result("bus", 0.7), class_result("cup", 0.05), class_result("cat", math.nan))
    assert "1 of 3 classes have no box" in limitations(classes=classes)
    assert "1 of 2 measured classes have a mAP below 0.1" in limitations(classes=classes)
    small = {**facts().summary, "map_small": 0.1}
    assert "Small objects are detected less reliably: mAP 0.100" in limitations(summary=small)
    assert "Small objects" not in limitations(summary={**facts().summary, "map_small": math.nan})


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_and_paths_are_escaped(name: str) -> None:
    split = replace(facts().train, annotations=name, images=name)
    text = model_card(
        facts(
            name=name,
            checkpoint=name,
            train=split,
            validation=split,
            settings={name: name},
            classes=(class_result(name, 0.7), class_result("cup", 0.4)),
        )
    )
    head, body = parse(text)
    usual_head, usual = parse(model_card(facts(validation=facts().train)))
    assert head.keys() == usual_head.keys() and head["license"] == "unknown"
    for tag in ("table", "tr", "td", "th", "h1", "h2", "li", "pre"):
        assert body.count(f"<{tag}>") == usual.count(f"<{tag}>"), tag
    for tag in ("<script", "<a ", "<img", "<em>", "<strong>", "<del>", "<hr"):
        assert tag not in body
    shown = html.unescape(re.findall(r"<td>(.*)</td>", body)[-2])
    printable = "".join(char if char.isprintable() else "�" for char in name)
    assert shown[:50] == printable[:50]
    text.encode()


def test_card_is_replaced_unless_edited(tmp_path: Path) -> None:
    file = tmp_path / CARD
    assert write_card(tmp_path, "# First\n")
    assert write_card(tmp_path, "# Second\n")
    assert file.read_text().startswith("# Second\n<!-- Written by the training. SHA-256")
    edited = file.read_text().replace("Second", "Mine")
    file.write_text(edited)
    assert not write_card(tmp_path, "# Third\n")
    assert file.read_text() == edited
    file.write_text("# All mine\n")
    assert not write_card(tmp_path, "# Third\n")
    file.unlink()
    assert write_card(tmp_path, "# Third\n")
    assert [file.name for file in tmp_path.iterdir()] == [CARD]


def test_removed_checkpoint_is_not_recreated(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_card(tmp_path / "step-000001", "# Card\n")
    assert list(tmp_path.iterdir()) == []
