"""Files of `bench step --share`: what is in them, what is refused, and the page made of them."""

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.program import FOLDER
from profiling.__main__ import main
from profiling.bench.shared import BEGIN, END, as_markdown, leaderboard, read_shared
from tests.support.commands import RunHere, error_line

PAGE = FOLDER / "docs" / "leaderboard.md"
FILES = sorted((FOLDER / "docs" / "leaderboard").glob("*.json"))
SAMPLE = FOLDER / "docs" / "leaderboard" / "epyc-zen5-2-cores.json"
CONTENT: dict[str, Any] = json.loads(SAMPLE.read_text("utf-8"))


def run_leaderboard(run_here: RunHere, folder: Path, content: object, *options: object) -> Any:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "a.json").write_text(text)
    return run_here(main, "bench", "leaderboard", str(folder), *map(str, options))


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    content = copy.deepcopy(CONTENT)
    change(content)
    return content


def in_milliseconds(step: dict[str, Any]) -> None:
    step["runs_s"] = [1000 * seconds for seconds in step["runs_s"]]
    step["kernels_s"] = {name: 1000 * seconds for name, seconds in step["kernels_s"].items()}


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no processor": (lambda c: c.pop("processor"), "processor: "),
    "no kernels": (lambda c: c["steps"][0].pop("kernels_s"), "steps.0.kernels_s: "),
    "NaN": (lambda c: c["steps"][0].update(runs_s=[float("nan")]), "steps.0.runs_s.0: "),
    "infinite": (lambda c: c.update(step_gflop=float("inf")), "step_gflop: "),
    "no time": (lambda c: c["steps"][0].update(runs_s=[]), "steps.0.runs_s: "),
    "a text": (lambda c: c["steps"][0].update(runs_s=["2 s"]), "steps.0.runs_s.0: "),
    "negative": (lambda c: c["steps"][1].update(copy_gb_per_s=-1.0), "steps.1.copy_gb_per_s: "),
    "a path": (lambda c: c["processor"].update(name="/home/me"), "processor.name: "),
    "markup": (lambda c: c["versions"].update(torch="<b>2"), "versions.torch: "),
    "another field": (lambda c: c.update(host="node1"), "host: "),
    "another format": (lambda c: c.update(format=2), "format: "),
    "float32": (lambda c: c.update(precision="float32"), "precision: "),
    "too many cores": (lambda c: c["processor"].update(physical_cores=9), "processor.physical_c"),
    "too many threads": (lambda c: c["steps"][-1].update(threads=99), "steps.1.threads: "),
    "threads twice": (lambda c: c["steps"][1].update(threads=1), "steps.1.threads: "),
    "cores of a thread": (lambda c: c["steps"][0].update(physical_cores=2), "steps.0.physical_c"),
    "a busy machine": (lambda c: c.update(cores_busy_otherwise=0.9), "cores_busy_otherwise: "),
    "step in milliseconds": (lambda c: in_milliseconds(c["steps"][0]), "steps.0.runs_s: "),
    "kernels in milliseconds": (
        lambda c: c["steps"][0].update(runs_s=[s / 1000 for s in c["steps"][0]["runs_s"]]),
        "steps.0.kernels_s: ",
    ),
}


@pytest.mark.parametrize(("change", "field"), REFUSED.values(), ids=REFUSED)
def test_broken_file_is_refused_by_name_and_field(
    run_here: RunHere, tmp_path: Path, change: Callable[[dict[str, Any]], object], field: str
) -> None:
    line = error_line(run_leaderboard(run_here, tmp_path, changed(change)))
    assert line.startswith(f"error: {tmp_path / 'a.json'}: is no file of `bench step --share` (")
    assert f"({field}" in line and "\n" not in line


@pytest.mark.parametrize("content", ["", "{", "[]", "null"])
def test_other_file_or_none_is_refused(run_here: RunHere, tmp_path: Path, content: str) -> None:
    empty = run_here(main, "bench", "leaderboard", str(tmp_path))
    assert error_line(empty).startswith(f"error: {tmp_path}: no .json files")
    assert "a.json" in error_line(run_leaderboard(run_here, tmp_path, content))


def test_more_images_a_second_come_first_and_workloads_apart(tmp_path: Path) -> None:
    def faster(content: dict[str, Any]) -> None:
        for step in content["steps"]:
            step["runs_s"] = [seconds / 1.1 for seconds in step["runs_s"]]

    others = {"fast": changed(faster), "slow": CONTENT}
    others["small"] = changed(lambda c: c["workload"].update(images=1))
    files = {}
    for name, content in others.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
        files[name] = read_shared(tmp_path / f"{name}.json")
    two, one = leaderboard(files)
    assert (two.title[0], one.title[0]) == ("2", "1")
    rows = two.records()
    assert len(rows) == 2 * len(CONTENT["steps"]) and rows[0]["file"] == "fast"
    rates = [float(str(row["images/s"])) for row in rows]
    assert rates == sorted(rates, reverse=True)
    [row] = [row for row in rows if (row["file"], row["threads"]) == ("slow", 2)]
    step = next(step for step in CONTENT["steps"] if step["threads"] == 2)
    seconds = sorted(step["runs_s"])[len(step["runs_s"]) // 2]
    assert row["step s"] == seconds and row["images/s"] == pytest.approx(2 / seconds)
    assert row["images/s\na core"] == pytest.approx(2 / seconds / step["physical_cores"])
    assert [row["file"] for row in one.records()] == ["small", "small"]


def test_page_has_what_the_files_give(run_here: RunHere, tmp_path: Path) -> None:
    tables = leaderboard({file.stem: read_shared(file) for file in FILES})
    text = PAGE.read_text("utf-8")
    assert f"{BEGIN}{as_markdown(tables)}{END}" in text
    page = tmp_path / "page.md"
    page.write_text(text)
    assert run_leaderboard(run_here, tmp_path, CONTENT, f"--page={page}").returncode == 0
    expected = as_markdown(leaderboard({"a": read_shared(tmp_path / "a.json")}))
    assert page.read_text("utf-8") == text.replace(as_markdown(tables), expected)
    page.write_text("no marks")
    line = error_line(run_leaderboard(run_here, tmp_path, CONTENT, f"--page={page}"))
    assert f"error: {page}: no lines <!-- " in line and page.read_text() == "no marks"
    for unreadable in (tmp_path / "missing.md", tmp_path, Path(sys.executable)):
        done = run_leaderboard(run_here, tmp_path, CONTENT, f"--page={unreadable}")
        assert f"{unreadable}: cannot be read as text: " in error_line(done)
