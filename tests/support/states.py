"""The state of a checkpoint that no run has written, for tests to change."""

from retinanet.training.progress import Progress
from retinanet.training.train_state import ModelDescription, State

MODEL = ModelDescription(
    num_classes=1,
    norm="frozen",
    trainable_layers=0,
    image_size=64,
    precision="float32",
    classes={"category_ids": [1], "names": ["a"]},
)
POSITION = Progress(step=1, epoch=0, images=1, images_per_epoch=9, map_here=None, best_map=None)
STATE = State(
    model=MODEL, position=POSITION, setup={"ranks": 1}, config={}, random_states=[], parts={}
)
