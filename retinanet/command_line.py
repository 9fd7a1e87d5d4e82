"""What all commands share: how they end, and how a run's arguments are read."""

import argparse
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from retinanet.config import Config, config_to_tree, field_help
from retinanet.errors import InputError, NonFiniteLossError, StoppedBeforeStart
from retinanet.exit_codes import described, exit_code_of, is_refused_name

MOST = 10**9
"""Of whatever a command line counts: steps, seconds, images."""
MOST_RANKS = 10**5
NOT_FOR_USERS = (
    r"Glyph \d+",  # matplotlib: a name is drawn with boxes in place of letters
    "constrained_layout not applied",  # matplotlib: a name is too long for a chart
    "This DataLoader will create",  # torch: more processes than cores; a run places them itself
)
"""How warnings of libraries begin that a user can do nothing about."""
LONGEST_SHOWN = 60
"""Characters of a value in a message."""


def run_command(command: Callable[[], int]) -> int:
    """Run a command; turn a user's mistake or an interruption into one line and an exit code."""
    escape_unprintable()
    for message in NOT_FOR_USERS:
        warnings.filterwarnings("ignore", message, UserWarning)
    try:
        return command()
    except (InputError, NonFiniteLossError, StoppedBeforeStart, KeyboardInterrupt) as error:
        print(described(error), file=sys.stderr)
        return exit_code_of(error)
    except RuntimeError as error:
        line = described(error)  # of a loading process that was killed
        if line is None:
            raise
        print(line, file=sys.stderr)
        return exit_code_of(error)
    except BrokenPipeError:
        # The reader of a pipe, such as `head`, has seen enough; Python's own flush would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if not is_refused_name(error):
            raise
        print(described(error), file=sys.stderr)
        return exit_code_of(error)


def escape_unprintable() -> None:
    """Make stdout and stderr write `\\u2026` for a character that their encoding does not have.

    Under PYTHONIOENCODING=ascii and in some locales printing it would end the command, and so would
    printing a file's name that is not UTF-8.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def parse_run_arguments(description: str) -> argparse.Namespace:
    """`train.py`'s command line: `dry_run`, `check`, and what an earlier run means.

    That is `resume`, `auto_resume` or `overwrite`.
    """
    parser = argparse.ArgumentParser(
        description=description,
        epilog=f"fields, by section:\n\n{field_help()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config",
        default="demo.yaml",
        metavar="NAME",
        help="a YAML file, or a name in configs/ (default: demo.yaml, drawn scenes)",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="section.field=value",
        help="put on top of the file, such as training.batch_size=4",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the resolved configuration and where the ranks would run, and stop",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="look in seconds whether the run can work, train nothing, leave nothing: data, disk "
        "space, /dev/shm, memory, placement, packages, permissions; 0: it can, 2: it cannot; with "
        "mpirun every host is looked at",
    )
    parser.add_argument(
        "--check-ranks",
        type=number_of_ranks,
        metavar="N",
        help="with --check and without mpirun: ranks that this host will have (default: 1)",
    )
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument(
        "--resume", action="store_true", help="go on from the run's last checkpoint"
    )
    existing.add_argument(
        "--auto-resume",
        action="store_true",
        help="the same, or begin where there is no run yet: for jobs that a batch system requeues",
    )
    existing.add_argument(
        "--overwrite", action="store_true", help="remove the run's earlier work and start anew"
    )
    arguments = parser.parse_intermixed_args()
    if arguments.check_ranks and not arguments.check:
        parser.error("--check-ranks is for --check")
    return arguments


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """`section.field=value` below a command's own parser, wherever it stands among options.

    argparse takes positional arguments from one place only, and its way out, intermixed parsing, is
    not for commands below another.
    """
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="section.field=value",
        help="put on top of the file, such as data.root=/data/coco",
    )
    parse = parser.parse_known_args

    def parse_all(*arguments: Any) -> tuple[argparse.Namespace, list[str]]:
        found, rest = parse(*arguments)
        found.overrides += [word for word in rest if not word.startswith("-")]
        return found, [word for word in rest if word.startswith("-")]

    parser.parse_known_args = parse_all  # type: ignore[method-assign, assignment]


def add_json_option(
    parser: argparse.ArgumentParser, what: str = "write the numbers here too"
) -> None:
    """`--json FILE`, as `json_file`; `require_free_json` looks at it before the work begins."""
    parser.add_argument("--json", dest="json_file", type=Path, metavar="FILE", help=what)


def print_config(config: Config) -> None:
    """The whole configuration as YAML, defaults included."""
    YAML().dump(config_to_tree(config), sys.stdout)


def resuming_command(launcher: Sequence[str] = ()) -> str:
    """The command that goes on with the run that this process is.

    `launcher`: what comes before `python`, such as `mpirun -np 8`; torchrun takes its place.
    """
    flags = ("--resume", "--auto-resume", "--overwrite")
    words = [word for word in sys.argv[1:] if word not in flags]
    python = () if launcher and launcher[0] == "torchrun" else (installed("python"),)
    return shlex.join([*launcher, *python, sys.argv[0], *words, "--resume"])


def installed(program: str) -> str:
    """A program of this environment as a user can type it here: `.venv/bin/python`."""
    path = Path(sys.executable).with_name(program)
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def positive(text: str) -> int:
    """A whole number of at least 1."""
    return number_between(1, MOST, text)


def number_of_ranks(text: str) -> int:
    """A whole number from 1 to `MOST_RANKS`."""
    return number_between(1, MOST_RANKS, text)


def number_between(least: int, most: int, text: str) -> int:
    """Return a whole number within bounds.

    Raises:
        argparse.ArgumentTypeError: The text is none.
    """
    # Ten thousand digits would take Python long, and it refuses them.
    number = int(text) if re.fullmatch("[0-9]{1,19}", text) else -1
    if not least <= number <= most:
        found = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
        raise argparse.ArgumentTypeError(
            f"expected a whole number of at least {least} and at most {most:,}, found {found!r}"
        )
    return number


def probability(text: str) -> float:
    """A number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, found {text!r}")
    return value


def whole_number(text: str) -> int:
    """A whole number of at least 0."""
    return number_between(0, MOST, text)
