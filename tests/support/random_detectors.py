"""Checkpoints of untrained detectors that return boxes for any image."""

from pathlib import Path

import torch

from data.annotations import ImageSize, Resize, as_setting, as_size
from data.transforms import normalize
from retinanet.config import config_to_tree
from retinanet.config_file import load_config
from retinanet.config_types import DEFAULT_ARCHITECTURE, Architecture
from retinanet.model.retinanet import RetinaNet
from retinanet.training.checkpoint import Contents, copies, write_checkpoint
from retinanet.training.progress import Progress
from retinanet.training.train_state import (
    MODEL_FILE,
    ModelDescription,
    State,
    random_states,
)

NAMES = ("one", "two", "three")


@torch.no_grad()
def random_detector(
    *,
    norm: str = "frozen",
    classes: int = len(NAMES),
    image_size: ImageSize = 64,
    score: float = -3.0,
    architecture: Architecture = DEFAULT_ARCHITECTURE,
) -> RetinaNet:
    """A model in evaluation mode whose logits vary about `score`, and whose norms do something."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = RetinaNet(
            num_classes=classes, norm=norm, trainable_layers=0, architecture=architecture
        ).eval()
        for name, tensor in model.state_dict().items():
            if ".bn" in name or ".downsample.1." in name:
                if name.endswith(("weight", "running_var")):
                    tensor.uniform_(0.8, 1.2)
                elif name.endswith(("bias", "running_mean")):
                    tensor.uniform_(-0.1, 0.1)
        images = torch.randint(0, 256, (2, 3, *as_size(image_size)), dtype=torch.uint8)
    last = model.head.classification_head.cls_logits
    assert last.bias is not None
    logits = torch.cat(model(normalize(images)).cls_logits, dim=1)
    last.weight /= logits.std()
    last.bias.fill_(score)
    deltas = model.head.regression_head.bbox_reg
    deltas.weight *= 0.2 / torch.cat(model(normalize(images)).bbox_regression, dim=1).std()
    return model


def write_detector(
    folder: Path,
    *,
    norm: str = "frozen",
    image_size: ImageSize = 64,
    score: float = -3.0,
    resize: Resize = "square",
    architecture: Architecture = DEFAULT_ARCHITECTURE,
) -> Path:
    """A run's folder with the checkpoint of such a model; returns the checkpoint's."""
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(parents=True)
    model = random_detector(
        norm=norm, image_size=image_size, score=score, architecture=architecture
    )
    overrides = [
        f"model.norm={norm}",
        "model.trainable_layers=0",
        f"data.image_size={as_setting(image_size)}",
    ]
    overrides += ["engine.precision=float32", f"data.resize={resize}", *str(architecture).split()]
    state = State(
        model=ModelDescription(
            num_classes=len(NAMES),
            norm=norm,
            trainable_layers=0,
            image_size=image_size,
            precision="float32",
            resize=resize,
            classes={"category_ids": [7, 8, 44], "names": list(NAMES)},
            **architecture._asdict(),
        ),
        position=Progress(
            step=7, epoch=1, images=0, images_per_epoch=9, map_here=0.25, best_map=0.25
        ),
        setup={"ranks": 1},
        config=config_to_tree(load_config("demo.yaml", overrides)),
        random_states=[random_states()],
        parts={},
    )
    checkpoint = checkpoints / "step-000007"
    write_checkpoint(checkpoint, Contents({MODEL_FILE: copies(model.state_dict())}, state))
    return checkpoint
