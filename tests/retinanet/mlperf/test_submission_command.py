import json
from importlib.metadata import version
from pathlib import Path

import pytest

from retinanet.__main__ import main
from tests.support.commands import RunHere
from tests.support.mlperf_runs import closed_config, write_run

PLATFORM = "mlperf.platform=two nodes (of 8)"


def runs_of(folder: Path, count: int, *changes: str) -> list[Path]:
    """Closed runs that converged in as many epochs as the reference implementation."""
    return [
        write_run(
            folder / f"run{number}",
            closed_config(f"run.seed={number}", PLATFORM, *changes),
            accuracies=[0.2, 0.25, 0.3, 0.35],
        )
        for number in range(count)
    ]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_five_closed_runs_pass_the_official_package_checker(
    run_here: RunHere, tmp_path: Path
) -> None:
    out = tmp_path / "submission"
    runs = runs_of(tmp_path, 5)
    done = run_here(main, "mlperf", "submission", *runs, "--out", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert "5 of 5 runs" in done.stdout and "package checker (mlperf-logging" in done.stdout
    assert "passed" in done.stdout and "✗" not in done.stdout
    system = "two_nodes_of_8"
    results = out / "results" / system / "retinanet"
    for number, run in enumerate(runs):
        log = results / f"result_{number}.txt"
        assert log.read_bytes() == (run / "mlperf.log").read_bytes()
    described = json.loads((out / "systems" / f"{system}.json").read_text())
    assert (described["submitter"], described["division"]) == ("Us", "closed")
    assert described["status"] == "Research, Development, or Internal (RDI)"
    assert described["host_memory_capacity"].endswith(" GB")
    assert int(described["host_processor_core_count"]) >= 1
    assert described["framework"] == f"PyTorch {version('torch')}"
    empty = [name for name, value in described.items() if not value]
    assert f"fill in {', '.join(empty)}" in done.stdout
    readme = out / "benchmarks" / "retinanet" / "implementations" / system / "README.md"
    assert "./setup.sh" in readme.read_text() and (readme.parent / "result_4/config.yaml").is_file()


def test_runs_are_added_one_by_one_and_what_is_there_stays(
    run_here: RunHere, tmp_path: Path
) -> None:
    out = tmp_path / "submission"
    first, second = runs_of(tmp_path, 2)
    done = run_here(main, "mlperf", "submission", first, "--out", out)
    assert done.returncode == 4
    assert "1 of 5 runs" in done.stdout and "found 1, expected 5" in done.stdout
    [description] = (out / "systems").iterdir()
    description.write_text(description.read_text().replace('"cooling": ""', '"cooling": "air"'))
    before = contents(out)
    done = run_here(main, "mlperf", "submission", first, second, "--out", out)
    assert "2 of 5 runs" in done.stdout and "cooling" not in done.stdout
    after = contents(out)
    assert before.items() < after.items()
    assert len([name for name in after if "result_1.txt" in name]) == 1


def test_equal_seeds_are_found_by_the_official_checker(run_here: RunHere, tmp_path: Path) -> None:
    out = tmp_path / "submission"
    runs = runs_of(tmp_path, 5, "run.seed=3")
    done = run_here(main, "mlperf", "submission", *runs, "--out", out)
    assert done.returncode == 4
    assert any("eed" in line for line in done.stdout.splitlines() if "✗" in line)


def test_runs_that_cannot_be_added_are_one_line(run_here: RunHere, tmp_path: Path) -> None:
    out = tmp_path / "submission"
    [run] = runs_of(tmp_path / "a", 1)
    [other] = runs_of(tmp_path / "b", 1, "mlperf.organization=Them")
    assert run_here(main, "mlperf", "submission", run, "--out", out).returncode == 4
    before = contents(out)
    for words, told in (
        ([other], "submission_org is Them, but"),
        ([tmp_path / "none"], "cannot be read"),
        ([run / "mlperf.log"], "environment.json"),
    ):
        done = run_here(main, "mlperf", "submission", *words, "--out", out)
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert told in done.stderr
    assert contents(out) == before


def test_one_run_may_miss_the_target_and_no_second(run_here: RunHere, tmp_path: Path) -> None:
    out = tmp_path / "submission"
    runs = runs_of(tmp_path, 4)
    short = [
        write_run(
            tmp_path / f"short{seed}",
            closed_config(PLATFORM, f"run.seed={seed}"),
            accuracies=[0.1],
        )
        for seed in (11, 12)
    ]
    done = run_here(main, "mlperf", "submission", *runs, short[0], "--out", out)
    assert done.returncode == 0 and "5 of 5 runs" in done.stdout
    assert "1 file does not comply, accepting this under olympic scoring" in done.stdout
    done = run_here(main, "mlperf", "submission", short[1], "--out", out)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "only one run of a submission may have missed its target" in done.stderr


def test_a_sixth_run_is_refused(run_here: RunHere, tmp_path: Path) -> None:
    out = tmp_path / "submission"
    runs = runs_of(tmp_path, 6)
    done = run_here(main, "mlperf", "submission", *runs, "--out", out)
    assert done.returncode == 2 and "has its 5 runs; give another folder" in done.stderr


@pytest.mark.parametrize("status", ["onprem", "cloud", "research", "preview"])
def test_each_status_is_one_that_the_official_checker_knows(
    status: str, run_here: RunHere, tmp_path: Path
) -> None:
    out = tmp_path / "submission"
    [run] = runs_of(tmp_path, 1, f"mlperf.status={status}")
    shown = run_here(main, "mlperf", "submission", run, "--out", out).stdout
    assert "ystem description" not in shown
