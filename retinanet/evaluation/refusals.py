"""Files that are no checkpoint, and by their names are something else that this project knows."""

from pathlib import Path

from retinanet.errors import InputError
from retinanet.training.pickled_weights import refuse_pickle

EXPORTED = (".onnx", ".pt2")


def refuse_what_is_no_checkpoint(path: Path) -> None:
    """Refuse weights as a pickle, and exported models, where a checkpoint is expected.

    Raises:
        InputError: Says what to give.
    """
    refuse_pickle(path, what="checkpoint of a run")
    if path.suffix in EXPORTED:
        raise InputError(
            f"{path}: is an exported model, for other programs; give --checkpoint what it was made "
            "of, such as runs/NAME/checkpoints/best"
        )
