"""What was measured of a host, in a file that the planner also reads on a laptop."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass

from launch.tune.network import AllReduceTime
from launch.tune.probed import Probes
from launch.tune.step_time import Shape, StepTime
from launch.tune.unfinished import Unfinished, is_unfinished
from retinanet.kept_results import read_kept
from retinanet.output_files import write_whole


@dataclass(frozen=True, kw_only=True)
class Added:
    """What exchanging gradients added to the steps of several ranks on the host."""

    ranks: int
    batch_size: int
    share: float
    """Of a step without exchange; around 0 it may be negative."""


@dataclass(frozen=True, kw_only=True)
class BetweenHosts:
    """All-reduces between ranks on several hosts."""

    hosts: tuple[str, ...] = Field(min_length=2)
    """By name; a rank on each."""
    all_reduces: tuple[AllReduceTime, ...] = Field(min_length=2)
    over: str
    """How many hosts, and which backend, in words."""


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Of one host."""

    command: str
    """That measured it."""
    environment: Mapping[str, Any]
    """Processor, cores, packages, code."""
    cores: int = Field(gt=0)
    """That ranks may compute on."""
    sockets: int = Field(gt=0)
    shapes: tuple[Shape, ...] = Field(min_length=1)
    """That the host has the cores and the memory for."""
    data: str
    """As `--data` names it: `openimages`, or a configuration."""
    config: str
    overrides: tuple[str, ...]
    """What was trained, and what the winner's command trains."""
    images: int = Field(gt=0)
    """Of an epoch."""
    evaluated_images: int = Field(gt=0)
    batch_size: int = Field(gt=0)
    """Images of a rank in a step that the configuration has."""
    every: int = Field(gt=0)
    """Epochs between two evaluations."""
    image_size: int
    """[pixels]"""
    classes: int
    precision: str
    compress: str
    """Of gradients: `none` or `bf16`."""
    gradient_bytes: int
    """Of one rank, as they travel."""
    last_bytes: int
    """Of the last bucket."""
    steps: tuple[StepTime, ...] = Field(min_length=2)
    added: tuple[Added, ...]
    all_reduces: tuple[AllReduceTime, ...]
    """Between ranks of this host, over its own sockets."""
    all_reduces_over: str
    """Which these were."""
    backward_share: float
    """Of a step."""
    data_share: float
    """Of a step, the most that ranks waited for data."""
    evaluation_seconds: float
    """Of an image, of one thread."""
    metric_seconds: float
    """COCO's metric of the whole validation split, and its files."""
    busy_cores: float
    """That other work kept busy meanwhile."""
    update_seconds: float | None = None
    """The optimizer's step over all weights, by one thread; None in plans from before."""
    between_hosts: BetweenHosts | None = None
    """None: was not measured."""
    probes: Probes | None = None
    """None: the epochs until the target are MLPerf's, or were not asked for yet."""


FINISHED = TypeAdapter(Measurements)
UNFINISHED = TypeAdapter(Unfinished)


def write_measurements(file: Path, measured: Measurements | Unfinished) -> None:
    """Write them as JSON, in place of an earlier state.

    Raises:
        InputError: The file cannot be written there.
    """
    write_whole(file, json.dumps(asdict(measured), indent=1, ensure_ascii=False) + "\n")


def read_measurements(file: Path) -> Measurements | Unfinished:
    """Read what `write_measurements` wrote.

    Raises:
        InputError: It is something else; names the file and the field.
    """
    schema: TypeAdapter[Any] = UNFINISHED if is_unfinished(file) else FINISHED
    found: Measurements | Unfinished = read_kept(
        file,
        schema,
        wrong="is nothing that `python -m launch tune --plan` wrote",
        advice="move it away, or give another name",
    )
    return found
