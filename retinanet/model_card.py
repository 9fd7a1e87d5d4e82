"""The model card beside a checkpoint: Markdown with a head of YAML, as model hubs read them.

The fields of the head are Hugging Face's (https://huggingface.co/docs/hub/model-cards). What the
card says a model is for, and what not, follows from `CardFacts`. A card that a user has edited is
never replaced.
"""

import hashlib
import io
import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from common.cli import installed
from common.console import clock
from common.errors import printable
from common.files import read_json_lines
from data.annotations import SplitName
from data.dataset import DetectionDataset
from retinanet.config_file import configured_split
from retinanet.evaluation.metric import METRICS, ClassResult, Evaluation
from retinanet.training.checkpoint import checkpoint_folder
from retinanet.training.recorder import format_metric
from retinanet.training.run_folder import RunFacts


@dataclass(frozen=True, kw_only=True)
class SplitFacts:
    """A split of the data set."""

    annotations: str
    images: str  # The folder
    number_of_images: int
    number_of_boxes: int


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """Facts about a checkpoint that was evaluated, of the run `name`."""

    name: str
    checkpoint: str  # The folder, as commands take it
    python: str  # The interpreter, as commands take it
    step: int
    total_steps: int
    epochs: float
    image_size: int
    parameters: int
    is_pretrained: bool
    is_drawn: bool  # Whether the data are synthetic scenes
    train: SplitFacts
    validation: SplitFacts
    settings: Mapping[str, str]  # How it was trained: a name and a value a row
    summary: Mapping[str, float]  # `METRICS` to values; nan where nothing could be measured
    classes: tuple[ClassResult, ...]


WEAK = 0.1  # mAP of a class that is hardly found
FEW = 1000  # Training pictures below which a detector of photographs has seen little


def sentences(facts: CardFacts) -> Iterator[str]:
    """Yield sentences on what the model is for and what not, the most important first."""
    if facts.is_drawn:
        yield (
            "It was trained on drawn scenes: it shows that training works here, and finds nothing "
            "useful in photographs."
        )
    else:
        yield (
            "It is for pictures like those that it was trained on, and for the classes below alone."
        )
    if facts.train.annotations == facts.validation.annotations:
        yield (
            "It was evaluated on the pictures that it was trained on: the numbers say how well it "
            "has learnt them by heart, and nothing of how it does on others."
        )
    if facts.step < facts.total_steps:
        yield f"It is of step {facts.step} of {facts.total_steps}: the training was not at its end."
    if not facts.is_drawn and facts.train.number_of_images < FEW:
        yield f"{facts.train.number_of_images} pictures are few to learn from."
    if not facts.is_pretrained:
        yield "The training began with random weights, not with those of a pretrained backbone."
    measured = [result for result in facts.classes if not math.isnan(result.map)]
    if unknown := len(facts.classes) - len(measured):
        yield (
            f"{unknown} of {len(facts.classes)} classes have no box in the pictures of the "
            "evaluation: how well they are found is not known."
        )
    if weak := sum(result.map < WEAK for result in measured):
        yield f"{weak} of {len(measured)} measured classes have a mAP below {WEAK}."
    small, large = facts.summary["map_small"], facts.summary["map_large"]
    if small < large / 2:  # false where one is not known
        yield (
            f"Small objects are found less well: mAP {small:.3f} below 32×32 pixels, {large:.3f} "
            "above 96×96."
        )
    yield (
        f"Pictures are squeezed to {facts.image_size}×{facts.image_size} pixels: what is a few "
        "pixels wide after that is lost."
    )
    yield (
        "Other cameras, places, seasons and people than those of its pictures were not measured. "
        "Before it decides anything that matters, evaluate it on pictures of where it is to work."
    )


SUMMARY_ROWS = [
    (name, metric.label)
    for name, metric in METRICS.items()
    if metric.table == "precision" or metric.area == "all"
]
CLASSES_SHOWN = 10  # Of each end of the table, where there are more than twice as many
NAMES_SHOWN = 400
LONGEST = 200  # Characters of a name or a path


