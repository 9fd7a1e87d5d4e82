"""Names of modules and commands in a checkout; those of an installation: tests/test_wheel.py."""

import ast
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from common.cli import installed_command, resuming_command
from common.program import (
    FOLDER,
    command_words,
    module_command,
    module_name,
    program_version,
    train_words,
)
from tests.structure import read_product
from tests.support.commands import REPOSITORY, run_program

OURS = re.compile(r"(common|data|launch|profiling)(\.\w+)*|train\.py")
ALLOWED = {"common.program", "launch.mpirun"}


@pytest.fixture(params=["script", "environment", "editable"])
def elsewhere(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Another working directory: of a checkout's script or module, or an editable installation."""
    monkeypatch.chdir(tmp_path)
    others = [entry for entry in sys.path if Path(entry).resolve() != FOLDER]
    path = {
        "script": [str(FOLDER), *others],
        "environment": ["", str(FOLDER), *others],
        "editable": ["", *others, str(FOLDER)],
    }
    monkeypatch.setattr(sys, "path", path[request.param])
    monkeypatch.setenv("PYTHONPATH", str(FOLDER) if request.param == "environment" else "")
    return tmp_path


def test_commands_typed_in_another_folder(elsewhere: Path) -> None:
    path = [] if sys.path[-1] == str(FOLDER) else ["env", f"PYTHONPATH={FOLDER}"]
    assert command_words("data") == [*path, "python", "-m", "data"]
    assert command_words("train") == ["python", str(FOLDER / "train.py")]
    assert train_words() == [str(FOLDER / "train.py")]


def test_folder_of_links_to_the_checkout_is_one(elsewhere: Path) -> None:
    (elsewhere / "common").mkdir()
    (elsewhere / "common" / "program.py").write_text("")
    assert train_words() == [str(FOLDER / "train.py")]
    (elsewhere / "common" / "program.py").unlink()
    (elsewhere / "common").rmdir()
    (elsewhere / "common").symlink_to(FOLDER / "common")
    assert command_words("data") == ["python", "-m", "data"]
    assert train_words() == ["train.py"]


def test_interrupted_module_is_continued_in_another_folder(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(FOLDER / "retinanet" / "__main__.py"), "train", "a.b=1"])
    words = [*installed_command("retinanet"), "train", "a.b=1", "--resume"]
    assert resuming_command() == shlex.join(words)


@pytest.mark.slow
def test_commands_run_in_another_folder(
    elsewhere: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    python_path = ""
    if sys.path[-1] == str(FOLDER):
        site = tmp_path_factory.mktemp("site")
        (site / "sitecustomize.py").write_text(f"import sys\nsys.path.append({str(FOLDER)!r})\n")
        python_path = str(site)
    # A folder of images of this name is no package.
    (elsewhere / "data").mkdir()
    for group in ("data", "train"):
        line = shlex.join([*installed_command(group), "--help"])
        done = run_program("sh", "-c", line, cwd=elsewhere, PYTHONPATH=python_path)
        assert done.returncode == 0 and done.stdout.startswith("usage:"), (line, done.stderr)


def test_names_of_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert module_name("data.loader") == "data.loader" and FOLDER == REPOSITORY
    assert module_command("profiling.bench.worker")[1:] == ["-m", "profiling.bench.worker"]
    assert command_words("retinanet") == ["python", "-m", "retinanet"]
    assert command_words("train") == ["python", "train.py"] and train_words() == ["train.py"]


def test_version_is_that_of_the_project() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert program_version() == project["version"]


def test_no_module_is_run_by_its_name_in_a_checkout() -> None:
    for file in read_product():
        for node in ast.walk(ast.parse(file.path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.List | ast.Tuple) and file.module not in ALLOWED:
                words = [word.value for word in node.elts if isinstance(word, ast.Constant)]
                is_ours = any(OURS.fullmatch(str(word)) for word in words)
                assert not ({"-m", "python"} & set(words) and is_ours), (file.module, words)
