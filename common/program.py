"""Where this program's code is, and how its modules and commands are called there.

In a checkout, and in an editable installation of it, the packages `common`, `data`, `launch`,
`profiling` and the script `train.py` are imported under these names, from the repository. In an
installed wheel they are parts of the package `retinanet` (`retinanet.data`), because site-packages
belongs to all programs of an environment, which may have packages of such names. The build rewrites
imports (hatch_build.py); names that are composed at run time are made here.
"""

import os
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

PREFIX = __name__.removesuffix("common.program")
"""Comes before names of modules: empty in a checkout, `retinanet.` in an installed wheel."""
IS_INSTALLED = bool(PREFIX)
FOLDER = Path(__file__).resolve().parents[1]
"""Contains `common`, `data` and `configs`: the repository, or the package in site-packages."""
IMPORT_FOLDER = FOLDER.parent if IS_INSTALLED else FOLDER
"""The folder that is on Python's path: the repository, or site-packages."""
DISTRIBUTION = "retinanet-cpu"
PROGRAM = "retinanet"
"""The console script, which has all commands."""
GROUPS = {"retinanet": (), "profiling": ("profile",)}
"""The words after `retinanet` for a package's commands, where they are not its name."""


def program_version() -> str | None:
    """Return the version in pyproject.toml; None where that file is missing."""
    if IS_INSTALLED:
        return version(DISTRIBUTION)
    file = FOLDER / "pyproject.toml"
    if not file.is_file():
        return None
    number: str = tomllib.loads(file.read_text(encoding="utf-8"))["project"]["version"]
    return number


def module_name(name: str) -> str:
    """Return the name under which a module of a checkout, such as `data.loader`, is imported."""
    if name.partition(".")[0] == "retinanet":
        return name
    # `retinanet.train` is the function of the interface for Python.
    return f"{PREFIX}train_script" if IS_INSTALLED and name == "train" else PREFIX + name


def module_command(name: str, python: str | None = None) -> list[str]:
    """Return the command that runs a module in a process of its own.

    `python` is the path of another environment's Python; None: this one.
    """
    return [python or sys.executable, "-m", module_name(name)]


def module_environment() -> dict[str, str]:
    """Return this process's variables, with which a child finds the modules from any folder."""
    if IS_INSTALLED:
        return dict(os.environ)
    paths = [str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def working_folder(python: str | None = None) -> Path:
    """Return the folder to start modules in, which Python puts before all others on its path.

    Another environment's Python must not take packages of this one, so where the program is
    installed, it needs an installation of its own.
    """
    return Path(python).parent if python and IS_INSTALLED else IMPORT_FOLDER


def train_command() -> list[str]:
    """Return the command that trains in a process of its own, from any working directory."""
    if IS_INSTALLED:
        return module_command("train")
    return [sys.executable, str(FOLDER / "train.py")]


def command_words(group: str, *, locate: Callable[[str], str] = str) -> list[str]:
    """Return how a command begins as users type it here: `retinanet data`.

    `group` is `data`, `launch`, `profiling`, `retinanet` or `train`. `locate` turns the program's
    name into its path. An environment that setup.sh or pip made has the program. Without it the
    command is right in the present working directory, where a checkout may not be found.
    """
    words = GROUPS.get(group, (group,))
    if console_script().is_file():
        return [locate(PROGRAM), *words]
    is_here = Path("common", "program.py").resolve() == Path(__file__).resolve()
    path = [] if is_here else ["env", f"PYTHONPATH={FOLDER}"]
    return [*path, locate("python"), "-m", PROGRAM, *words]


def console_script() -> Path:
    """Return the place of the program `retinanet` beside this Python."""
    # Links stay: `.venv/bin/python` is a link to an interpreter without the packages of `.venv`.
    return Path(sys.executable).with_name(PROGRAM)
