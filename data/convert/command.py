"""Not made yet."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m data convert`."""


def run() -> int:
    """Run the command; returns the exit code."""
    raise NotImplementedError
