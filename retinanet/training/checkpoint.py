"""Checkpoints: safetensors for tensors, JSON for the rest; nothing is pickled.

A checkpoint is a folder `step-000500/` with `model.safetensors` (torchvision's names),
`optimizer.safetensors` and `state.json`. It gets its name once it is whole.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.optim import Optimizer

from data.classes import ClassMap
from retinanet.errors import InputError
from retinanet.model import RetinaNet
from retinanet.training.optimizer_state import optimizer_state
from retinanet.training.random_states import restore_random_states

FORMAT = 1
"""Raised when a reader of an older format could go wrong."""


@dataclass(frozen=True)
class ModelDescription:
    """What it takes to build the model that a checkpoint's weights fit."""

    num_classes: int
    norm: str
    trainable_layers: int
    image_size: int
    """Side of the square that images are resized to. [pixels]"""
    precision: str
    classes: dict[str, Any]
    """`ClassMap.to_json`: class indices, category ids and names."""


@dataclass(frozen=True)
class TrainingPosition:
    """How far a run has come."""

    step: int
    """Optimizer steps done."""
    steps_per_epoch: int
    map_here: float | None
    """mAP of the weights at this step; None where they were not evaluated."""
    best_map: float | None
    """Highest mAP of an evaluation so far."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's JSON, and where its tensors are."""

    folder: Path
    model: ModelDescription
    position: TrainingPosition
    config: dict[str, Any]
    random_states: dict[str, Any]

    def build_model(self) -> RetinaNet:
        """The model with the checkpoint's weights, channels_last.

        Raises:
            InputError: The weights cannot be read or do not fit.
        """
        model = RetinaNet(
            num_classes=self.model.num_classes,
            norm=self.model.norm,
            trainable_layers=self.model.trainable_layers,
        )
        self.load_weights(model)
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def load_weights(self, model: RetinaNet) -> None:
        """Put the checkpoint's weights into a model.

        Raises:
            InputError: The weights cannot be read or do not fit.
        """
        file = self.folder / "model.safetensors"
        try:
            model.load_state_dict(read_tensors(file))
        except RuntimeError as error:
            detail = " ".join(str(error).split())[:200]
            raise InputError(f"{file}: does not fit the configured model: {detail}") from error

    def load_training_state(self, model: RetinaNet, optimizer: Optimizer) -> None:
        """Put weights, optimizer and random states back as they were.

        Raises:
            InputError: A file cannot be read, or belongs to another model.
        """
        self.load_weights(model)
        file = self.folder / "optimizer.safetensors"
        tensors = read_tensors(file)
        torch_state = tensors.pop("random.torch", None)
        state = optimizer_state(tensors, model, file=file)
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        try:
            restore_random_states(self.random_states, torch_state)
        except (LookupError, TypeError, ValueError, OverflowError, RuntimeError) as error:
            state_file = self.folder / "state.json"
            raise InputError(f"{state_file}: random_states: damaged: {error!r}") from error


def find_checkpoint(path: Path) -> Path:
    """The checkpoint folder that a user's path means.

    Args:
        path: A checkpoint's folder, a file in it, or a run's folder (its best, else its last).

    Raises:
        InputError: There is none.
    """
    candidates = (
        path,
        path.parent,
        path / "checkpoints" / "best",
        path / "checkpoints" / "last",
        path / "best",
        path / "last",
    )
    if path.exists():
        for candidate in candidates:
            if (candidate / "state.json").is_file():
                return candidate
    reason = "holds no checkpoint" if path.exists() else "does not exist"
    raise InputError(f"{path}: {reason}; give runs/NAME/checkpoints/best or a folder like it")


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint's JSON; its tensors are read when they are asked for.

    Raises:
        InputError: There is no checkpoint, or its `state.json` is not ours or damaged.
    """
    folder = find_checkpoint(path)
    file = folder / "state.json"
    try:
        state = json.loads(file.read_text(encoding="utf-8"))
        written_format = state["format"]
        checkpoint = Checkpoint(
            folder=folder,
            model=ModelDescription(**state["model"]),
            position=TrainingPosition(**state["position"]),
            config=state["config"],
            random_states=state["random_states"],
        )
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file}: not a checkpoint's state: {error!r}") from error
    if written_format != FORMAT:
        raise InputError(f"{file}: format {written_format!r}; this version reads {FORMAT}")
    try:
        ClassMap.from_json(checkpoint.model.classes)
    except (InputError, AttributeError) as error:
        raise InputError(f"{file}: {error}") from error
    return checkpoint


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        InputError: It is missing, truncated, or of another format.
    """
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{file}: cannot be read as safetensors: {error}") from error
