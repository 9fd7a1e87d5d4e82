"""Writing checkpoints: a folder gets its name once it is whole and on the disk."""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.optim import Optimizer

from retinanet.model import RetinaNet
from retinanet.training.checkpoint import FORMAT, ModelDescription, TrainingPosition
from retinanet.training.optimizer_state import optimizer_tensors
from retinanet.training.random_states import random_states


def save_checkpoint(
    folder: Path,
    *,
    model: RetinaNet,
    optimizer: Optimizer,
    description: ModelDescription,
    position: TrainingPosition,
    config: Mapping[str, Any],
) -> Path:
    """Write `folder/step-N` and point `folder/last` to it.

    Returns:
        The checkpoint's folder.
    """
    final = folder / f"step-{position.step:06d}"
    partial = folder / f".{final.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
    tensors = optimizer_tensors(model, optimizer)
    tensors["random.torch"] = torch.get_rng_state()
    save_file(tensors, partial / "optimizer.safetensors")
    state = {
        "format": FORMAT,
        "model": asdict(description),
        "position": asdict(position),
        "config": dict(config),
        "random_states": random_states(),
    }
    (partial / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")
    flush_to_disk(partial)
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    point_to(folder / "last", final)
    return final


def flush_to_disk(folder: Path) -> None:
    """Wait until the folder's files are on the disk, so that a rename never names half a file."""
    for path in [*folder.iterdir(), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def point_to(link: Path, folder: Path) -> None:
    """Make `link` name `folder` beside it, at once."""
    partial = link.with_name(f".{link.name}.partial")
    partial.unlink(missing_ok=True)
    partial.symlink_to(folder.name)
    partial.replace(link)


def remove_others(folder: Path) -> None:
    """Keep only the checkpoints that `best` and `last` point to."""
    kept = {(folder / name).resolve() for name in ("best", "last")}
    for checkpoint in folder.glob("step-*"):
        if checkpoint.resolve() not in kept:
            shutil.rmtree(checkpoint)
