"""Run `train.py`; each rank saves its weights at the end: trained_ranks.py FOLDER …"""

import sys
from pathlib import Path
from typing import Any

import train
from common.cli import run_command

folder = Path(sys.argv.pop(1))
run = train.run


def run_and_save(*arguments: Any) -> int:
    import torch

    from retinanet.training.trainer import Trainer

    fit = Trainer.fit

    def fit_and_save(self: Trainer, *inputs: Any) -> int:
        code = fit(self, *inputs)
        torch.save(self.run.model.state_dict(), folder / f"rank{self.run.group.rank}.pt")
        return code

    setattr(Trainer, "fit", fit_and_save)  # noqa: B010
    return run(*arguments)


if __name__ == "__main__":
    setattr(train, "run", run_and_save)  # noqa: B010
    sys.exit(run_command(train.main))
