"""Ranks: plan where they run, start them, see how they scale."""

import argparse
import sys
from collections.abc import Callable

from launch.groups.options import add_groups
from launch.plan.options import add_plan
from launch.scale.options import add_scale
from launch.start.command import add_run_command
from launch.tune.options import add_tune
from retinanet.command_line import run_command

COMMANDS = (add_plan, add_run_command, add_scale, add_tune, add_groups)
"""Each adds one command, with `run` among its defaults."""


def main() -> int:
    """Read the command line and run the command that it names; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m launch", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add_command in COMMANDS:
        add_command(commands)
    arguments = vars(parser.parse_args())
    run: Callable[..., int] = arguments.pop("run")
    return run(**arguments)


if __name__ == "__main__":
    sys.exit(run_command(main))
