"""Run a page's command: ours in this process, which saves the start of Python, others by bash."""

import argparse
import contextlib
import importlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from unittest.mock import patch

from common.cli import run_command
from common.program import PROGRAM
from common.yaml_text import read_yaml
from launch.environment import set_allocator
from retinanet.config_file import load_config
from tests.docs.pages import REPOSITORY
from tests.docs.rules import SCENES, SMALL
from tests.support.commands import run_program

TIMEOUT = 120  # Seconds of a command in a process of its own

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_PROXY": "*"}
"""NO_PROXY: requests to 127.0.0.1 would use a proxy too."""


class ParsedError(Exception):
    """Raised to end a command after its options were parsed."""


def run_by_bash(text: str, folder: Path, **variables: str) -> CompletedProcess[str]:
    """Run a shell command with the programs of the tests' environment."""
    programs = f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, **ENVIRONMENT, "PATH": programs, **variables}
    return run_program("bash", "-c", text, cwd=folder, env=environment, timeout=TIMEOUT)


def run_training_program(program: str, folder: Path) -> CompletedProcess[str]:
    """Run a page's Python program, in which `train` gets the settings of a small run."""
    settings = dict(pair.split("=") for pair in (*SCENES, *SMALL))
    if "training={" in program:
        del settings["training.epochs"]
    fewer = {name: read_yaml(value, name) for name, value in settings.items()}
    assert program.count("run={") == 1
    program = program.replace("run={", f"**{fewer}, run={{")
    path = str(REPOSITORY)
    return run_program(sys.executable, "-c", program, cwd=folder, timeout=300, PYTHONPATH=path)


def run_in_process(command: Sequence[str], folder: Path) -> CompletedProcess[str]:
    """Run `retinanet data …` and the like in this process.

    Training is not pinned, as torch is loaded already.
    """
    variables, program, arguments = split_command(command)
    script = program if program == PROGRAM else f"{program}/__main__.py"
    if arguments[:1] == ["train"]:
        arguments[1:1] = ["launch.pin=false", "launch.threads=1"]
        set_allocator("tuned")
    with (
        contextlib.chdir(folder),
        patch.dict(os.environ, {**ENVIRONMENT, **variables}),
        patch.object(sys, "argv", [script, *arguments]),
        contextlib.redirect_stdout(io.StringIO()) as output,
        contextlib.redirect_stderr(io.StringIO()) as errors,
    ):
        os.environ.pop("FORCE_COLOR", None)
        try:
            code = run_command(main_function(program))
        except SystemExit as ended:  # argparse's
            code = int(ended.code or 0)
    return CompletedProcess(command, code, output.getvalue(), errors.getvalue())


def parse_only(command: Sequence[str], folder: Path) -> CompletedProcess[str]:
    """Parse a command's options only."""
    with stopped_after_parsing(), contextlib.suppress(ParsedError):
        return run_in_process(command, folder)
    return CompletedProcess(command, 0, "", "")


@contextlib.contextmanager
def stopped_after_parsing() -> Iterator[None]:
    """End commands in this context after their options and settings were read."""
    parse = argparse.ArgumentParser.parse_args

    def parse_args(
        parser: argparse.ArgumentParser, *arguments: Sequence[str]
    ) -> argparse.Namespace:
        options: Any = parse(parser, *arguments)
        if {"config", "overrides"} <= vars(options).keys():
            load_config(options.config, options.overrides)
        raise ParsedError

    with patch.object(argparse.ArgumentParser, "parse_args", parse_args):
        yield


def split_command(command: Sequence[str]) -> tuple[dict[str, str], str, list[str]]:
    """Return variables, the program (`retinanet`, or a module), and its arguments."""
    remaining = list(command)
    variables = {}
    while re.fullmatch(r"[A-Z_]+=\S+", remaining[0]):
        name, _, value = remaining.pop(0).partition("=")
        variables[name] = value
    if Path(remaining[0]).name == "python":
        remaining.pop(0)
    if remaining[0] == "-m":
        remaining.pop(0)
    return variables, remaining[0], remaining[1:]


def main_function(program: str) -> Callable[[], int]:
    """Return the function that `retinanet`, or `python -m PROGRAM` calls."""
    module = importlib.import_module(program)
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{program}.__main__")
    main: Callable[[], int] = module.main
    return main
