"""A checkpoint's `state.json`: everything but tensors, and the SHA-256 of all parts."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from data.classes import ClassMap
from data.columns import shown
from retinanet.errors import InputError

FORMAT = 2
"""Raised when a reader of an older format could go wrong."""

STATE_FILE = "state.json"
MOST_BYTES = 64_000_000
"""A larger `state.json` is not read: thousands of ranks need less."""

STRICT = ConfigDict(extra="forbid", strict=True)
Count = Annotated[int, Field(ge=0, lt=2**63)]


@dataclass(config=STRICT, frozen=True, kw_only=True)
class ModelDescription:
    """What it takes to build the model that a checkpoint's weights fit."""

    num_classes: Annotated[int, Field(ge=1, lt=100_000)]
    norm: Annotated[str, Field(pattern="^(frozen|batch)$")]
    trainable_layers: Annotated[int, Field(ge=0, le=5)]
    image_size: Annotated[int, Field(ge=32, le=65536)]
    """Side of the square that images are resized to. [pixels]"""
    precision: Annotated[str, Field(pattern="^(bf16|float32)$")]
    classes: dict[str, Any]
    """`ClassMap.to_json`: class indices, category ids and names."""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class TrainingPosition:
    """How far a run has come."""

    step: Count
    """Optimizer steps done."""
    epoch: Count
    """Epochs done."""
    images: Count
    """Images of the running epoch's order that are done, by all ranks together."""
    images_per_epoch: Count
    """Training images, of which there is an order in each epoch."""
    map_here: float | None
    """mAP of the weights at this step; None where they were not evaluated."""
    best_map: float | None
    """Highest mAP of an evaluation so far."""
    skipped_steps: Count = 0
    """Of the steps done: those whose loss or gradient was not finite."""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class Part:
    """One file of a checkpoint, as it was written."""

    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    bytes: Count


@dataclass(config=STRICT, frozen=True, kw_only=True)
class State:
    """All that `state.json` says, but for its own SHA-256."""

    model: ModelDescription
    position: TrainingPosition
    setup: dict[str, Any]
    """Ranks, threads, processor and the like: with others the next steps are other bits."""
    config: dict[str, Any]
    """The run's configuration."""
    random_states: list[dict[str, Any]]
    """Of each rank: see `random_states`."""
    parts: dict[Annotated[str, Field(pattern=r"^[a-z]+\.safetensors$")], Part]
    """The other files."""


SCHEMA = TypeAdapter(State)


def state_text(state: State) -> str:
    """What `state.json` holds."""
    content = {"format": FORMAT, **asdict(state)}
    return json.dumps({"sha256": digest(content), **content}, indent=1)


def digest(content: Any) -> str:
    """SHA-256 of JSON's content, however it is laid out."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_state(folder: Path) -> State:
    """Read a checkpoint's `state.json`.

    Raises:
        InputError: It is missing, damaged, of another format, or no such file.
    """
    file = folder / STATE_FILE
    try:
        with file.open("rb") as stream:
            text = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error
    if len(text) > MOST_BYTES:
        raise InputError(f"{file}: not a checkpoint's state: larger than {MOST_BYTES} bytes")
    try:
        content = json.loads(text)
        written_digest = content.pop("sha256", None) if isinstance(content, dict) else None
        found_digest = digest(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: not a checkpoint's state: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{file}: not a checkpoint's state: no object")
    written_format = content.pop("format", None)
    if written_format != FORMAT:
        raise InputError(
            f"{file}: format {shown(written_format)}; this version reads {FORMAT}, see CHANGELOG"
        )
    if written_digest != found_digest:
        raise InputError(f"{file}: damaged: its SHA-256 is not the one that was written")
    return checked(file, content)


def checked(file: Path, content: dict[str, Any]) -> State:
    """The state with every field of its type.

    Raises:
        InputError: Names the first field that is not.
    """
    try:
        # As JSON, where strict means: no number from a text, but objects from mappings.
        state = SCHEMA.validate_json(json.dumps(content))
        ClassMap.from_json(state.model.classes)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = ".".join(map(str, first["loc"]))
        message = f"not a checkpoint's state: {name}: {first['msg']}"
        raise InputError(f"{file}: {message}") from error
    except (InputError, AttributeError, TypeError) as error:
        message = f"not a checkpoint's state: model.classes: {error}"
        raise InputError(f"{file}: {message}") from error
    return state
