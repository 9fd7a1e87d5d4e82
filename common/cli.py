"""Command lines: how commands end, and how arguments are parsed."""

import argparse
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TypeVar

from common.errors import (
    BAD_INPUT,
    FINISHED,
    InputError,
    exit_code_for,
    format_error,
    interrupted_by_sigterm,
)
from common.options import add_options, check_outputs, take_options
from common.program import PROGRAM, command_words, console_script, module_name
from common.streams import lost_output, open_streams

MOST = 10**9  # of steps, seconds, images
MOST_RANKS = 10**5
NOT_FOR_USERS = (
    r"Glyph \d+",  # matplotlib: a name is drawn with boxes in place of letters
    "constrained_layout not applied",  # matplotlib: a name is too long for a chart
    "This DataLoader will create",  # torch: more processes than cores; a run places them itself
)
"""The beginnings of libraries' warnings that a user can do nothing about."""
LONGEST_SHOWN = 60  # characters of a value in a message


def run_command(command: Callable[[], int]) -> int:
    """Run a command; turn a user's mistake or an interruption into one line and an exit code.

    So is a loss of standard output at the end, unless the work's results are files.
    """
    open_streams()
    # A character that the encoding lacks is written as `\u2026`: under PYTHONIOENCODING=ascii, in
    # some locales, and for a file's name that is not UTF-8 printing it would end the command.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    for message in NOT_FOR_USERS:
        warnings.filterwarnings("ignore", message, UserWarning)
    try:
        status = command()
    except SystemExit as end:  # argparse's, after --help
        status = int(end.code or FINISHED)
    except BaseException as error:
        line = format_error(error)
        if line is None:
            raise
        print(line, file=sys.stderr)
        status = exit_code_for(error)
    if lost := lost_output():
        reason, is_error = lost
        print(f"{'error' if is_error else 'note'}: {reason}", file=sys.stderr)
        status = status or (BAD_INPUT if is_error else FINISHED)
    return status


def load_target(target: str) -> Any:
    """Import `module:name` and return what has this name."""
    module, name = target.split(":")
    return getattr(import_module(module_name(module)), name)


def load_function(target: str) -> Callable[..., Any]:
    """Import `module:function` and return the function."""
    function: Callable[..., Any] = load_target(target)
    return function


def is_console_script() -> bool:
    """Return whether this program was started as `retinanet`, and not by `python`."""
    return Path(sys.argv[0]).name == PROGRAM


Options = TypeVar("Options")
Commands = Mapping[str, tuple[str, str]]
"""For each command's name its `module:function`, or `module:COMMANDS` of a group, and a summary.

The function adds the command to the parser's subcommands, with `run` among its defaults, which
takes the options as keyword arguments and returns the exit code.
"""


