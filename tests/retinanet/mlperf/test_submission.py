import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from mlperf_logging.system_desc_checker.system_desc_checker import check_system_desc

from common.errors import InputError
from retinanet.__main__ import main
from retinanet.mlperf.submission import add_run, notes_on_hosts
from tests.support.commands import RunHere
from tests.support.mlperf_runs import closed_config, write_run, write_runs

PLATFORM = "mlperf.platform=two nodes (of 8)"


def write_platform_runs(folder: Path, count: int, *changes: str) -> list[Path]:
    """Write closed runs that converged after as many epochs as the reference implementation."""
    return write_runs(folder, *[4] * count, changes=(PLATFORM, *changes))


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


Submit = Callable[..., tuple[int, str, str]]


@pytest.fixture
def submit(run_here: RunHere, tmp_path: Path) -> Submit:
    """Runs `mlperf submission` on runs; returns exit code, stdout and stderr."""

    def run(*runs: Path) -> tuple[int, str, str]:
        done = run_here(main, "mlperf", "submission", *runs, "--out", tmp_path / "out")
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.slow
def test_five_closed_runs_pass_and_a_sixth_is_refused(submit: Submit, tmp_path: Path) -> None:
    out = tmp_path / "out"
    runs = write_platform_runs(tmp_path, 6)
    code, output, errors = submit(*runs[:5])
    assert (code, errors) == (0, "")
    assert "5 of 5 runs" in output and "package checker (mlperf-logging" in output
    assert "passed" in output and "✗" not in output
    system = "two_nodes_of_8"
    for number, run in enumerate(runs[:5]):
        log = out / "results" / system / "retinanet" / f"result_{number}.txt"
        assert log.read_bytes() == (run / "mlperf.log").read_bytes()
    description = json.loads((out / "systems" / f"{system}.json").read_text())
    assert (description["submitter"], description["division"]) == ("Us", "closed")
    assert description["status"] == "Research, Development, or Internal (RDI)"
    assert description["host_memory_capacity"].endswith(" GB")
    assert int(description["host_processor_core_count"]) >= 1
    assert description["framework"] == f"PyTorch {version('torch')}"
    empty = [name for name, value in description.items() if not value]
    assert f"fill in {', '.join(empty)}" in output
    readme = out / "benchmarks" / "retinanet" / "implementations" / system / "README.md"
    assert "./setup.sh" in readme.read_text() and (readme.parent / "result_4/config.yaml").is_file()
    code, _, errors = submit(runs[5])
    assert code == 2 and "complete with 5 runs" in errors


@pytest.mark.slow
def test_adding_a_run_keeps_existing_files(submit: Submit, tmp_path: Path) -> None:
    first, second = write_platform_runs(tmp_path, 2)
    code, output, _ = submit(first)
    assert code == 4 and "1 of 5 runs" in output and "found 1, expected 5" in output
    [description] = (tmp_path / "out" / "systems").iterdir()
    description.write_text(description.read_text().replace('"cooling": ""', '"cooling": "air"'))
    before = read_files(tmp_path / "out")
    _, output, _ = submit(first, second)
    assert "2 of 5 runs" in output and "cooling" not in output
    after = read_files(tmp_path / "out")
    assert before.items() < after.items()
    assert len([name for name in after if "result_1.txt" in name]) == 1


@pytest.mark.slow
def test_equal_seeds_are_found_by_the_official_checker(submit: Submit, tmp_path: Path) -> None:
    code, output, _ = submit(*write_platform_runs(tmp_path, 5, "run.seed=3"))
    assert code == 4 and any("eed" in line for line in output.splitlines() if "✗" in line)


@pytest.mark.slow
def test_one_run_may_miss_the_target(submit: Submit, tmp_path: Path) -> None:
    configs = [closed_config(PLATFORM, f"run.seed={seed}") for seed in (11, 12)]
    failed = [write_run(tmp_path / f"failed{n}", configs[n], accuracies=[0.1]) for n in (0, 1)]
    code, output, _ = submit(*write_platform_runs(tmp_path, 4), failed[0])
    assert code == 0 and "5 of 5 runs" in output
    assert "1 file does not comply, accepting this under olympic scoring" in output
    code, _, errors = submit(failed[1])
    assert code == 2 and errors.count("\n") == 1 and "only one run" in errors


def test_unsuitable_runs_are_not_added(tmp_path: Path) -> None:
    out = tmp_path / "out"
    [run] = write_platform_runs(tmp_path / "a", 1)
    [other] = write_platform_runs(tmp_path / "b", 1, "mlperf.organization=Them")
    add_run(out, run)
    before = read_files(out)
    for path, reason in (
        (other, "submission_org"),
        (tmp_path / "none", "cannot be read"),
        (run / "mlperf.log", "environment.json"),
    ):
        with pytest.raises(InputError, match=reason):
            add_run(out, path)
    assert read_files(out) == before


@pytest.mark.parametrize("status", ["onprem", "cloud", "research", "preview"])
def test_official_checker_accepts_each_status(status: str, tmp_path: Path) -> None:
    [run] = write_platform_runs(tmp_path, 1, f"mlperf.status={status}")
    file = add_run(tmp_path / "out", run).description
    valid, *_ = check_system_desc(str(file), "training", "5.1.0")
    assert valid
    file.write_text(file.read_text().replace('"status": "', '"status": "un'))
    valid, *_ = check_system_desc(str(file), "training", "5.1.0")
    assert not valid


def test_settings_of_the_hosts_are_notes_of_the_description() -> None:
    tuned = {"turbo": "on", "governor": "performance", "numa_balancing": "off", "load": 1.5}
    states = {"left": tuned, "right": tuned | {"numa_balancing": "on"}}
    assert notes_on_hosts({"host_state": states}) == {
        "hw_notes": "turbo on",
        "sw_notes": "frequency governor performance, NUMA balancing off or on",
    }
    # Runs of earlier versions have none: the fields stay empty, for the user.
    assert notes_on_hosts({}) == {"hw_notes": "", "sw_notes": ""}
