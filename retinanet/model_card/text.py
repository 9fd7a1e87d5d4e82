"""A model card's text: Markdown with a head of YAML, as hubs of models read them.

The fields of the head are Hugging Face's (https://huggingface.co/docs/hub/model-cards).
"""

import io
import math
import re
import shlex
from collections.abc import Sequence
from typing import Any

from ruamel.yaml import YAML

from retinanet.evaluation.metric import ClassResult
from retinanet.model_card.facts import CardFacts, SplitFacts
from retinanet.model_card.limits import sentences
from retinanet.printable import printable

SUMMARY_ROWS = (
    ("map", "mAP, IoU 0.50:0.95"),
    ("map_50", "mAP, IoU 0.50"),
    ("map_75", "mAP, IoU 0.75"),
    ("map_small", "mAP of small objects, below 32×32 pixels"),
    ("map_medium", "mAP of medium objects"),
    ("map_large", "mAP of large objects, above 96×96 pixels"),
    ("mar_1", "mean recall, 1 box an image"),
    ("mar_10", "mean recall, 10 boxes an image"),
    ("mar_100", "mean recall, 100 boxes an image"),
)
CLASSES_SHOWN = 10
"""Of each end of the table, where there are more than twice as many."""
NAMES_SHOWN = 400
LONGEST = 200
"""Characters of a name or a path."""


def model_card(facts: CardFacts) -> str:
    """The whole card."""
    parts = [
        f"---\n{head(facts)}---",
        f"# {plain(facts.name)}: RetinaNet-ResNeXt50, step {facts.step}",
        f"A detector of {len(facts.classes)} classes: RetinaNet with a ResNeXt50-32x4d backbone "
        f"and a feature pyramid, {facts.parameters / 1e6:.1f} million parameters, for pictures of "
        f"{facts.image_size}×{facts.image_size} pixels. This page was written by the training from "
        "what it knows. Correct it, and it will not be written over.",
        f"## Numbers\n\n{summary_table(facts)}",
        classes_part(facts.classes),
        "## What it is for, and what not\n\n" + "\n".join(f"- {one}" for one in sentences(facts)),
        f"## Data\n\n{data_table(facts)}\n\nClasses: {class_names(facts)}",
        "## Training\n\n" + table(("what", "value"), [*facts.settings.items()]),
        f"## Use\n\n{commands(facts)}",
        "## Licence\n\nThe licence of these weights is for whoever trained them to choose, and the "
        "pictures that they were trained on may have a say in it: put it into this page, and into "
        "`license` in its head. The code that made them is under the Apache License 2.0.",
    ]
    return "\n\n".join(parts) + "\n"


def head(facts: CardFacts) -> str:
    """What programs read."""
    metrics = [
        {"type": name, "name": words, "value": round(facts.summary[name], 4)}
        for name, words in SUMMARY_ROWS
        if not math.isnan(facts.summary[name])
    ]
    dataset = "drawn scenes" if facts.is_drawn else short(facts.validation.annotations)
    result: dict[str, Any] = {
        "task": {"type": "object-detection"},
        "dataset": {"name": dataset, "type": "coco"},
        "metrics": metrics,
    }
    content = {
        "license": "unknown",
        "library_name": "pytorch",
        "pipeline_tag": "object-detection",
        "tags": ["object-detection", "retinanet", "resnext50_32x4d"],
        "model-index": [{"name": short(facts.name), "results": [result] if metrics else []}],
    }
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    text = io.StringIO()
    yaml.dump(content, text)
    return text.getvalue()


def summary_table(facts: CardFacts) -> str:
    """COCO's numbers on the validation pictures."""
    rows = [(words, shown(facts.summary[name])) for name, words in SUMMARY_ROWS]
    return table((f"COCO's metric on {facts.validation.number_of_images} pictures", "value"), rows)


def classes_part(classes: Sequence[ClassResult]) -> str:
    """A table of the classes; of many the best and the worst."""
    ranked = sorted((one for one in classes if not math.isnan(one.map)), key=lambda one: -one.map)
    title = "## Classes\n\n"
    if not ranked:
        return f"{title}No class could be measured: the pictures have no boxes."
    if len(ranked) > 2 * CLASSES_SHOWN:
        title += f"The {CLASSES_SHOWN} best and the {CLASSES_SHOWN} worst of {len(ranked)}:\n\n"
        ranked = [*ranked[:CLASSES_SHOWN], *ranked[-CLASSES_SHOWN:]]
    rows = [(one.name, shown(one.map), shown(one.map_50), str(one.true_boxes)) for one in ranked]
    return title + table(("class", "mAP", "mAP, IoU 0.50", "true boxes"), rows)


def data_table(facts: CardFacts) -> str:
    """The two splits."""

    def row(name: str, split: SplitFacts) -> tuple[str, ...]:
        counts = f"{split.number_of_images:,}", f"{split.number_of_boxes:,}"
        return name, *counts, split.annotations, split.images

    rows = [row("training", facts.train), row("validation", facts.validation)]
    return table(("split", "images", "boxes", "annotations", "folder"), rows)


def class_names(facts: CardFacts) -> str:
    """All, as far as a page can show them."""
    names = [plain(one.name) for one in facts.classes[:NAMES_SHOWN]]
    rest = len(facts.classes) - len(names)
    return ", ".join(names) + (f" and {rest} more" if rest else "")


def commands(facts: CardFacts) -> str:
    """How to find boxes, measure, and take the model elsewhere."""
    start = [facts.python, "-m", "retinanet"]
    checkpoint = ["--checkpoint", facts.checkpoint]
    lines = [
        [*start, "predict", *checkpoint, "photo.jpg"],
        [*start, "evaluate", *checkpoint, "--annotations", "mine.json", "--images", "photos"],
        [*start, "export", *checkpoint, "--out", "model.onnx"],
    ]
    text = "\n".join(printable(shlex.join(line)) for line in lines)
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"{fence}bash\n{text}\n{fence}"


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown's, whatever the cells hold."""
    lines = [heading, ["---"] * len(heading), *([plain(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plain(text: str) -> str:
    """Text within a line of Markdown that shows as it is."""
    return re.sub(r"([\\`*_\[\]<>|&~$])", r"\\\1", short(text))


def short(text: str) -> str:
    """Printable, and of a bounded length."""
    return printable(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…").strip()


def shown(value: float) -> str:
    """Three digits, or a dash where there was nothing to measure."""
    return "–" if math.isnan(value) else f"{value:.3f}"
