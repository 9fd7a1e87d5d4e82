"""`train.py` where a batch of a rank, counted from 1, has a NaN: nan_in_groups.py RANK BATCH …"""

import math
import os
import sys
from typing import Any

import train
from common.cli import run_command

rank, number = sys.argv.pop(1), int(sys.argv.pop(1))
run = train.run


def run_with_nan(*arguments: Any) -> int:
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
    return run(*arguments)


if __name__ == "__main__":
    setattr(train, "run", run_with_nan)  # noqa: B010
    sys.exit(run_command(train.main))
