"""The hosted workflow and the forms of issues and changes: what they run, and what they ask for."""

import re
import tomllib
from typing import Any

from packaging.specifiers import SpecifierSet

from common.program import FOLDER
from common.yaml_text import read_yaml

GITHUB = FOLDER / ".github"


def read(name: str) -> Any:
    return read_yaml((GITHUB / name).read_text("utf-8"), name)


def test_workflow_runs_ci_on_the_oldest_and_the_newest_python() -> None:
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text("utf-8"))["project"]
    supported = SpecifierSet(project["requires-python"])
    minors = [minor for minor in range(100) if f"3.{minor}" in supported]
    [job] = read("workflows/ci.yml")["jobs"].values()
    assert job["strategy"]["matrix"]["python"] == [f"3.{minors[0]}", f"3.{minors[-1]}"]
    [step] = [step for step in job["steps"] if step.get("run") == ".ci/run"]
    assert (FOLDER / step["run"]).stat().st_mode & 0o100
    assert "PYTHON" in step["env"]  # setup.sh takes the newest Python otherwise
    assert job["timeout-minutes"] <= 120


def test_workflow_may_only_read_and_its_actions_have_a_version() -> None:
    content = read("workflows/ci.yml")
    [job] = content["jobs"].values()
    assert content["permissions"] == {"contents": "read"} and "permissions" not in job
    used = [step["uses"] for step in job["steps"] if "uses" in step]
    assert used and all(re.fullmatch(r"actions/[\w-]+@v\d+", action) for action in used)


def test_forms_ask_for_processor_versions_and_command() -> None:
    form = read("ISSUE_TEMPLATE/bug.yml")
    needed = {part["id"] for part in form["body"] if part.get("validations", {}).get("required")}
    assert needed == {"command", "output", "version", "processor"}
    described = " ".join(part["attributes"]["description"] for part in form["body"])
    template = (GITHUB / "pull_request_template.md").read_text("utf-8")
    for asked in ("lscpu", "retinanet --version"):
        assert asked in described and asked in template
