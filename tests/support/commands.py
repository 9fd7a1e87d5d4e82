"""Commands in this process and in processes of their own, and the errors of a call."""

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from common.errors import InputError

REPOSITORY = Path(__file__).resolve().parents[2]
RunHere = Callable[..., CompletedProcess[str]]
"""`run_here(main, *arguments)` runs a command in this process: starting Python takes seconds."""


def run_program(
    *command: str | Path,
    cwd: Path = REPOSITORY,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    check: bool = False,
    **variables: str,
) -> CompletedProcess[str]:
    """Run a command in a process of its own; return its status and output.

    The process has this one's environment, or `env`, with other values of the `variables`.
    """
    env = {**(os.environ if env is None else env), **variables}
    return subprocess.run(
        [*map(str, command)], cwd=cwd, env=env, timeout=timeout, check=check,
        capture_output=True, text=True,
    )  # fmt: skip


def start_program(
    *command: str | Path, env: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[str]:
    """Start a command in the repository; its output and errors are pipes of text."""
    return subprocess.Popen(
        [*map(str, command)], cwd=REPOSITORY, env=env, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def write_program(path: Path, text: str, *, interpreter: str = "/bin/sh") -> Path:
    """Write a program, of shell by default; return its path."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!{interpreter}\n{text}\n")
    path.chmod(0o755)
    return path


def error_line(done: CompletedProcess[str]) -> str:
    """Return the error of a command that refused its input, which is one line."""
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    return line


def error_message(call: Callable[..., object], *arguments: object, **options: object) -> str:
    """Return the message of the `InputError` of a call, which is one line."""
    with pytest.raises(InputError) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert message and "\n" not in message
    return message
