"""The version of a release: one number, its section of the changelog, and what refuses others."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from common.program import program_version
from tests.support.commands import REPOSITORY, error_line, run_program

CHANGELOG = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c")


def test_citation_has_version_and_date_of_the_newest_section() -> None:
    citation = YAML(typ="safe").load(REPOSITORY / "CITATION.cff")
    assert citation["version"] == program_version()
    headings = re.findall(r"^## (.*)", CHANGELOG, re.MULTILINE)
    assert headings[:2] == ["Unreleased", f"{program_version()} – {citation['date-released']}"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small clone, whose version has a section in its changelog."""
    for name in (".ci/release", "pyproject.toml", "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    (tmp_path / ".gitignore").write_text("dist/\n")
    commit(tmp_path)
    return tmp_path


def commit(folder: Path) -> None:
    for words in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "--message=a")):
        run_program(*GIT, *words, cwd=folder, check=True)


def change_a_file(folder: Path) -> None:
    (folder / "new.txt").touch()


def raise_the_version(folder: Path) -> None:
    file = folder / "pyproject.toml"
    file.write_text(file.read_text().replace(f'"{program_version()}"', '"99.0.0"'))
    commit(folder)


def build_before(folder: Path) -> None:
    (folder / "dist").mkdir()
    (folder / "dist" / f"retinanet_cpu-{program_version()}.tar.gz").touch()


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (change_a_file, "this checkout has changes"),
        (raise_the_version, "CHANGELOG.md: has no section '## 99.0.0 –"),
        (build_before, f"dist/ has retinanet_cpu-{program_version()} already"),
    ],
)
def test_release_refuses(prepare: Callable[[Path], None], message: str, checkout: Path) -> None:
    prepare(checkout)
    before = sorted(checkout.rglob("*"))
    done = run_program(checkout / ".ci" / "release", cwd=checkout)
    assert error_line(done).startswith(f"release: {message}") and done.stdout == ""
    assert sorted(checkout.rglob("*")) == before


def test_failed_check_ends_a_release(checkout: Path) -> None:
    (checkout / "Makefile").write_text("good: ; @echo passed\nbad: ; @false\n")
    commit(checkout)
    done = run_program(checkout / ".ci" / "release", cwd=checkout, CHECKS="good bad never")
    assert done.returncode == 2 and "passed" in done.stdout and "never" not in done.stdout
    assert done.stderr.splitlines()[-1].startswith("release: make bad failed")
    assert not (checkout / "dist").exists()
