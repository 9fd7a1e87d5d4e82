"""A run's facts for the model card of a checkpoint that was evaluated."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.dataset import DetectionDataset
from data.sources import SplitName
from retinanet.command_line import installed
from retinanet.configured_splits import configured_split
from retinanet.evaluation.metric import Evaluation
from retinanet.model_card.facts import CardFacts, SplitFacts
from retinanet.model_card.text import model_card
from retinanet.model_card.writing import CARD, write_card
from retinanet.progress import clock
from retinanet.training.checkpoint import TrainingPosition
from retinanet.training.checkpoint.writing import checkpoint_folder
from retinanet.training.metrics_file import read_metrics

if TYPE_CHECKING:
    from retinanet.training.run import Run


def leave_card(
    run: "Run", evaluation: Evaluation, *, position: TrainingPosition, epochs: float
) -> None:
    """Write the card of a checkpoint whose weights were evaluated, on rank 0.

    Nothing that goes wrong here ends a training: it is a warning.

    Args:
        run: The run.
        evaluation: Of the weights.
        position: Where they are.
        epochs: The same, with the share of the running one.
    """
    folder = checkpoint_folder(run.folder.checkpoints, position.step)
    if not folder.is_dir():  # it could not be written, or newer ones have taken its place
        return
    try:
        facts = facts_of(run, evaluation, folder=folder, step=position.step, epochs=epochs)
        if not write_card(folder, model_card(facts)):
            run.say(f"note: {folder / CARD} was edited, and stays as it is")
    except FileNotFoundError:
        return  # the checkpoint has just been removed, as newer ones are there
    except Exception as error:  # whatever it is, days of training are worth more than a page
        reason = (
            isinstance(error, OSError) and error.strerror
        ) or f"{type(error).__name__}: {error}"
        run.say(f"warning: {folder / CARD}: cannot be written: {reason}; training goes on")


def facts_of(
    run: "Run", evaluation: Evaluation, *, folder: Path, step: int, epochs: float
) -> CardFacts:
    """All that the run knows of a checkpoint."""
    return CardFacts(
        name=run.config.run.name,
        checkpoint=str(folder),
        python=installed("python"),
        step=step,
        total_steps=run.plan.total_steps,
        epochs=epochs,
        image_size=run.description.image_size,
        parameters=sum(one.numel() for one in run.model.parameters()),
        is_pretrained=run.config.model.pretrained_backbone is not None,
        is_drawn=run.config.data.scenes is not None,
        train=split_facts(run, "train", run.data.train),
        validation=split_facts(run, "validation", run.data.validation),
        settings={**settings_of(run, step=step, epochs=epochs), **circumstances(run, step=step)},
        summary=evaluation.summary,
        classes=evaluation.classes,
    )


def split_facts(run: "Run", name: SplitName, dataset: DetectionDataset) -> SplitFacts:
    """Of one split; images are those that are looked at."""
    settings = run.config.data
    root = settings.root if settings.scenes is None else run.folder.scenes
    split = configured_split(settings, name, root=root)
    return SplitFacts(
        annotations=str(split.annotations),
        images=str(split.images),
        number_of_images=len(dataset),
        number_of_boxes=len(dataset.annotations.boxes),
    )


def settings_of(run: "Run", *, step: int, epochs: float) -> dict[str, str]:
    """What was asked for."""
    training, ranks = run.config.training, run.group.size
    images = run.plan.images_per_batch * training.gradient_accumulation
    warmup = f"after a warm-up of {training.warmup_epochs:g} epochs"
    return {
        "steps": f"{step} of {run.plan.total_steps}, {epochs:.4g} epochs",
        "images in a step": f"{images}, by {ranks} {'rank' if ranks == 1 else 'ranks'}",
        "optimizer": training.optimizer,
        "learning rate": f"{training.learning_rate:g}, {training.schedule} {warmup}",
        "precision": f"{run.description.precision}, engine {run.engine}",
        "norms": run.description.norm,
        "layers of the backbone that train": f"{run.description.trainable_layers} of 5",
        "seed": str(run.config.run.seed),
    }


def circumstances(run: "Run", *, step: int) -> dict[str, str]:
    """Where, how long and with what, as the run's files have it."""
    environment = environment_of(run)
    packages = environment.get("packages", {})
    code = environment.get("code", {})
    commit = code.get("commit") or "not known"
    seconds = [one["seconds"] for one in read_metrics(run.folder.metrics) if is_step(one, step)]
    return {
        "time in steps": clock(math.fsum(seconds)),
        "processor": f"{environment.get('processor') or 'not known'}, "
        f"{environment.get('usable_cpus', '?')} CPUs",
        "versions": ", ".join(f"{name} {found}" for name, found in packages.items()),
        "code": commit + (" with changes of its own" if code.get("is_modified") else ""),
    }


def is_step(record: dict[str, Any], last: int) -> bool:
    """Whether a record of the metrics is of a step up to the last."""
    return record.get("kind") == "step" and record["step"] <= last


def environment_of(run: "Run") -> dict[str, Any]:
    """What the run wrote down of its surroundings when it began."""
    return json.loads((run.folder.path / "environment.json").read_text(encoding="utf-8"))
