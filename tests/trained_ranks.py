"""`train.py` as it is; at the run's end each rank saves its weights: trained_ranks.py FOLDER …"""

import sys
from pathlib import Path

import train
from common.cli import run_command

folder = Path(sys.argv.pop(1))
train_to_the_end = train.steps_and_evaluations


def train_and_save(run: "train.Trainer", stop: "train.StopRequest") -> int:
    import torch

    code = train_to_the_end(run, stop)
    torch.save(run.model.state_dict(), folder / f"rank{run.group.rank}.pt")
    return code


if __name__ == "__main__":
    train.steps_and_evaluations = train_and_save
    sys.exit(run_command(train.main))
