"""A page's command, run as it is written: in this process where it is ours, else by bash."""

import argparse
import contextlib
import importlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from unittest.mock import patch

from common.cli import run_command
from launch.environment import set_allocator
from retinanet.config_file import load_config

TIMEOUT = 120
"""Seconds, of a command in a process of its own."""

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_PROXY": "*"}
"""A proxy would be asked for 127.0.0.1 too."""


class ParsedError(Exception):
    """Ends a command whose options were read: what it would have done is not wanted."""


def run_by_bash(text: str, folder: Path, **variables: str) -> CompletedProcess[str]:
    """A line of a shell, with the programs of the environment that the tests run in."""
    programs = f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env={**os.environ, **ENVIRONMENT, "PATH": programs, **variables},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def run_in_process(words: Sequence[str], folder: Path) -> CompletedProcess[str]:
    """`python -m data …`, `python train.py …` and the like, without waiting for Python to start.

    Torch is loaded already, so that a training is not pinned.
    """
    variables, program, rest = split_command(words)
    if program == "train.py":
        rest = ["launch.pin=false", "launch.threads=1", *rest]
        set_allocator("tuned")
    with (
        contextlib.chdir(folder),
        patch.dict(os.environ, {**ENVIRONMENT, **variables}),
        patch.object(sys, "argv", [program, *rest]),
        contextlib.redirect_stdout(io.StringIO()) as output,
        contextlib.redirect_stderr(io.StringIO()) as errors,
    ):
        os.environ.pop("FORCE_COLOR", None)
        try:
            code = run_command(main_of(program))
        except SystemExit as ended:  # argparse's
            code = int(ended.code or 0)
    return CompletedProcess(words, code, output.getvalue(), errors.getvalue())


def parse_only(words: Sequence[str], folder: Path) -> CompletedProcess[str]:
    """The same up to where the options were read."""
    with stopped_after_parsing(), contextlib.suppress(ParsedError):
        return run_in_process(words, folder)
    return CompletedProcess(words, 0, "", "")


@contextlib.contextmanager
def stopped_after_parsing() -> Iterator[None]:
    """Options are read and refused as always, and settings are; nothing is done then."""
    parse = argparse.ArgumentParser.parse_args

    def parse_args(
        parser: argparse.ArgumentParser, *arguments: Sequence[str]
    ) -> argparse.Namespace:
        found: Any = parse(parser, *arguments)
        if {"config", "overrides"} <= vars(found).keys():
            load_config(found.config, found.overrides)
        raise ParsedError

    with patch.object(argparse.ArgumentParser, "parse_args", parse_args):
        yield


def split_command(words: Sequence[str]) -> tuple[dict[str, str], str, list[str]]:
    """Variables, the program (`train.py`, or a package), and its words."""
    left = list(words)
    variables = {}
    while re.fullmatch(r"[A-Z_]+=\S+", left[0]):
        name, _, value = left.pop(0).partition("=")
        variables[name] = value
    if Path(left[0]).name == "python":
        left.pop(0)
    if left[0] == "-m":
        left.pop(0)
    return variables, left[0], left[1:]


def main_of(program: str) -> Callable[[], int]:
    """What `python PROGRAM` or `python -m PROGRAM` calls."""
    module = importlib.import_module(program.removesuffix(".py"))
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{program}.__main__")
    main: Callable[[], int] = module.main
    return main


def words_of(text: str) -> list[str]:
    """As a shell splits them."""
    return shlex.split(text)
