"""Checkpoints: safetensors for tensors, JSON for the rest, a SHA-256 of every part.

A checkpoint is a folder `step-000500/` with `model.safetensors` (torchvision's names),
`optimizer.safetensors`, for several ranks with norms that train `ranks.safetensors`, and
`state.json`. It gets its name once it is whole and on the disk. Nothing is pickled.
"""

from retinanet.training.checkpoint.finding import find_checkpoint
from retinanet.training.checkpoint.reading import Checkpoint, newest_whole, read_checkpoint
from retinanet.training.checkpoint.state import ModelDescription, State, TrainingPosition

__all__ = [
    "Checkpoint",
    "ModelDescription",
    "State",
    "TrainingPosition",
    "find_checkpoint",
    "newest_whole",
    "read_checkpoint",
]
