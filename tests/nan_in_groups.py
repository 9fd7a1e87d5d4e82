"""`train.py` where a batch of a rank, counted from 1, has a NaN: nan_in_groups.py RANK BATCH …"""

import math
import os
import sys
from typing import Any

import train
from common.cli import run_command

rank, number = sys.argv.pop(1), int(sys.argv.pop(1))
train_to_the_end = train.steps_and_evaluations


def train_with_nan(run: "train.Trainer", stop: "train.StopRequest") -> int:
    from retinanet.training import loop

    losses_of = loop.batch_losses
    seen = 0

    def planted(prepared: Any, batch: Any, **forms: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == number:
            batch = batch._replace(images=batch.images.float())
            batch.images[0, 1, 20, 30] = math.nan
        return losses_of(prepared, batch, **forms)

    if os.environ.get("PMI_RANK") == rank:
        loop.batch_losses = planted
    return train_to_the_end(run, stop)


if __name__ == "__main__":
    train.steps_and_evaluations = train_with_nan
    sys.exit(run_command(train.main))