def model_card(facts: CardFacts) -> str:
    """Return the whole card."""
    summary = [(words, format_metric(facts.summary[name])) for name, words in SUMMARY_ROWS]
    splits = [
        (name, f"{split.number_of_images:,}", f"{split.number_of_boxes:,}", split.annotations,
         split.images)
        for name, split in (("training", facts.train), ("validation", facts.validation))
    ]  # fmt: skip
    names = ", ".join(plain(result.name) for result in facts.classes[:NAMES_SHOWN])
    if len(facts.classes) > NAMES_SHOWN:
        names += f" and {len(facts.classes) - NAMES_SHOWN} more"
    measured_on = f"COCO's metric on {facts.validation.number_of_images} pictures"
    parts = [
        f"---\n{head(facts)}---",
        f"# {plain(facts.name)}: RetinaNet-ResNeXt50, step {facts.step}",
        f"A detector of {len(facts.classes)} classes: RetinaNet with a ResNeXt50-32x4d backbone "
        f"and a feature pyramid, {facts.parameters / 1e6:.1f} million parameters, for pictures of "
        f"{facts.image_size}×{facts.image_size} pixels. This page was written by the training from "
        "what it knows. Correct it, and it will not be written over.",
        "## Numbers\n\n" + table((measured_on, "value"), summary),
        classes_part(facts.classes),
        "## What it is for, and what not\n\n" + "\n".join(f"- {text}" for text in sentences(facts)),
        "## Data\n\n" + table(("split", "images", "boxes", "annotations", "folder"), splits),
        f"Classes: {names}",
        "## Training\n\n" + table(("what", "value"), [*facts.settings.items()]),
        f"## Use\n\n{commands(facts)}",
        "## Licence\n\nThe licence of these weights is for whoever trained them to choose, and the "
        "pictures that they were trained on may have a say in it: put it into this page, and into "
        "`license` in its head. The code that made them is under the Apache License 2.0.",
    ]
    return "\n\n".join(parts) + "\n"


def head(facts: CardFacts) -> str:
    """Return the YAML that programs read."""
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


def classes_part(classes: Sequence[ClassResult]) -> str:
    """Return a table of the classes; of many the best and the worst."""
    ranked = sorted((c for c in classes if not math.isnan(c.map)), key=lambda c: -c.map)
    title = "## Classes\n\n"
    if not ranked:
        return f"{title}No class could be measured: the pictures have no boxes."
    if len(ranked) > 2 * CLASSES_SHOWN:
        title += f"The {CLASSES_SHOWN} best and the {CLASSES_SHOWN} worst of {len(ranked)}:\n\n"
        ranked = [*ranked[:CLASSES_SHOWN], *ranked[-CLASSES_SHOWN:]]
    rows = [
        (c.name, format_metric(c.map), format_metric(c.map_50), str(c.true_boxes)) for c in ranked
    ]
    return title + table(("class", "mAP", "mAP, IoU 0.50", "true boxes"), rows)


