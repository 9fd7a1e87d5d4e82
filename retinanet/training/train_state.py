"""The state of a run in its checkpoints: `state.json`, and the state of each rank.

Random generators, and the running statistics of norms that train, differ between ranks; everything
else is equal on all of them. `state.json` has the state without tensors, and the SHA-256 of all
parts.
"""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import pydantic.dataclasses
import torch
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor, nn

from common.errors import MOST_CLASSES, InputError
from common.files import read_json_object
from common.stored import first_fault
from data.annotations import ClassMap, Resize, shown
from retinanet.config import Config
from retinanet.config_types import (
    DEFAULT_ARCHITECTURE,
    STATE_FILE,
    Architecture,
    BackboneName,
    VariantName,
)
from retinanet.training.progress import STRICT, Count, Progress

FORMAT = 2  # Raised when a reader of an older format could go wrong

MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
RAW_FILE = "raw.safetensors"
"""The weights without averaging, where the model's file has the averages (`training.ema`)."""
RANKS_FILE = "ranks.safetensors"
AVERAGE = "ema/"  # Prefix of averaged statistics of a rank

StoredSide = Annotated[int, Field(ge=32, le=65536)]
RANDOM_GENERATORS = {"python", "numpy", "torch"}  # The keys of `random_states`
DESCRIBED_FIELDS = {
    "norm": ("model", "norm"),
    "trainable_layers": ("model", "trainable_layers"),
    "backbone": ("model", "backbone"),
    "variant": ("model", "variant"),
    "image_size": ("data", "image_size"),
    "resize": ("data", "resize"),
    "precision": ("engine", "precision"),
}
"""Fields of `ModelDescription` that repeat a setting: section and field of the configuration."""


@dataclass(frozen=True)
class RankState:
    """The state that differs between ranks."""

    random: dict[str, Any]  # See `random_states`
    statistics: dict[str, Tensor]
    """Means and variances under the model's names, unless they are the checkpoint's model's; and
    their averages, under the same names after `AVERAGE`."""


def trained_norms(model: nn.Module) -> dict[str, Tensor]:
    """Return running statistics of norms that train, under their names in the `state_dict`."""
    return {
        f"{name}.{statistic}": getattr(module, statistic)
        for name, module in model.named_modules()
        if isinstance(module, nn.BatchNorm2d)
        for statistic in ("running_mean", "running_var")
    }


def rank_norms(model: nn.Module, averages: Mapping[str, Tensor] = {}) -> dict[str, Tensor]:
    """Return a rank's running statistics, and their `averages`, under the names of `RankState`."""
    averaged = {f"{AVERAGE}{name}": values for name, values in averages.items()}
    return trained_norms(model) | averaged


def rank_state_dict(
    model: nn.Module, *, with_statistics: bool, averages: Mapping[str, Tensor] = {}
) -> RankState:
    """Return a copy of this rank's state; `averages` are those of its running statistics."""
    norms = rank_norms(model, averages) if with_statistics else {}
    return RankState(random_states(), {name: values.clone() for name, values in norms.items()})


def load_rank_state_dict(
    state: RankState, model: nn.Module, averages: Mapping[str, Tensor] = {}
) -> None:
    """Restore a rank's state; averages that the checkpoint has and this run has not are left out.

    Raises:
        ValueError: It is not from `rank_state_dict` of this model.
    """
    restore_random_states(state.random)
    norms = rank_norms(model, averages)
    with torch.no_grad():
        for name, values in state.statistics.items():
            if name.startswith(AVERAGE) and not averages:
                continue
            if name not in norms or norms[name].shape != values.shape:
                raise ValueError(f"{name}: the model has no such norm")
            norms[name].copy_(values)


def number_statistics(states: Sequence[RankState]) -> dict[str, Tensor]:
    """Return all ranks' statistics for one file: `1/backbone.body.bn1.running_mean`."""
    ranks = [state.statistics.items() for state in states]
    return {f"{rank}/{name}": values for rank, items in enumerate(ranks) for name, values in items}


def rank_states(random: Sequence[dict[str, Any]], tensors: Mapping[str, Tensor]) -> list[RankState]:
    """Return each rank's state, from random states and the tensors of `number_statistics`."""
    states = {str(rank): RankState(generators, {}) for rank, generators in enumerate(random)}
    for key, values in tensors.items():
        rank, _, name = key.partition("/")
        if rank in states:
            states[rank].statistics[name] = values
    return list(states.values())


