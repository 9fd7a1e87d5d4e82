"""Data sets on disk: get one, split it, index it, check it, time how fast it is read."""

import argparse
import sys
from collections.abc import Callable
from importlib import import_module

from retinanet.command_line import run_command

COMMANDS = {
    "download": "get COCO or OpenImages: annotations and images",
    "scenes": "draw scenes with their boxes, where no labelled photos are at hand",
    "split": "annotations in two: to train on, and to evaluate on",
    "convert": "turn annotations into an index that opens at once",
    "verify": "check images and boxes before a long run",
    "bench": "images a second of each decoder and of the whole pipeline",
}
"""Each is a module `data/NAME/command.py` with `add_arguments(parser)` and `run(**arguments)`."""


def main() -> int:
    """Read the command line and run the command that it names; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m data", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        module = import_module(f"data.{name}.command")
        command = commands.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    arguments = vars(parser.parse_args())
    run: Callable[..., int] = arguments.pop("run")
    return run(**arguments)


if __name__ == "__main__":
    sys.exit(run_command(main))
