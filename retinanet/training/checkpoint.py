"""Checkpoints: safetensors for tensors, JSON for the rest, a SHA-256 of every part.

A checkpoint is a folder `step-000500/` with `model.safetensors` (torchvision's names),
`optimizer.safetensors`, for several ranks with norms that train `ranks.safetensors`, and
`state.json`. With `training.ema` the model's file has the averages, for everyone who uses the
model, and `raw.safetensors` the weights with which training continues. A checkpoint gets its name
once it is complete and on the disk. Nothing is pickled.

The SHA-256 of a part is checked before the part is used. The optimizer's state is stored as tensors
under the parameters' names.
"""

import hashlib
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from common.errors import InputError
from common.files import (
    PARTIAL,
    encoded,
    flush_content,
    flush_to_disk,
    new_folder_beside,
    open_regular,
    or_unreadable,
    put_in_place,
    replacing,
    temporary_name,
)
from common.walk import real_path
from retinanet.config_types import BEST, LAST, STATE_FILE, find_checkpoint
from retinanet.engine.kernel_calls import match_memory_format
from retinanet.model.anchors import ANCHORS_PER_LOCATION
from retinanet.model.retinanet import LOGITS, RetinaNet
from retinanet.training.ema import WeightAverage, averaged_tensors
from retinanet.training.nonfinite import require_finite_tensors
from retinanet.training.progress import Progress
from retinanet.training.train_state import (
    MODEL_FILE,
    OPTIMIZER_FILE,
    RANKS_FILE,
    RAW_FILE,
    ModelDescription,
    Part,
    RankState,
    State,
    rank_states,
    read_state,
    state_text,
)
from retinanet.training.weight_files import MOST_TENSORS, read_safetensors


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's JSON, and where its tensors are."""

    folder: Path
    state: State

    @property
    def model(self) -> ModelDescription:
        """The model that the weights fit."""
        return self.state.model

    @property
    def position(self) -> Progress:
        """The run's progress."""
        return self.state.position

    def require_complete(self) -> None:
        """Check that all parts needed to resume are there and undamaged."""
        # If norms train, each rank has running statistics of its own.
        needs_ranks = self.model.norm == "batch" and len(self.state.random_states) > 1
        ranks = (RANKS_FILE,) if needs_ranks else ()
        for name in dict.fromkeys((MODEL_FILE, OPTIMIZER_FILE, *ranks, *self.state.parts)):
            file = self.require_unchanged(name)
            # The search reads each value once, so the file is mapped instead of copied.
            require_finite_tensors(self._mapped_tensors(file), file=file)

    def require_unchanged(self, name: str) -> Path:
        """Check a part against its recorded size and SHA-256; return the file."""
        file = self.folder / name
        part = self.state.parts.get(name)
        if part is None:
            raise InputError(
                f"{self.folder / STATE_FILE}: does not list {name}; use another checkpoint"
            )
        with or_unreadable(file):
            size = file.stat().st_size
            if size != part.bytes:
                raise InputError(f"{file}: damaged: {size} bytes, {part.bytes} were written")
            digest = file_digest(file)
        if digest != part.sha256:
            raise InputError(f"{file}: damaged: its SHA-256 is not the one that was written")
        return file

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return copies of the tensors of a part, so that its file may be removed.

        Raises:
            InputError: It is damaged, not safetensors, or holds a value that is infinite or NaN.
        """
        file = self.require_unchanged(name)
        tensors = {key: mapped.clone() for key, mapped in self._mapped_tensors(file).items()}
        require_finite_tensors(tensors, file=file)
        return tensors

    def _mapped_tensors(self, file: Path) -> dict[str, Tensor]:
        # Each rank has statistics of its own.
        ranks = len(self.state.random_states) if file.name == RANKS_FILE else 1
        return read_safetensors(file, most_tensors=ranks * MOST_TENSORS)[0]

    def build_model(self) -> RetinaNet:
        """Return a model with the checkpoint's weights, channels_last.

        Raises:
            InputError: The weights cannot be read or do not fit.
        """
        tensors, classes = self.tensors(MODEL_FILE), self.model.num_classes
        # Before the model is built: 99,999 classes take 8 GB, whatever the file has.
        rows = tensors.get(f"{LOGITS}.bias")
        if rows is None or rows.shape != (ANCHORS_PER_LOCATION * classes,):
            self._refuse_weights(f"{LOGITS}.bias is not that of {classes:,} classes")
        model = RetinaNet(
            num_classes=classes,
            norm=self.model.norm,
            trainable_layers=self.model.trainable_layers,
            architecture=self.model.architecture,
        )
        self._load_tensors(model, tensors)
        return model.to(memory_format=torch.channels_last)

    def _load_tensors(self, model: RetinaNet, tensors: dict[str, Tensor]) -> None:
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            self._refuse_weights(" ".join(str(error).split())[:200], error)

    def _refuse_weights(self, detail: str, cause: Exception | None = None) -> NoReturn:
        file = self.folder / MODEL_FILE
        raise InputError(f"{file}: does not fit the configured model: {detail}") from cause

    @property
    def has_average(self) -> bool:
        """Whether the weights are averages, beside which are those of the training."""
        return RAW_FILE in self.state.parts

    def load_training_state(
        self, model: RetinaNet, optimizer: Optimizer, average: WeightAverage | None = None
    ) -> None:
        """Restore weights, the optimizer's state, and the average of weights if both have one.

        Raises:
            InputError: A file cannot be read, or belongs to another model.
        """
        self._load_tensors(model, self.tensors(MODEL_FILE))
        if self.has_average:
            if average is not None:
                average.restart()
            self.load_raw_weights(model)
        source = str(self.folder / OPTIMIZER_FILE)
        load_optimizer(self.tensors(OPTIMIZER_FILE), model, optimizer, source=source)

    def load_raw_weights(self, model: RetinaNet) -> None:
        """Replace averages by the weights of the training.

        Raises:
            InputError: They cannot be read or do not fit.
        """
        file, expected = self.folder / RAW_FILE, averaged_tensors(model)
        tensors = self.tensors(RAW_FILE)
        for name in sorted(expected.keys() ^ tensors.keys()):
            problem = "is missing" if name in expected else "does not train in the configured model"
            raise InputError(f"{file}: {name} {problem}; use another checkpoint")
        for name, value in expected.items():
            if value.shape != tensors[name].shape:
                shape = list(tensors[name].shape)
                raise InputError(f"{file}: {name} has the shape {shape} of another model")
            value.copy_(tensors[name])

    def rank_states(self) -> list[RankState]:
        """Return the state of each rank.

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
    """Read the JSON of a checkpoint, see `find_checkpoint`; its tensors are read on demand.

    Raises:
        InputError: There is no checkpoint, or its `state.json` is damaged or of another kind.
    """
    folder = find_checkpoint(path)
    return Checkpoint(folder, read_state(folder))