def seed_everything(seed: int) -> None:
    """Seed Python's, numpy's and torch's generators."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def random_states() -> dict[str, Any]:
    """Return the states of Python's, numpy's and torch's generators, as JSON values."""
    # JSON has no bytes and is verbose for 624 integers, so states are hexadecimal digits.
    version, integers, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, np.array(integers, dtype=np.uint32).tobytes().hex(), gauss],
        "numpy": [str(name), np.asarray(keys).tobytes().hex(), position, has_gauss, cached],
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
    }


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Restore the generators, so that they continue their sequences.

    Raises:
        ValueError: The states are not from `random_states`; the generators are unchanged.
    """
    before = random_states()
    try:
        _restore(states)
    except (LookupError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        # A generator may have accepted a state from which it cannot draw.
        _restore(before)
        raise ValueError(f"random states are damaged: {error!r}") from error


def _restore(states: Mapping[str, Any]) -> None:
    def numbers(text: str, kind: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
        # An array over `bytes` is read-only, of which `torch.from_numpy` warns.
        return np.frombuffer(bytearray.fromhex(text), dtype=kind)

    version, integers, gauss = states["python"]
    random.setstate((version, tuple(numbers(integers, np.uint32).tolist()), gauss))
    name, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((name, numbers(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(torch.from_numpy(numbers(states["torch"], np.uint8)))


@pydantic.dataclasses.dataclass(config=STRICT, frozen=True, kw_only=True)
class ModelDescription:
    """The model that a checkpoint's weights fit."""

    num_classes: Annotated[int, Field(ge=1, le=MOST_CLASSES)]
    norm: Annotated[str, Field(pattern="^(frozen|batch)$")]
    trainable_layers: Annotated[int, Field(ge=0, le=5)]
    image_size: StoredSide | tuple[StoredSide, StoredSide]
    """Side of the square, or height and width of the rectangle, that images are resized to."""
    precision: Annotated[str, Field(pattern="^(bf16|float32)$")]
    # Older checkpoints do not have these.
    resize: Resize = "square"
    backbone: Annotated[str, Field(pattern=f"^({'|'.join(get_args(BackboneName))})$")] = (
        DEFAULT_ARCHITECTURE.backbone
    )
    variant: Annotated[str, Field(pattern=f"^({'|'.join(get_args(VariantName))})$")] = (
        DEFAULT_ARCHITECTURE.variant
    )
    classes: dict[str, Any]  # `ClassMap.to_json`: class indices, category ids and names

    @property
    def architecture(self) -> Architecture:
        """Backbone and variant."""
        return Architecture(self.backbone, self.variant)


def describe_model(config: Config, classes: ClassMap) -> ModelDescription:
    """Return the model of a run with this configuration and these classes."""
    settings = {
        name: getattr(getattr(config, section), field)
        for name, (section, field) in DESCRIBED_FIELDS.items()
    }
    return ModelDescription(num_classes=classes.num_classes, classes=classes.to_json(), **settings)


@pydantic.dataclasses.dataclass(config=STRICT, frozen=True, kw_only=True)
class Part:
    """Hash and size of a file of a checkpoint."""

    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    bytes: Count


@pydantic.dataclasses.dataclass(config=STRICT, frozen=True, kw_only=True)
class State:
    """The content of `state.json`, without its SHA-256."""

    model: ModelDescription
    position: Progress
    setup: dict[str, Any]
    """Ranks, threads, processor and so on: with other values the next steps differ in bits."""
    config: dict[str, Any]  # The run's configuration
    random_states: list[dict[str, Any]]  # Each rank's, see `random_states`
    parts: dict[Annotated[str, Field(pattern=r"^[a-z]+\.safetensors$")], Part]  # The other files


SCHEMA = TypeAdapter(State)


def state_text(state: State) -> str:
    """Return the text of `state.json`."""
    content = {"format": FORMAT, **asdict(state)}
    return json.dumps({"sha256": digest(content), **content}, indent=1)


def digest(content: Any) -> str:
    """Return the SHA-256 of JSON content, independent of its layout."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_state(folder: Path) -> State:
    """Read a checkpoint's `state.json`.

    Raises:
        InputError: It is missing, damaged, of another format, or no such file.
    """
    file = folder / STATE_FILE
    content = read_json_object(file, advice="use another checkpoint")
    written_digest = content.pop("sha256", None)
    actual_digest = digest(content)
    # The format comes before the SHA-256: a file of another version is not reported as damaged.
    written_format = content.pop("format", None)
    if written_format != FORMAT:
        raise InputError(
            f"{file}: format {shown(written_format)}; this version reads {FORMAT}, see CHANGELOG"
        )
    if written_digest != actual_digest:
        raise InputError(f"{file}: damaged: its SHA-256 is not the one that was written")
    try:
        # As JSON: pydantic's strict mode accepts a mapping for a dataclass only from JSON.
        state = SCHEMA.validate_json(json.dumps(content))
        require_consistent(state)
    except ValidationError as error:
        fault = first_fault(error)
        message = f"not a checkpoint's state: {fault.field}: {fault.message}"
        raise InputError(f"{file}: {message}") from error
    except InputError as error:
        raise InputError(f"{file}: not a checkpoint's state: {error}") from error
    return state


def require_consistent(state: State) -> None:
    """Check the relations between fields that are each valid on their own."""
    model = state.model
    try:
        classes = ClassMap.from_json(model.classes).num_classes
    except InputError as error:
        raise InputError(f"model.classes: {error}") from error
    if classes != model.num_classes:
        count = model.num_classes
        raise InputError(f"model.classes: {classes} classes, but num_classes is {count}")
    for name, (section, field) in DESCRIBED_FIELDS.items():
        value, fields = getattr(model, name), state.config.get(section)
        value = list(value) if isinstance(value, tuple) else value  # as in the configuration
        configured = fields.get(field, value) if isinstance(fields, dict) else value
        if configured != value:
            wrong = f"{shown(value)}, but config.{section}.{field} is {shown(configured)}"
            raise InputError(f"model.{name}: {wrong}")
    state.position.require_consistent()
    # Not `isinstance`: true is an int in Python.
    ranks = state.setup.get("ranks")
    if type(ranks) is not int or ranks < 1:
        raise InputError(f"setup.ranks: {shown(ranks)} is not a number of ranks")
    if len(state.random_states) != ranks:
        count = len(state.random_states)
        raise InputError(f"random_states: {count} states, but setup.ranks is {ranks}")
    for rank, generators in enumerate(state.random_states):
        for name in sorted(RANDOM_GENERATORS - generators.keys()):
            raise InputError(f"random_states.{rank}.{name}: missing")
