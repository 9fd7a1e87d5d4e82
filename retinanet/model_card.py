"""The model card of a checkpoint: Markdown with a YAML header, as model hubs expect it.

The fields of the header are Hugging Face's (https://huggingface.co/docs/hub/model-cards). Intended
use and limitations are derived from `CardFacts`, in the template. A card that a user has edited is
never replaced.
"""

import hashlib
import io
import json
import math
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from ruamel.yaml import YAML

from common.cli import installed_command
from common.console import clock
from common.errors import printable
from common.files import encoded, read_bytes, read_json_lines, read_text, replacing
from common.wording import counted, listed
from data.annotations import ImageSize, Resize, SplitName, shown_size
from data.dataset import DetectionDataset
from retinanet.config_file import configured_split
from retinanet.config_sections import TrainingConfig
from retinanet.config_types import Architecture, augmentation_names
from retinanet.evaluation.metric import METRICS, ClassResult, Evaluation
from retinanet.training.checkpoint import checkpoint_folder
from retinanet.training.components import RunComponents
from retinanet.training.detector_weights import describe_start
from retinanet.training.recorder import format_metric


@dataclass(frozen=True, kw_only=True)
class SplitFacts:
    """A split of the data set."""

    annotations: str
    images: str  # The folder
    number_of_images: int
    number_of_boxes: int


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """Facts about an evaluated checkpoint of the run `name`."""

    name: str
    checkpoint: str  # The folder, for command lines
    program: Sequence[str]  # The beginning of command lines
    step: int
    total_steps: int
    epochs: float
    image_size: ImageSize
    resize: Resize
    architecture: Architecture
    parameters: int
    is_pretrained: bool
    start: str  # The detector that the training started from; empty if none
    is_synthetic: bool  # Whether the training data is synthetic
    train: SplitFacts
    validation: SplitFacts
    shared_images: int  # Of the validation images those that are training images too
    settings: Mapping[str, str]  # Table of the training: names to values
    summary: Mapping[str, float]  # `METRICS` to values; NaN if not measured
    classes: tuple[ClassResult, ...]


WEAK = 0.1  # mAP below which a class counts as weak
FEW = 1000  # Number of training images below which the card has a warning
SUMMARY_ROWS = [
    (name, metric.label)
    for name, metric in METRICS.items()
    if metric.table == "precision" or metric.area == "all"
]
CLASSES_SHOWN = 10  # Best and worst classes each, if there are more than twice as many
NAMES_SHOWN = 400
LONGEST = 200  # Limit of a name or a path, in characters


def model_card(facts: CardFacts) -> str:
    """Return the text of the card: the template, in which all values are escaped."""
    ranked = sorted((c for c in facts.classes if not math.isnan(c.map)), key=lambda c: -c.map)
    shown = ranked
    if len(ranked) > 2 * CLASSES_SHOWN:
        shown = [*ranked[:CLASSES_SHOWN], *ranked[-CLASSES_SHOWN:]]
    shown_names = [escape_markdown(result.name) for result in facts.classes[:NAMES_SHOWN]]
    names = listed(shown_names, NAMES_SHOWN, count=len(facts.classes))
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else escape_markdown(str(value)),
        trim_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return environment.get_template("model_card.jinja").render(
        facts=facts,
        header=Markup(yaml_header(facts)),
        size=shown_size(facts.image_size),
        images=facts.validation.number_of_images,
        table=table,
        summary=[(label, format_metric(facts.summary[name])) for name, label in SUMMARY_ROWS],
        ranked=ranked,
        shown=[
            (c.name, format_metric(c.map), format_metric(c.map_50), str(c.true_boxes))
            for c in shown
        ],
        half=CLASSES_SHOWN,
        weak=sum(result.map < WEAK for result in ranked),
        limit=WEAK,
        few=FEW,
        splits=[
            (name, f"{split.number_of_images:,}", f"{split.number_of_boxes:,}", split.annotations,
             split.images)
            for name, split in (("training", facts.train), ("validation", facts.validation))
        ],
        names=Markup(names),
        settings=[*({"started from": facts.start} if facts.start else {}).items(),
                  *facts.settings.items()],
        commands=Markup(commands(facts)),
    )  # fmt: skip