def newest_valid(checkpoints: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest undamaged checkpoint, or None, and the problems of all newer ones.

    They are the folders below `checkpoints/`.
    """
    problems = []
    for folder in newest_first(checkpoints):
        try:
            checkpoint = Checkpoint(folder, read_state(folder))
            checkpoint.require_complete()
        except InputError as error:
            problems.append(str(error))
        else:
            return checkpoint, problems
    return None, problems


def file_digest(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with open_regular(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True)
class Contents:
    """The content of a checkpoint; tensors are copies, since training continues while writing."""

    parts: Mapping[str, Mapping[str, Tensor]]  # Tensors by file and name
    state: State  # Its `parts` are filled in after the files have been written


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous copies, which safetensors requires."""
    return {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def write_checkpoint(final: Path, contents: Contents, *, texts: Mapping[str, str] = {}) -> None:
    """Write a checkpoint's folder, whose parent must exist; replace an earlier one of this name.

    `texts`: other files, by name.

    Raises:
        OSError: It cannot be written; no partial files remain.
    """
    final.parent.stat()  # raises: the folder of a run that has gone is not made again
    with new_folder_beside(final) as partial:
        parts = {}
        for name, tensors in contents.parts.items():
            file = partial / name
            try:
                save_file(dict(tensors), file, metadata={"format": "pt"})
            # safetensors reports a full disk as an error of its own, without an error number.
            except SafetensorError as error:
                raise OSError(None, str(error)) from error
            parts[name] = Part(sha256=file_digest(file), bytes=file.stat().st_size)
        written = {STATE_FILE: state_text(replace(contents.state, parts=parts)), **texts}
        for name, text in written.items():
            (partial / name).write_bytes(encoded(text))
        flush_content(partial)
        # A rename cannot replace a folder that has content.
        remove(final)
        put_in_place(partial, final, flush=False)
    flush_to_disk(final.parent)


def rewrite_state(folder: Path, state: State) -> None:
    """Replace a checkpoint's `state.json` atomically; its tensors are unchanged.

    Raises:
        OSError: It cannot be written; the earlier file is unchanged.
    """
    with replacing(folder / STATE_FILE) as stream:
        stream.write(state_text(state).encode())


def point_to(link: Path, folder: Path) -> None:
    """Point `link` to `folder` beside it, atomically."""
    partial = temporary_name(link)
    # The target of a link cannot be changed in place. Renaming a new link over the old one is
    # atomic, and its relative target stays valid if the run's folder is moved.
    partial.symlink_to(folder.name)
    partial.replace(link)


def remove(folder: Path) -> None:
    """Remove a checkpoint: first its name, so that no partial checkpoint is ever found."""
    if not folder.exists():
        return
    doomed = temporary_name(folder)
    folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def remove_old(checkpoints: Path, *, keep: int) -> None:
    """Remove all checkpoints but the newest `keep`, and those that `best` and `last` point to."""
    linked = {real_path(checkpoints / name) for name in (BEST, LAST)}
    for folder in newest_first(checkpoints)[keep:]:
        if real_path(folder) not in linked:
            remove(folder)


def remove_unfinished(checkpoints: Path) -> None:
    """Remove partial files of killed processes that were writing or removing checkpoints."""
    for path in checkpoints.glob(f".*{PARTIAL}"):
        # An unfinished `last` or `best` is a link to a folder, which `rmtree` refuses to remove.
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def checkpoint_folder(checkpoints: Path, step: int) -> Path:
    """Return the folder of the checkpoint after `step` steps."""
    return checkpoints / f"step-{step:06d}"


NAME = re.compile(r"step-([0-9]{6,18})")


def checkpoint_step(folder: Path) -> int:
    """Return the number of steps in a checkpoint folder's name."""
    match = NAME.fullmatch(folder.name)
    assert match, folder
    return int(match[1])


def newest_first(checkpoints: Path) -> list[Path]:
    """Return the checkpoints' folders below `checkpoints/`, the newest first."""
    if not checkpoints.is_dir():
        return []
    folders = [path for path in checkpoints.iterdir() if NAME.fullmatch(path.name)]
    return sorted(filter(Path.is_dir, folders), key=checkpoint_step, reverse=True)


def trainable_names(model: nn.Module) -> list[str]:
    """Return the names of the parameters that train, in the optimizer's order."""
    return [name for name, value in model.named_parameters() if value.requires_grad]


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state under the parameters' names: `backbone.fpn…weight/exp_avg`."""
    names = trainable_names(model)
    return {
        f"{names[index]}/{slot}": tensor
        for index, slots in optimizer.state_dict()["state"].items()
        for slot, tensor in slots.items()
    }


def load_optimizer(
    tensors: Mapping[str, Tensor], model: nn.Module, optimizer: Optimizer, *, source: str
) -> None:
    """Restore an optimizer's state from `optimizer_tensors`, which came from a `source`.

    Raises:
        InputError: It belongs to another model; names the source.
    """
    # Learning rate, momentum and weight decay are those of the configuration: a resumed run may
    # change them.
    groups = optimizer.state_dict()["param_groups"]
    state = optimizer_state(tensors, model, source=source)
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def optimizer_state(
    tensors: Mapping[str, Tensor], model: nn.Module, *, source: str
) -> dict[int, dict[str, Tensor]]:
    """Return the state of each parameter that trains, by its number; undoes `optimizer_tensors`."""
    parameters = dict(model.named_parameters())
    places = {name: index for index, name in enumerate(trainable_names(model))}
    state: dict[int, dict[str, Tensor]] = {index: {} for index in places.values()}
    for key, tensor in tensors.items():
        name, _, slot = key.rpartition("/")
        if name not in places:
            raise InputError(f"{source}: {name} does not train in the configured model")
        # A tensor without dimensions is Adam's number of steps.
        if tensor.dim() and tensor.shape != parameters[name].shape:
            raise InputError(f"{source}: {key} has the shape {list(tensor.shape)} of another model")
        state[places[name]][slot] = match_memory_format(parameters[name], tensor)
    # torch's optimizers silently initialize the state of a parameter that has none.
    slots = {slot for parameter_state in state.values() for slot in parameter_state}
    for name, index in places.items():
        for slot in sorted(slots - state[index].keys()):
            raise InputError(f"{source}: {name}/{slot} is missing; use another checkpoint")
    return state
