"""The Pythons of other environments, in which contestants run.

IPEX has an environment of its own, since it needs an older torch than the default environment has.
`bench --against` compares contestants with themselves in another environment, such as one with the
torch of before.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from platform import python_version

from common.errors import InputError
from common.machine import PACKAGES, installed_versions
from common.processes import exit_reason
from common.program import FOLDER, working_folder
from launch.environment import installed_openmp

IPEX = "intel-extension-for-pytorch"
IPEX_PYTHON = Path(".venv-ipex", "bin", "python")  # From the repository; `make ipex` makes it
HERE = __name__.rpartition(".")[0]
DESCRIBE = f"from {__name__} import print_description; print_description"
LOADED = (f"{HERE}.worker", f"{HERE}.recipes.step")  # The second one loads torch and our code
LONGEST_START_S = 300.0  # Loading torch takes seconds; from a slow network file system, minutes


@dataclass(frozen=True)
class Interpreter:
    """The Python of an environment."""

    python: str  # Absolute path
    versions: Mapping[str, str]
    """Of `python` and of `common.machine.PACKAGES`; what is not installed is left out."""
    openmp: str = "gnu"  # The OpenMP library of its environment: `gnu` or `intel`

    @property
    def torch(self) -> str:
        """The version of its torch; empty where there is none."""
        return self.versions.get("torch", "")

    @property
    def has_ipex(self) -> bool:
        """Whether it has IPEX, made for its torch."""
        ipex = self.versions.get(IPEX)
        return ipex is not None and ipex.split(".")[:2] == self.torch.split(".")[:2]

    @property
    def environment(self) -> str:
        """The name of its folder, such as `.venv-old` of `.venv-old/bin/python`."""
        path = Path(self.python)
        return path.parents[1].name if path.parent.name == "bin" else path.name


def this_interpreter() -> Interpreter:
    """Describe the Python that runs this."""
    versions = {"python": python_version(), **installed_versions(PACKAGES)}
    return Interpreter(sys.executable, versions, installed_openmp())


def print_description(*modules: str) -> None:
    """Print what `find_interpreter` reads, after loading these modules."""
    for module in modules:
        import_module(module)
    here = this_interpreter()
    print(json.dumps({"versions": here.versions, "openmp": here.openmp}))


@cache
def find_interpreter(python: str, *, prefix: str, fix: str, loads: bool = True) -> Interpreter:
    """Ask the Python of another environment what it has; this program must run in it.

    `python` is a path, or a name on PATH. Messages begin with `prefix` and end with `fix`. Whether
    torch and this program can be loaded there is tried only if `loads`, as it takes seconds.

    Raises:
        InputError: It is no Python, or this program does not run in it.
    """
    found = shutil.which(python)
    if found is None:
        problem = "is no program" if Path(python).exists() else "does not exist"
        raise InputError(f"{prefix}: {python} {problem}; {fix}")
    # Links stay: an environment's Python is a link to one that lacks the environment's packages.
    path = str(Path(found).absolute())
    command = [path, "-c", DESCRIBE + repr(LOADED if loads else ())]
    try:
        done = subprocess.run(
            command,
            cwd=working_folder(path),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LONGEST_START_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{prefix}: {python} cannot be run: {error}; {fix}") from error
    if done.returncode != 0:
        reason = exit_reason(done.returncode, done.stderr)
        raise InputError(f"{prefix}: {python}: this program does not run there: {reason}; {fix}")
    try:
        # The last line, as libraries may print before.
        description = json.loads(done.stdout.splitlines()[-1])
        return Interpreter(path, description["versions"], description["openmp"])
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(f"{prefix}: {python} is not a Python; {fix}") from error


def interpreter_with_ipex() -> Interpreter | None:
    """Return the Python that has IPEX: this one (None), or that of `make ipex`.

    Raises:
        InputError: There is none; the message has the command that makes it.
    """
    if this_interpreter().has_ipex:
        return None
    path, fix = FOLDER / IPEX_PYTHON, "run `make ipex`"
    if not path.exists():
        raise InputError(f"IPEX needs an environment of its own, {path.parents[1].name}; {fix}")
    found = find_interpreter(str(path), prefix="IPEX", fix=fix, loads=False)
    if not found.has_ipex:
        raise InputError(f"{IPEX_PYTHON} has no IPEX for its torch {found.torch}; {fix}")
    return found
