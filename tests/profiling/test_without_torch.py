"""Logs and traces are analyzed with four packages beside this one, without torch."""

import subprocess
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.profiling.onednn_log.logs import FIXTURES
from tests.support.commands import REPOSITORY, error_line, run_program

pytestmark = pytest.mark.slow

PACKAGES = ("rich", "pydantic", "jinja2", "matplotlib")
"""What docs/profile-your-model.md installs."""
BLOCK = """
import sys
from importlib.machinery import PathFinder
class Others(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in BLOCKED else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Others
"""
LOG = FIXTURES / "benchdnn-3.7.2-conv.log"


def needed_by(package: str, found: set[str]) -> None:
    """Add the names of a package and of all that it needs."""
    name = package.lower().replace("_", "-")
    if name in found:
        return
    found.add(name)
    for line in requires(package) or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            needed_by(requirement.name, found)


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which Python finds no installed package but those, and what they need."""
    kept: set[str] = set()
    for package in PACKAGES:
        needed_by(package, kept)
    blocked = {
        module
        for module, distributions in packages_distributions().items()
        if not {name.lower().replace("_", "-") for name in distributions} & kept
    }
    assert {"torch", "mpi4py", "ruamel", "scipy"} <= blocked
    folder = tmp_path_factory.mktemp("light")
    (folder / "sitecustomize.py").write_text(f"BLOCKED = {blocked!r}\n{BLOCK}", encoding="utf-8")
    return folder


def run_light(light: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "retinanet", "profile", *arguments)
    return run_program(*command, cwd=light, PYTHONPATH=f"{light}:{REPOSITORY}")


@pytest.mark.parametrize(
    "command",
    [
        ("stats", LOG, "--out", "stats", "--peaks", "none"),
        ("compare", LOG, LOG, "--out", "comparison"),
        ("report", LOG, "--peaks", "none"),
        ("benchdnn", LOG, "--out", "replay", "--write-only"),
        ("trace", "trace.json", "--out", "tables"),
        ("capture", "--help"),
    ],
    ids=lambda command: command[0],
)
def test_command_without_torch(light: Path, command: tuple[str | Path, ...]) -> None:
    operator = '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, '
    (light / "trace.json").write_text(f'{{"traceEvents": [{operator}"ts": 1, "dur": 9}}]}}')
    done = run_light(light, *command)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("command", "package"),
    [(("bench", "log"), "ruamel"), (("peaks",), "torch"), (("efficiency", LOG), "torch")],
    ids=["bench", "peaks", "efficiency"],
)
def test_command_that_needs_more_names_it(
    light: Path, command: tuple[str | Path, ...], package: str
) -> None:
    done = run_light(light, *command, *(["--out", "replayed"] * (command[0] == "efficiency")))
    assert f"{package} is not installed" in error_line(done)
