"""Our package beside Python 3.15's standard package `profiling` (PEP 799).

A folder behind ours on the path takes the place of the standard library's files.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import profiling
from tests.support.commands import REPOSITORY, run_program

STANDARD = ("tracing", "sampling")
"""The subpackages that CPython 3.15 has; its package exports nothing else."""

FILES = {
    "profiling/__init__.py": '__all__ = ["tracing", "sampling"]\n',
    "profiling/tracing/__init__.py": (
        "import _lsprof\n"
        "from profiling.tracing._utils import label\n"
        "class Profile(_lsprof.Profiler):\n    origin = label\n"
        "def run(statement): exec(statement)\nrunctx = run\n"
    ),
    "profiling/tracing/_utils.py": 'label = "standard"\n',
    "profiling/sampling/__init__.py": "from .collector import Collector\n",
    "profiling/sampling/collector.py": "class Collector: pass\n",
    "cProfile.py": (
        '__all__ = ["run", "runctx", "Profile"]\n'
        "from profiling.tracing import Profile, run, runctx\n"
    ),
}


@pytest.fixture
def standard_library(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return tmp_path


def run_python(standard_library: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_program(sys.executable, *arguments, PYTHONPATH=str(standard_library))


@pytest.mark.parametrize(
    "imports",
    [
        "import cProfile, profiling.trace.trace, profiling.stats",
        "import profiling.trace.trace, profiling.stats, cProfile",
    ],
    ids=["standard first", "ours first"],
)
def test_both_packages_are_imported(imports: str, standard_library: Path) -> None:
    report = (
        "import profiling, profiling.sampling\n"
        "print(cProfile.Profile.origin, profiling.sampling.Collector.__name__)\n"
        "print(profiling.__file__, profiling.trace.__file__)\n"
    )
    done = run_python(standard_library, "-c", f"{imports}\n{report}")
    assert done.returncode == 0, done.stderr
    ours = REPOSITORY / "profiling"
    assert done.stdout.splitlines() == [
        "standard Collector",
        f"{ours / '__init__.py'} {ours / 'trace' / '__init__.py'}",
    ]


def test_our_command_runs_beside_the_standard_package(standard_library: Path) -> None:
    done = run_python(standard_library, "-m", "profiling", "--help")
    assert done.returncode == 0, done.stderr
    assert "stats" in done.stdout


def test_names_of_the_standard_library_are_not_reused() -> None:
    ours = {entry.stem for entry in Path(profiling.__path__[0]).iterdir()}
    assert ours.isdisjoint(STANDARD)
    packages = {entry.parent.name for entry in REPOSITORY.glob("*/__init__.py")}
    modules = {entry.stem for entry in REPOSITORY.glob("*.py")}
    assert (packages | modules) & sys.stdlib_module_names <= {"profiling"}