def run_command_group(name: str, description: str, commands: Commands) -> int:
    """Parse the words after `retinanet NAME`, run that command, and return its exit code."""
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} {name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_commands(parser, commands, sys.argv[1:])
    return run_parsed(parser)


def run_parsed(parser: argparse.ArgumentParser) -> int:
    """Parse the command line, and run its command; return the exit code."""
    arguments = vars(parser.parse_args())
    run: Callable[..., int] = arguments.pop("run")
    return run(**arguments)


def add_commands(
    parser: argparse.ArgumentParser,
    commands: Commands,
    words: Sequence[str] | None,
    **options: Any,
) -> None:
    """Add commands to a parser; `words` are the arguments that it will parse.

    Only the module of the given command is imported: `--help` of the group stays fast, and a
    package may offer a command of a package above it. Without `words` all commands are complete,
    for shell completion. `options` are those of `add_subparsers`.
    """
    subcommands = parser.add_subparsers(required=True, metavar="COMMAND", **options)
    add_parser = subcommands.add_parser
    for name, (target, summary) in commands.items():
        if words is not None and words[:1] != [name]:
            add_parser(name, help=summary)
            continue
        command = load_target(target)
        if callable(command):
            # Shell completion shows summaries.
            subcommands.add_parser = partial(add_parser, help=summary)  # type: ignore[method-assign]
            command(subcommands)
        else:
            about = load_target(f"{target.partition(':')[0]}:__doc__")
            group = add_parser(
                name,
                help=summary,
                description=about,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
            add_commands(group, command, None if words is None else words[1:])


def add_command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    *,
    about: str,
    examples: str | None = None,
    summary: str | None = None,
    options: type[Options] | None = None,
    run: Callable[[Options], int] | None = None,
) -> argparse.ArgumentParser:
    """Add a command and return its parser; `--help` has `about`, the options, and `examples`.

    The group's own `--help` has the `summary`, unless `add_commands` knows it. `options` is a
    record as in `common.options`, which `run` takes; it returns the exit code. Without both it is a
    group, to which commands are added.
    """
    listed: dict[str, Any] = {} if summary is None else {"help": summary}
    parser = commands.add_parser(
        name,
        description=about,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **listed,
    )
    if options is not None and run is not None:
        add_options(parser, options)
        parser.set_defaults(run=partial(run_with_options, options, run))
    return parser


def run_with_options(options: type[Options], run: Callable[[Options], int], **parsed: Any) -> int:
    """Run a command with a record made from its parsed arguments, after checks of its outputs.

    SIGTERM ends it as Ctrl-C does: it removes what is incomplete, and ends what it has started.
    """
    record = take_options(options, parsed)
    check_outputs(record)
    with interrupted_by_sigterm():
        return run(record)


def command_to_run(words: Sequence[str], *, example: str) -> list[str]:
    """Return the command in the words after a command's own options, where `--` may be first.

    Raises:
        InputError: There is none, or it begins with an option, or with a script that is not there.
    """
    program = list(words[1:] if words[:1] == ["--"] else words)
    if not program:
        raise InputError(f"no command to run; add -- {example}, or another command")
    if program[0].startswith("-"):
        raise InputError(
            f"{program[0]}: expected a command after --, such as {example}; give the options "
            "before --"
        )
    if program[0].endswith(".py") and not Path(program[0]).is_file():
        raise InputError(f"{program[0]}: no such file in {Path.cwd()}; give the script's path")
    return program


def chart_file(text: str) -> Path:
    """Parse the name of a chart, which says its format."""
    if not text.endswith((".png", ".svg")):
        shown = text[-LONGEST_SHOWN:]
        raise argparse.ArgumentTypeError(
            f"expected a name that ends in .png or .svg, found {shown!r}"
        )
    return Path(text)


def resuming_command(launcher: Sequence[str] = ()) -> str:
    """Return the command that continues this run, started by a launcher such as `mpirun -np 8`."""
    flags = ("--resume", "--auto-resume", "--overwrite")
    arguments = [argument for argument in sys.argv[1:] if argument not in flags]
    by_torchrun = "torchrun" in launcher[:1]
    is_module = Path(sys.argv[0]).name == "__main__.py"
    if is_console_script():
        program = [*(["--no-python"] if by_torchrun else []), installed(PROGRAM)]
    elif by_torchrun:
        # It calls Python itself.
        program = ["-m", PROGRAM] if is_module else [sys.argv[0]]
    else:
        program = installed_command(PROGRAM) if is_module else [installed("python"), sys.argv[0]]
    return shlex.join([*launcher, *program, *arguments, "--resume"])


def installed(program: str) -> str:
    """Return the path of a program of this environment as typed here: `.venv/bin/python`."""
    path = console_script().with_name(program)
    folder = Path.cwd()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def installed_command(group: str) -> list[str]:
    """Return `command_words`, with its program as `installed`: `.venv/bin/retinanet data`."""
    return command_words(group, locate=installed)


def number_between(least: int, most: int, text: str) -> int:
    """Parse an integer within bounds; raise argparse.ArgumentTypeError for any other text."""
    # Ten thousand digits would take Python long, and it refuses them.
    number = int(text) if re.fullmatch("[0-9]{1,19}", text) else -1
    if not least <= number <= most:
        shown = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
        raise argparse.ArgumentTypeError(
            f"expected a whole number of at least {least} and at most {most:,}, found {shown!r}"
        )
    return number


positive = partial(number_between, 1, MOST)
number_of_ranks = partial(number_between, 1, MOST_RANKS)
whole_number = partial(number_between, 0, MOST)


def number_that(is_valid: Callable[[float], bool], expected: str, text: str) -> float:
    """Parse a valid number; raise argparse.ArgumentTypeError for any other text."""
    try:
        value = float(text)
    except ValueError:
        # Comparisons with NaN are false, so that `is_valid` refuses it; `float` also reads the text
        # `nan`.
        value = float("nan")
    if not is_valid(value):
        raise argparse.ArgumentTypeError(f"expected {expected}, found {text!r}")
    return value


positive_number = partial(number_that, lambda x: 0 < x < float("inf"), "a positive number")
probability = partial(number_that, lambda x: 0 <= x <= 1, "a number from 0 to 1")


def numbers(text: str) -> tuple[int, ...]:
    """Parse distinct integers of at least 1, such as `1,2,4`; return them in ascending order."""
    try:
        values = [positive(number) for number in text.split(",")]
    except argparse.ArgumentTypeError as error:
        message = f"expected numbers such as 1,2,4, found {text!r}"
        raise argparse.ArgumentTypeError(message) from error
    return tuple(sorted(set(values)))