def yaml_header(facts: CardFacts) -> str:
    """Return the YAML header for programs."""
    metrics = [
        {"type": name, "name": label, "value": round(facts.summary[name], 4)}
        for name, label in SUMMARY_ROWS
        if not math.isnan(facts.summary[name])
    ]
    dataset = "synthetic images" if facts.is_synthetic else shorten(facts.validation.annotations)
    result: dict[str, Any] = {
        "task": {"type": "object-detection"},
        "dataset": {"name": dataset, "type": "coco"},
        "metrics": metrics,
    }
    content = {
        "license": "unknown",
        "library_name": "pytorch",
        "pipeline_tag": "object-detection",
        "tags": ["object-detection", "retinanet", facts.architecture.backbone],
        "model-index": [{"name": shorten(facts.name), "results": [result] if metrics else []}],
    }
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    # ruamel's safe dumper would sort the keys.
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    text = io.StringIO()
    yaml.dump(content, text)
    return text.getvalue()


def commands(facts: CardFacts) -> str:
    """Return the commands to predict, evaluate and export."""
    start = facts.program
    checkpoint = ["--checkpoint", facts.checkpoint]
    lines = [
        [*start, "predict", *checkpoint, "photo.jpg"],
        [*start, "evaluate", *checkpoint, "--annotations", "mine.json", "--images", "photos"],
        [*start, "export", *checkpoint, "--out", "model.onnx"],
    ]
    text = "\n".join(printable(shlex.join(line)) for line in lines)
    # A path may contain backticks: the fence has to be longer than each run of them.
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"{fence}bash\n{text}\n{fence}"


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Return a Markdown table with escaped cells."""
    cells = [heading, ["---"] * len(heading), *(map(escape_markdown, row) for row in rows)]
    return Markup("\n".join(f"| {' | '.join(line)} |" for line in cells))


def escape_markdown(text: str) -> str:
    """Escape text within a line of Markdown."""
    # Besides Markdown: < and & begin HTML, and $ begins a formula on model hubs.
    return re.sub(r"([\\`*_\[\]<>|&~$])", r"\\\1", shorten(text))


def shorten(text: str) -> str:
    """Return printable text of a bounded length."""
    return printable(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…").strip()


CARD = "MODEL_CARD.md"
MARK = "<!-- Written by the training. SHA-256 of all above: "


def write_card(folder: Path, text: str) -> bool:
    """Write `MODEL_CARD.md` into a checkpoint's folder, and return whether it was written.

    A card that a user has edited is not changed. The folder is not created, so that a checkpoint
    removed in the meantime does not reappear. Raises OSError.
    """
    file = folder / CARD
    if os.path.lexists(file) and not is_unedited(read_bytes(file)):
        return False
    content = encoded(text)
    # Not write_atomically, which creates missing folders: a removed checkpoint would reappear.
    with replacing(file) as stream:
        stream.write(content + f"{MARK}{hashlib.sha256(content).hexdigest()} -->\n".encode())
    return True


def is_unedited(content: bytes) -> bool:
    """Return whether a card is unchanged since training wrote it."""
    text, mark, suffix = content.rpartition(MARK.encode())
    digest = hashlib.sha256(text).hexdigest().encode()
    return bool(mark) and suffix.split(b" ")[0] == digest


def update_card(
    run: RunComponents, evaluation: Evaluation, *, step: int, epochs: float, shared_images: int
) -> str | None:
    """Write the card of a step's evaluated checkpoint.

    `shared_images` is the number of validation images that are training images too. Return a
    message for the user if it was not written. No error ends the training.
    """
    folder = checkpoint_folder(run.folder.checkpoints, step)
    # Writing the checkpoint failed, or newer ones have replaced it.
    if not folder.is_dir():
        return None
    try:
        facts = CardFacts(
            name=run.config.run.name,
            checkpoint=str(folder),
            program=installed_command("retinanet"),
            step=step,
            total_steps=run.plan.total_steps,
            epochs=epochs,
            image_size=run.description.image_size,
            resize=run.description.resize,
            architecture=run.description.architecture,
            parameters=sum(value.numel() for value in run.model.parameters()),
            is_pretrained=run.config.model.pretrained_backbone is not None,
            start=describe_start(run.folder.start),
            is_synthetic=run.config.data.scenes is not None,
            train=split_facts(run, "train", run.data.train),
            validation=split_facts(run, "validation", run.data.validation),
            shared_images=shared_images,
            settings=describe_settings(run, step=step, epochs=epochs),
            summary=evaluation.summary,
            classes=evaluation.classes,
        )
        if not write_card(folder, model_card(facts)):
            return f"note: {folder / CARD} was edited and is not overwritten"
    except FileNotFoundError:
        # The checkpoint was just removed in favour of newer ones.
        return None
    # Any other error: a page must never end a training of days.
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) else None
        reason = reason or f"{type(error).__name__}: {error}"
        return f"warning: {folder / CARD}: cannot be written: {reason}; training continues"
    return None


def split_facts(run: RunComponents, name: SplitName, dataset: DetectionDataset) -> SplitFacts:
    """Return the facts of one split, with the number of images that the run uses."""
    settings = run.config.data
    root = settings.root if settings.scenes is None else run.folder.scenes
    split = configured_split(settings, name, root=root)
    return SplitFacts(
        annotations=str(split.annotations),
        images=str(split.images),
        number_of_images=len(dataset),
        number_of_boxes=len(dataset.annotations.boxes),
    )


def describe_rates(training: TrainingConfig) -> str:
    """Describe the learning rates of a run in a line."""
    schedule: str = training.schedule
    if schedule == "step":
        epochs = ", ".join(f"{milestone:g}" for milestone in training.milestones)
        schedule = f"× {training.milestone_factor:g} after {epochs} epochs"
    factor = training.body_learning_rate_factor
    body = "" if factor == 1 else f"; of the backbone's body × {factor:g}"
    warmup = f"after a warm-up of {training.warmup_epochs:g} epochs"
    return f"{training.learning_rate:g}, {schedule} {warmup}{body}"


def describe_average(decay: float | None) -> str:
    """Describe of which steps the weights are."""
    return "of this step" if decay is None else f"moving average over the steps, decay {decay:g}"


def describe_settings(run: RunComponents, *, step: int, epochs: float) -> dict[str, str]:
    """Return the run's settings, and from its files the machine, the time and the versions."""
    training, ranks = run.config.training, run.group.size
    where = counted(ranks, "rank")
    environment = json.loads(read_text(run.folder.path / "environment.json"))
    packages, code = environment.get("packages", {}), environment.get("code", {})
    # With evaluation.overlap, steps after the evaluated one are in the file already.
    seconds = [
        record["seconds"]
        for record in read_json_lines(run.folder.metrics)
        if record.get("kind") == "step" and record["step"] <= step
    ]
    return {
        "steps": f"{step} of {run.plan.total_steps}, {epochs:.4g} epochs",
        "images per step": f"{run.plan.images_per_step}, on {where}",
        "augmentation": ", ".join(augmentation_names(run.config.data.augmentation)) or "none",
        **run.rare_classes,
        "optimizer": training.optimizer,
        "learning rate": describe_rates(training),
        "weights": describe_average(training.ema),
        "precision": f"{run.description.precision}, engine {run.engine}",
        "norms": run.description.norm,
        "trainable layers of the backbone": f"{run.description.trainable_layers} of 5",
        "seed": str(run.config.run.seed),
        "time in steps": clock(math.fsum(seconds)),
        "processor": f"{environment.get('processor') or 'unknown'}, "
        f"{environment.get('usable_cpus', '?')} CPUs",
        "versions": ", ".join(f"{name} {version}" for name, version in packages.items()),
        "code": (code.get("commit") or "unknown")
        + (" with uncommitted changes" if code.get("is_modified") else ""),
    }
