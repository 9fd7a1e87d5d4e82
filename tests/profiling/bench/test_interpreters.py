"""Contestants in other environments: their interpreters, and runs beside those of this one."""

import json
import sys
import venv
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import InputError
from common.program import FOLDER
from profiling.__main__ import main
from profiling.bench import command, interpreters
from profiling.bench.benchmarks import STEP, counterpart_findings, step_findings
from profiling.bench.interpreters import (
    IPEX,
    IPEX_PYTHON,
    Interpreter,
    find_interpreter,
    interpreter_with_ipex,
    this_interpreter,
)
from profiling.bench.results import Results
from profiling.bench.variant import Run, Variant, Workload, choose, with_counterparts
from profiling.bench.worker_pool import variant_worker
from tests.support.commands import RunHere, error_line, write_program

HERE = this_interpreter()
OTHER = Interpreter("/envs/.venv-old/bin/python", {"python": "3.11.2", "torch": "2.8.0"})


@pytest.fixture(scope="module")
def other_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with this one's packages, whose metadata name another torch; its Python."""
    folder = tmp_path_factory.mktemp("environments") / ".venv-old"
    venv.create(folder, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    here = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "others.pth").write_text("\n".join(here) + "\n")
    (packages / "torch-2.8.0.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: torch\nVersion: 2.8.0\n"
    (packages / "torch-2.8.0.dist-info" / "METADATA").write_text(metadata)
    return folder / "bin" / "python"


def find(python: str | Path, *, loads: bool = False) -> Interpreter:
    return find_interpreter(str(python), prefix="--against", fix="give another", loads=loads)


def test_environment_is_described_by_its_own_python(other_environment: Path) -> None:
    other = find(other_environment)
    assert (other.torch, other.environment) == ("2.8.0", ".venv-old")
    assert other.versions == {**HERE.versions, "torch": "2.8.0"}
    assert other.python == str(other_environment)  # not what it is a link to


@pytest.mark.parametrize(
    ("program", "error"),
    [
        (None, "does not exist"),
        ("", "is no program"),
        ("true", "is not a Python"),
        ("echo '{}'", "is not a Python"),
        ("echo 'no\nsuch module' >&2; exit 1", "does not run there: .*: such module"),
        ("kill -9 $$", "does not run there: .*SIGKILL"),
    ],
)
def test_other_program_is_refused_in_one_line(
    program: str | None, error: str, tmp_path: Path
) -> None:
    path = tmp_path / "python"
    if program is not None:
        write_program(path, program)
        path.chmod(0o755 if program else 0o644)
    with pytest.raises(
        InputError, match=rf"--against: {path}:? .*{error}.*; give another"
    ) as caught:
        find(path)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_python_without_the_packages_is_one_line(run_here: RunHere, tmp_path: Path) -> None:
    venv.create(tmp_path / "empty", symlinks=True)
    python = tmp_path / "empty" / "bin" / "python"
    done = run_here(main, "bench", "step", "--contestants=torch", f"--against={python}")
    assert "ModuleNotFoundError: No module named" in error_line(done)


def test_ipex_is_looked_for_here_then_in_its_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_ipex = replace(OTHER, versions={**OTHER.versions, IPEX: "2.8.0"})
    old = replace(with_ipex, versions={**OTHER.versions, IPEX: "1.13.0"})  # for another torch
    found = {"here": with_ipex, "beside": with_ipex}
    monkeypatch.setattr(interpreters, "FOLDER", tmp_path)
    monkeypatch.setattr(interpreters, "this_interpreter", lambda: found["here"])
    monkeypatch.setattr(interpreters, "find_interpreter", lambda *_, **__: found["beside"])
    assert interpreter_with_ipex() is None
    found["here"] = old
    with pytest.raises(InputError, match=r"\.venv-ipex; run `make ipex`"):
        interpreter_with_ipex()
    (tmp_path / IPEX_PYTHON.parent).mkdir(parents=True)
    (tmp_path / IPEX_PYTHON).touch()
    assert interpreter_with_ipex() is with_ipex
    found["beside"] = old
    with pytest.raises(InputError, match=r"no IPEX for its torch 2\.8\.0; run `make ipex`"):
        interpreter_with_ipex()


def test_contestants_with_ipex_run_in_its_environment_or_are_left_out(
    monkeypatch: pytest.MonkeyPatch, run_here: RunHere
) -> None:
    monkeypatch.setattr(command, "interpreter_with_ipex", lambda: OTHER)
    variants = choose(STEP.variants, "torch,ipex,ipex-submission")
    placed = command.usable(variants, print, are_named=True)
    assert [variant.interpreter for variant in placed] == [None, OTHER, OTHER]
    assert placed[1].versions["torch"] == "2.8.0"
    doubled = [variant.name for variant in with_counterparts(placed, OTHER)]
    assert doubled == ["torch", "torch (torch 2.8.0)", "ipex", "ipex-submission"]
    same = Interpreter("/envs/.venv-new/bin/python", HERE.versions)
    assert with_counterparts(placed[:1], same)[1].name == "torch (.venv-new)"

    def missing() -> None:
        raise InputError("run `make ipex`")

    monkeypatch.setattr(command, "interpreter_with_ipex", missing)
    lines: list[str] = []
    [left] = command.usable(variants[:2], lines.append, are_named=True)
    assert left.name == "torch" and lines == ["ipex is skipped: run `make ipex`"]
    done = run_here(main, "bench", "step", "--contestants=ipex,ipex-submission")
    assert done.returncode == 2
    assert "`make ipex`" in done.stderr and "--contestants: " in done.stderr.splitlines()[-1]


def test_each_contestant_is_compared_with_its_counterpart_alone() -> None:
    variants = with_counterparts([Variant("torch", "", ""), Variant("ipex", "", "")], OTHER)
    seconds = dict(zip([variant.name for variant in variants], (2.0, 3.0, 4.0, 5.0), strict=True))
    runs = {
        name: [Run(seconds=value, page_faults=0, rss_mb=1.0, peak_rss_mb=1.0, details={})]
        for name, value in seconds.items()
    }
    results = Results(workload=Workload(), variants=variants, runs=runs, loaded_runs=runs)
    ours, theirs = counterpart_findings(results)
    assert ours.what == "torch against torch (torch 2.8.0)" and ours.value == 1.5
    assert ours.at_least == 0.97 and theirs.at_least is None and theirs.value == 1.25
    whats = [finding.what for finding in step_findings(results.without_counterparts)]
    assert whats[0] == "torch against ipex" and not any("(" in what for what in whats)
    assert results.torch_versions["torch (torch 2.8.0)"] == "2.8.0"
    assert results.without_counterparts.torch_versions == {}


@pytest.mark.slow
def test_worker_runs_by_the_python_of_its_variant(other_environment: Path) -> None:
    recipe, options = "tests.profiling.bench.example_recipe", {"behaviour": "works"}
    variant = Variant("one", "", recipe, options=options, interpreter=find(other_environment))
    with closing(variant_worker(variant, Workload())) as worker:
        command_line = Path(f"/proc/{worker.pid}/cmdline").read_text()
        assert command_line.startswith(f"{other_environment}\0-m\0")


SIZES = ("--images=1", "--image-size=128", "--classes=3", "--rounds=1", "--warm-up=1")


@pytest.mark.slow
def test_real_contestants_in_two_environments(
    run_here: RunHere, tmp_path: Path, other_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Torch need not be loaded there to see whether it can be: the contestant does.
    monkeypatch.setattr(interpreters, "LOADED", interpreters.LOADED[:1])
    file = tmp_path / "loss.json"
    options = ("--contestants=kernel", f"--against={other_environment}", f"--json={file}")
    done = run_here(main, "bench", "loss", *options, *SIZES)
    assert done.returncode == 0, done.stderr
    assert "kernel against kernel (torch 2.8.0)" in done.stdout
    contestants = json.loads(file.read_text())["contestants"]
    ours, theirs = contestants["kernel"], contestants["kernel (torch 2.8.0)"]
    assert ours["versions"] == HERE.versions
    assert theirs["versions"] == {**HERE.versions, "torch": "2.8.0"}
    assert ours["details"]["loss"] == theirs["details"]["loss"]


@pytest.mark.exhaustive
@pytest.mark.skipif(not (FOLDER / IPEX_PYTHON).exists(), reason="needs .venv-ipex: `make ipex`")
def test_real_step_with_ipex_has_our_loss(
    run_here: RunHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("profiling.bench.results.PROFILED_RUNS", 1)
    file = tmp_path / "step.json"
    options = ("--contestants=torch,ipex", f"--json={file}")
    done = run_here(main, "bench", "step", *options, *SIZES)
    assert done.returncode == 0, done.stderr
    contestants = json.loads(file.read_text())["contestants"]
    assert contestants["ipex"]["versions"][IPEX].startswith("2.8")
    losses = [contestants[name]["details"]["loss"] for name in ("torch", "ipex")]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
