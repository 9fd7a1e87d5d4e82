"""Checkpoints with one file replaced, with and without matching hashes."""

import functools
import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from common.errors import InputError
from retinanet.config import Config, config_to_tree
from retinanet.config_file import config_from_tree, load_config
from retinanet.config_types import STATE_FILE
from retinanet.model.retinanet import RetinaNet
from retinanet.training.checkpoint import (
    Checkpoint,
    Contents,
    newest_valid,
    optimizer_tensors,
    read_checkpoint,
    write_checkpoint,
)
from retinanet.training.progress import Progress
from retinanet.training.resume import differences
from retinanet.training.train_state import (
    MODEL_FILE,
    OPTIMIZER_FILE,
    RANKS_FILE,
    ModelDescription,
    State,
    digest,
    load_rank_state_dict,
    rank_state_dict,
    trained_norms,
)
from tests.fuzz.inputs import value_or_error, write_file

NAMES = (MODEL_FILE, OPTIMIZER_FILE, RANKS_FILE, STATE_FILE)


def small_model() -> nn.Module:
    """A stand-in for RetinaNet whose files are read in milliseconds."""
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))


@functools.cache
def demo() -> Config:
    """A configuration to resume under."""
    return load_config("demo.yaml")


@functools.cache
def checkpoint_files() -> dict[str, bytes]:
    """The files of a small checkpoint, as training writes them."""
    torch.manual_seed(0)
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 1, 4, 4)).sum().backward()
    optimizer.step()
    rank_state = rank_state_dict(model, with_statistics=True)
    state = State(
        model=ModelDescription(
            num_classes=1,
            norm="batch",
            trainable_layers=5,
            image_size=demo().data.image_size,
            precision=demo().engine.precision,
            classes={"category_ids": [1], "names": ["dog"]},
        ),
        position=Progress(
            step=1, epoch=0, images=2, images_per_epoch=8, map_here=None, best_map=0.25
        ),
        setup={"ranks": 1, "torch": "2.8.0"},
        config=config_to_tree(demo()),
        random_states=[rank_state.random],
        parts={},
    )
    parts = {
        MODEL_FILE: model.state_dict(),
        OPTIMIZER_FILE: optimizer_tensors(model, optimizer),
        RANKS_FILE: {f"0/{name}": values.clone() for name, values in trained_norms(model).items()},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "step-000001")
        write_checkpoint(folder, Contents(parts, state))
        return {file: (folder / file).read_bytes() for file in NAMES}


def check_checkpoint(data: bytes, folder: Path) -> None:
    """Check a file's number and content, read with the old and with matching hashes."""
    content = dict(checkpoint_files())
    if data:
        content[NAMES[data[0] % len(NAMES)]] = data[1:]
    checkpoints = folder / "checkpoints"
    step = checkpoints / "step-000001"
    for files in (content, with_matching_hashes(content)):
        for name, part in files.items():
            write_file(step / name, part)
        newest, problems = newest_valid(checkpoints)
        assert (newest is None) == bool(problems)
        checkpoint = value_or_error(lambda: read_checkpoint(step), str(step))
        if checkpoint is not None:
            use(checkpoint, str(step))


def with_matching_hashes(content: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files with matching hashes, as an attacker would write them."""
    try:
        state = json.loads(content[STATE_FILE])
        for name, part in state["parts"].items():
            part |= {
                "sha256": hashlib.sha256(content[name]).hexdigest(),
                "bytes": len(content[name]),
            }
        state.pop("sha256", None)
        text = json.dumps({"sha256": digest(state), **state})
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return content
    return {**content, STATE_FILE: text.encode()}


def use(checkpoint: Checkpoint, name: str) -> None:
    """Use a checkpoint as evaluation and resuming do."""
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters())
    config = demo()

    def restore_ranks() -> None:
        for state in checkpoint.rank_states():
            try:
                load_rank_state_dict(state, model)
            except ValueError as error:
                raise InputError(f"{name}: {error}") from error

    uses: tuple[Callable[[], Any], ...] = (
        lambda: checkpoint.load_training_state(cast(RetinaNet, model), optimizer),
        restore_ranks,
        lambda: config_from_tree(checkpoint.state.config, f"{name}/{STATE_FILE}"),
        lambda: differences(checkpoint.state, config, {"ranks": 2}),
    )
    random = torch.get_rng_state()
    for use_it in uses:
        value_or_error(use_it, name)
    torch.set_rng_state(random)


def checkpoints() -> list[bytes]:
    """Each file of a checkpoint, unchanged."""
    return [bytes([place]) + checkpoint_files()[name] for place, name in enumerate(NAMES)]
