"""Measuring commands: `bench` times ways to do one thing against each other."""

import argparse
import sys
from collections.abc import Callable

from profiling.bench.command import add_bench
from retinanet.command_line import run_command


def main() -> int:
    """Read the command line and run the command that it names; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m profiling", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_bench(commands)
    arguments = vars(parser.parse_args())
    run: Callable[..., int] = arguments.pop("run")
    return run(**arguments)


if __name__ == "__main__":
    sys.exit(run_command(main))
