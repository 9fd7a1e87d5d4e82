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
)
from tests.structure import read_product
from tests.support.commands import REPOSITORY, run_program

OURS = re.compile(r"(common|data|launch|profiling)(\.\w+)*|train\.py")
ALLOWED = {"common.program", "launch.mpirun"}


@pytest.fixture(params=[True, False], ids=["set up", "packages only"])
def program(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str | None:
    """Return the program's path in an environment that may lack it, from another folder."""
    environment = tmp_path / "environment"
    environment.mkdir()
    monkeypatch.setattr(sys, "executable", f"{environment}/python")
    monkeypatch.chdir(tmp_path)
    if not request.param:
        return None
    (environment / "retinanet").touch()
    return "environment/retinanet"


def test_commands_typed_in_another_folder(program: str | None, tmp_path: Path) -> None:
    without = ["env", f"PYTHONPATH={FOLDER}", "environment/python", "-m", "retinanet"]
    begin = [program] if program else without
    for group, words in {"data": ["data"], "profiling": ["profile"], "retinanet": []}.items():
        assert installed_command(group) == [*begin, *words]
    (tmp_path / "common").symlink_to(FOLDER / "common")  # a folder of links is a checkout too
    begin = [program] if program else ["environment/python", "-m", "retinanet"]
    assert installed_command("train") == [*begin, "train"]
    assert command_words("train")[0] == ("retinanet" if program else "python")


def test_interrupted_module_is_continued_in_another_folder(
    program: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(FOLDER / "retinanet" / "__main__.py"), "train", "a.b=1"])
    words = [*installed_command("retinanet"), "train", "a.b=1", "--resume"]
    assert resuming_command() == shlex.join(words)


@pytest.mark.slow
@pytest.mark.parametrize("has_program", [True, False])
def test_commands_run_in_another_folder(
    has_program: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # A folder of images of this name is no package.
    Path("data").mkdir()
    if not has_program:
        monkeypatch.setattr("common.program.console_script", lambda: tmp_path / "none")
    for group in ("data", "train"):
        line = shlex.join([*installed_command(group), "--help"])
        done = run_program("sh", "-c", line, cwd=tmp_path)
        assert done.returncode == 0 and done.stdout.startswith("usage: "), (line, done.stderr)


def test_names_of_a_checkout() -> None:
    assert module_name("data.loader") == "data.loader" and FOLDER == REPOSITORY
    assert module_command("profiling.bench.worker")[1:] == ["-m", "profiling.bench.worker"]


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
