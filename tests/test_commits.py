"""The rule for commit subjects, as pre-commit's hook applies it."""

import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.support.commands import REPOSITORY, run_program


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("a" * 72 + "\n\n" + "b" * 100, 0),
        ("×" * 72, 0),
        ("a" * 73, 1),
        ("×" * 73 + "\n\nbody\n", 1),
    ],
)
def test_subject_has_at_most_72_characters(message: str, status: int, tmp_path: Path) -> None:
    [local] = YAML(typ="safe").load(REPOSITORY / ".pre-commit-config.yaml")["repos"]
    [hook] = [hook for hook in local["hooks"] if hook.get("stages") == ["commit-msg"]]
    file = tmp_path / "message"
    file.write_text(message, encoding="utf-8")
    pygrep = (sys.executable, "-m", "pre_commit.languages.pygrep")
    done = run_program(*pygrep, *hook["args"], hook["entry"], file)
    assert done.returncode == status, done.stderr
