"""Data sets on disk: get one, split it, index it, check it, time how fast it is read."""

import sys

from common.cli import run_command, run_command_group

COMMANDS = {
    "download": (
        "data.download.command:add_download",
        "get COCO or OpenImages: annotations and images",
    ),
    "scenes": (
        "data.synthetic:add_scenes",
        "draw scenes with their boxes, where no labelled photos are at hand",
    ),
    "split": ("data.convert:add_split", "annotations in two: to train on, and to evaluate on"),
    "convert": ("data.convert:add_convert", "turn annotations into an index that opens at once"),
    "verify": ("retinanet.verify_command:add_verify", "check images and boxes before a long run"),
    "bench": (
        "profiling.bench.data_bench:add_data_bench",
        "images a second of each decoder and of the whole pipeline",
    ),
}


def main() -> int:
    """Read the command line and run the command that it names; returns the exit code."""
    return run_command_group(prog="python -m data", description=__doc__ or "", commands=COMMANDS)


if __name__ == "__main__":
    sys.exit(run_command(main))