def commands(facts: CardFacts) -> str:
    """Return commands that predict, evaluate and export."""
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
    """Return a Markdown table, whatever the cells hold."""
    lines = [heading, ["---"] * len(heading), *([plain(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plain(text: str) -> str:
    """Escape text within a line of Markdown."""
    return re.sub(r"([\\`*_\[\]<>|&~$])", r"\\\1", short(text))


def short(text: str) -> str:
    """Return printable text of a bounded length."""
    return printable(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…").strip()


CARD = "MODEL_CARD.md"
MARK = "<!-- Written by the training. SHA-256 of all above: "


def write_card(folder: Path, text: str) -> bool:
    """Write `MODEL_CARD.md` into a checkpoint's folder, and return whether it was written.

    A card that a user has edited stays. The folder is not made: a checkpoint that was removed
    meanwhile does not come back. Raises OSError.
    """
    file = folder / CARD
    if file.exists() and not is_ours(file.read_bytes()):
        return False
    content = text.encode("utf-8", "backslashreplace")
    partial = folder / f".{CARD}.partial"
    try:
        partial.write_bytes(content + f"{MARK}{hashlib.sha256(content).hexdigest()} -->\n".encode())
        partial.replace(file)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    return True


def is_ours(content: bytes) -> bool:
    """Return whether a card is as the training has written it."""
    text, mark, rest = content.rpartition(MARK.encode())
    digest = hashlib.sha256(text).hexdigest().encode()
    return bool(mark) and rest.split(b" ")[0] == digest


def leave_card(run: RunFacts, evaluation: Evaluation, *, step: int, epochs: float) -> str | None:
    """Write the card of the checkpoint of a step, whose weights were evaluated.

    Return a line for the user where it was not written. Nothing that goes wrong ends a training.
    """
    folder = checkpoint_folder(run.folder.checkpoints, step)
    if not folder.is_dir():  # it could not be written, or newer ones have taken its place
        return None
    try:
        facts = CardFacts(
            name=run.config.run.name,
            checkpoint=str(folder),
            python=installed("python"),
            step=step,
            total_steps=run.total_steps,
            epochs=epochs,
            image_size=run.model.image_size,
            parameters=run.parameters,
            is_pretrained=run.config.model.pretrained_backbone is not None,
            is_drawn=run.config.data.scenes is not None,
            train=split_facts(run, "train", run.data.train),
            validation=split_facts(run, "validation", run.data.validation),
            settings=settings_of(run, step=step, epochs=epochs),
            summary=evaluation.summary,
            classes=evaluation.classes,
        )
        if not write_card(folder, model_card(facts)):
            return f"note: {folder / CARD} was edited, and stays as it is"
    except FileNotFoundError:
        return None  # the checkpoint has just been removed, as newer ones are there
    except Exception as error:  # whatever it is, days of training are worth more than a page
        reason = error.strerror if isinstance(error, OSError) else None
        reason = reason or f"{type(error).__name__}: {error}"
        return f"warning: {folder / CARD}: cannot be written: {reason}; training goes on"
    return None


def split_facts(run: RunFacts, name: SplitName, dataset: DetectionDataset) -> SplitFacts:
    """Return the facts of one split; its images are those that training looks at."""
    settings = run.config.data
    root = settings.root if settings.scenes is None else run.folder.scenes
    split = configured_split(settings, name, root=root)
    return SplitFacts(
        annotations=str(split.annotations),
        images=str(split.images),
        number_of_images=len(dataset),
        number_of_boxes=len(dataset.annotations.boxes),
    )


def settings_of(run: RunFacts, *, step: int, epochs: float) -> dict[str, str]:
    """Return the run's settings, and from its files where, how long and with what it trained."""
    training, ranks = run.config.training, len(run.hosts)
    environment = json.loads((run.folder.path / "environment.json").read_text(encoding="utf-8"))
    packages, code = environment.get("packages", {}), environment.get("code", {})
    seconds = [
        record["seconds"]
        for record in read_json_lines(run.folder.metrics)
        if record.get("kind") == "step" and record["step"] <= step
    ]
    return {
        "steps": f"{step} of {run.total_steps}, {epochs:.4g} epochs",
        "images in a step": f"{run.images_per_step}, by {ranks} "
        f"{'rank' if ranks == 1 else 'ranks'}",
        "optimizer": training.optimizer,
        "learning rate": f"{training.learning_rate:g}, {training.schedule} after a warm-up of "
        f"{training.warmup_epochs:g} epochs",
        "precision": f"{run.model.precision}, engine {run.engine}",
        "norms": run.model.norm,
        "layers of the backbone that train": f"{run.model.trainable_layers} of 5",
        "seed": str(run.config.run.seed),
        "time in steps": clock(math.fsum(seconds)),
        "processor": f"{environment.get('processor') or 'not known'}, "
        f"{environment.get('usable_cpus', '?')} CPUs",
        "versions": ", ".join(f"{name} {version}" for name, version in packages.items()),
        "code": (code.get("commit") or "not known")
        + (" with changes of its own" if code.get("is_modified") else ""),
    }
