"""The Pythons of other environments, in which contestants run.

IPEX has an environment of its own, since it needs an older torch than the default environment has.
`bench --against` compares contestants with themselves in another environment, such as one with the
torch of before.
"""

import shutil
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from platform import python_version
from typing import Any

from common.errors import InputError, WorkerDiedError
from common.machine import PACKAGES, installed_versions
from common.processes import Answering, JsonWorker, serve
from common.program import FOLDER, module_name
from launch.environment import installed_openmp

IPEX = "intel-extension-for-pytorch"
IPEX_PYTHON = Path(".venv-ipex", "bin", "python")  # From the repository; `make ipex` makes it
MODULE = "profiling.bench.interpreters"
LOADED = ("profiling.bench.worker", "profiling.bench.recipes.step")  # The second one loads torch


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


def prepare(specification: dict[str, Any]) -> tuple[dict[str, Any], Answering]:
    """Load the `modules`, and describe this Python: the worker of `find_interpreter`."""
    for module in specification["modules"]:
        import_module(module_name(module))
    here = this_interpreter()
    return {"versions": here.versions, "openmp": here.openmp}, lambda question: {}


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
    try:
        modules = LOADED if loads else ()
        with closing(JsonWorker(MODULE, {"modules": modules}, python=path)) as worker:
            return Interpreter(path, **worker.facts)
    except (OSError, WorkerDiedError) as error:
        reason = f"this program does not run there: {error}"
        raise InputError(f"{prefix}: {python}: {reason}; {fix}") from error


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


if __name__ == "__main__":
    serve(prepare)
