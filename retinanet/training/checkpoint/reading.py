"""Reading checkpoints: nothing of one is used before its SHA-256 was found to be right."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.optim import Optimizer

from retinanet.errors import InputError
from retinanet.model import RetinaNet
from retinanet.regular_files import open_regular
from retinanet.training.checkpoint.finding import find_checkpoint, newest_first
from retinanet.training.checkpoint.state import (
    MODEL_FILE,
    OPTIMIZER_FILE,
    RANKS_FILE,
    STATE_FILE,
    ModelDescription,
    State,
    TrainingPosition,
    read_state,
)
from retinanet.training.nonfinite import require_finite_tensors
from retinanet.training.optimizer_state import optimizer_state
from retinanet.training.rank_states import RankState, rank_states


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's JSON, and where its tensors are."""

    folder: Path
    state: State

    @property
    def model(self) -> ModelDescription:
        """What it takes to build the model."""
        return self.state.model

    @property
    def position(self) -> TrainingPosition:
        """How far the run had come."""
        return self.state.position

    @property
    def trains_norms_on_ranks(self) -> bool:
        """Whether each rank has running statistics of its own."""
        return self.model.norm == "batch" and len(self.state.random_states) > 1

    def require_whole(self) -> None:
        """Check that nothing is missing to resume, and that every part is what was written.

        Raises:
            InputError: Names the first file that is missing, cut short, changed, or holds a value
                that is infinite or NaN.
        """
        ranks = (RANKS_FILE,) if self.trains_norms_on_ranks else ()
        for name in dict.fromkeys((MODEL_FILE, OPTIMIZER_FILE, *ranks, *self.state.parts)):
            file = self.require_unchanged(name)
            require_finite_tensors(mapped_tensors(file), file=file)

    def require_unchanged(self, name: str) -> Path:
        """See that a part is what was written; returns the file.

        Raises:
            InputError: It is missing, cut short or changed.
        """
        file = self.folder / name
        part = self.state.parts.get(name)
        if part is None:
            raise InputError(f"{self.folder / STATE_FILE}: names no {name}; use another checkpoint")
        try:
            size = file.stat().st_size
            if size != part.bytes:
                raise InputError(f"{file}: damaged: {size} bytes, {part.bytes} were written")
            found = file_digest(file)
        except OSError as error:
            raise InputError(f"{file}: cannot be read: {error.strerror}") from error
        if found != part.sha256:
            raise InputError(f"{file}: damaged: its SHA-256 is not the one that was written")
        return file

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return copies of the tensors of a part, so that the file need not stay.

        Raises:
            InputError: It is not what was written, not safetensors, or holds a value that is
                infinite or NaN.
        """
        file = self.require_unchanged(name)
        tensors = {key: mapped.clone() for key, mapped in mapped_tensors(file).items()}
        require_finite_tensors(tensors, file=file)
        return tensors

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
        tensors = self.tensors(MODEL_FILE)
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            detail = " ".join(str(error).split())[:200]
            file = self.folder / MODEL_FILE
            raise InputError(f"{file}: does not fit the configured model: {detail}") from error

    def load_training_state(self, model: RetinaNet, optimizer: Optimizer) -> None:
        """Put weights and the optimizer's state back as they were.

        Raises:
            InputError: A file cannot be read, or belongs to another model.
        """
        self.load_weights(model)
        tensors = self.tensors(OPTIMIZER_FILE)
        state = optimizer_state(tensors, model, file=self.folder / OPTIMIZER_FILE)
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})

    def rank_states(self) -> list[RankState]:
        """What each rank had of its own.

        Raises:
            InputError: A file cannot be read.
        """
        statistics = self.tensors(RANKS_FILE) if RANKS_FILE in self.state.parts else {}
        states = rank_states(self.state.random_states, statistics)
        if len({frozenset(state.statistics) for state in states}) > 1:
            file = self.folder / RANKS_FILE
            raise InputError(f"{file}: ranks have statistics of different norms")
        return states


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint's JSON; its tensors are read when they are asked for.

    Args:
        path: See `find_checkpoint`.

    Raises:
        InputError: There is no checkpoint, or its `state.json` is not ours or damaged.
    """
    folder = find_checkpoint(path)
    return Checkpoint(folder, read_state(folder))


def newest_whole(checkpoints: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint below `checkpoints/` of which every part is what was written.

    Returns:
        The checkpoint, or None where there is none; and what is wrong with each newer one.
    """
    problems = []
    for folder in newest_first(checkpoints):
        try:
            checkpoint = Checkpoint(folder, read_state(folder))
            checkpoint.require_whole()
        except InputError as error:
            problems.append(str(error))
        else:
            return checkpoint, problems
    return None, problems


def mapped_tensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file; the file is mapped as long as one of them lives.

    Raises:
        InputError: It cannot be read, or is not safetensors.
    """
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{file}: cannot be read as safetensors: {error}") from error


def file_digest(file: Path) -> str:
    """SHA-256 of a file."""
    with open_regular(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
