"""Benchmarks of jobs of ranks: `waiting` and `batch-split`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.cli import run_command
from profiling.__main__ import main
from profiling.bench import jobs
from profiling.bench.job import MeasuredJob, RankSteps
from profiling.bench.jobs import batch_split_findings, batch_split_table, waiting_table
from tests.support.commands import RunHere
from tests.support.fast_precision import FAST_PRECISION
from tests.support.rank_steps import rank_steps

SMALL = ["data.scenes={train: 8, validation: 1}", "data.image_size=64", "training.batch_size=2"]
SMALL += [f"engine.precision={FAST_PRECISION}"]


def two_ranks(images: tuple[int, int], alone: tuple[float, float], step: float) -> list[RankSteps]:
    """Return a job of two ranks; `alone`: seconds of a step without exchange."""
    parts: list[Any] = [{"held_back": [time] * 2, "data": [0.01] * 2} for time in alone]
    return [rank_steps(rank, [step] * 2, images=images[rank], **parts[rank]) for rank in (0, 1)]


ROUND = {
    "undisturbed": two_ranks((8, 8), (4.0, 4.0), 4.1),
    "even": two_ranks((8, 8), (4.0, 8.0), 8.0),  # ideally 2 and 1 images/s
    "speed": two_ranks((11, 5), (5.5, 5.0), 6.0),
}


def test_batch_split_is_compared_with_the_ideal_throughput() -> None:
    slow, even, by_speed, gain = batch_split_findings([ROUND])
    assert slow.value == pytest.approx(0.5)
    assert even.value == pytest.approx(2 / 3)
    assert by_speed.value == pytest.approx(16 / 6 / 3) and by_speed.is_met
    assert by_speed.target == "at least 0.8" and even.target == ""
    assert gain.value == pytest.approx(8 / 6)


@pytest.mark.parametrize(
    ("table", "rows"), [(batch_split_table([ROUND]), 6), (waiting_table({0: ROUND["even"]}), 2)]
)
def test_tables_have_a_row_for_each_rank(table: Any, rows: int) -> None:
    assert len(table.rows) == rows
    assert any("8.00 s" in table.texts(row) for row in table.rows)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[MeasuredJob]:
    """Replace mpirun by steps written by hand; collects the jobs."""
    collected: list[MeasuredJob] = []

    def measure_ranks(job: MeasuredJob, *, advance: Any, print_line: Any, **_: Any) -> Any:
        advance(1)
        print_line("a line of a rank")
        collected.append(job)
        return ROUND["speed" if "distributed.batch_split=speed" in job.overrides else "even"]

    monkeypatch.setattr(jobs, "measure_ranks", measure_ranks)
    return collected


def test_waiting_runs_a_job_for_each_number_of_workers(
    run_here: RunHere, tmp_path: Path, started: list[MeasuredJob]
) -> None:
    file = tmp_path / "numbers.json"
    options = ("--ranks", "1", "--workers", "0,2", "--json", file, *SMALL)
    done = run_here(main, "bench", "waiting", *options)
    assert done.returncode == 0, done.stderr
    assert [job.overrides[-1] for job in started] == ["data.workers=0", "data.workers=2"]
    assert {(job.ranks, job.warm_up, job.steps) for job in started} == {(1, 3, 5)}
    content = json.loads(file.read_text())
    assert content["workload"]["runs"].keys() == {"0", "2"}
    assert [each["value"] for each in content["findings"]] == [pytest.approx(0.01 / 8)] * 2
    assert "a line of a rank" in done.stdout and "target" not in done.stdout
    assert "round 1 of 1, data.workers=0; steps" in done.stdout


def test_sizes_are_measured_in_turn_and_compared_with_the_first(
    run_here: RunHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {"data.image_size=96": 2.0, "data.image_size=[64,96]": 1.25}
    started: list[str] = []

    def measure_ranks(job: MeasuredJob, **_: Any) -> list[RankSteps]:
        started.append(job.overrides[-1])
        [rank] = [rank for rank in ROUND["even"] if rank.rank == 0]
        return [replace(rank, images=4, seconds=[seconds[job.overrides[-1]]] * job.steps)]

    monkeypatch.setattr(jobs, "measure_ranks", measure_ranks)
    file = tmp_path / "numbers.json"
    options = ("--sizes", "96,64x96", "--rounds", "2", "--json", file, *SMALL)
    done = run_here(main, "bench", "sizes", *options)
    assert done.returncode == 0, done.stderr
    assert started == ["data.image_size=96", "data.image_size=[64,96]"] * 2
    content = json.loads(file.read_text())
    rates = content["workload"]["images_per_second"]
    assert rates == {"96": [2.0] * 2, "[64,96]": [3.2] * 2}
    assert [each["value"] for each in content["findings"]] == [1.6]
    assert "96×64" in done.stdout


@pytest.mark.parametrize(
    "size", ["100", "0", "64x64x64", "64x", "480x640,x", "[480,640]", "9" * 5000]
)
def test_wrong_size_is_refused(run_here: RunHere, size: str) -> None:
    done = run_here(main, "bench", "sizes", "--sizes", size)
    assert done.returncode == 2
    assert "--sizes: expected " in done.stderr and len(done.stderr) < 500


def test_batch_split_disturbs_rank_1_in_all_but_the_first_job(
    run_here: RunHere, tmp_path: Path, started: list[MeasuredJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy: list[int] = []

    def busy_cores(cpus: Any) -> Any:
        busy.append(len(started))
        return jobs.nullcontext()

    monkeypatch.setattr(jobs, "busy_cores", busy_cores)
    monkeypatch.setattr(jobs, "cpus_of_last_rank", lambda settings: (1,))
    file = tmp_path / "numbers.json"
    done = run_here(main, "bench", "batch-split", "--rounds", "2", "--json", file, *SMALL)
    assert done.returncode == 0, done.stderr
    splits = [job.overrides[-1].partition("=")[2] for job in started]
    assert splits == ["even", "even", "speed"] * 2
    assert busy == [1, 2, 4, 5]
    titles = [line.partition(";")[0] for line in done.stdout.splitlines() if "; steps" in line]
    assert list(dict.fromkeys(titles))[:2] == [
        "round 1 of 2, undisturbed, distributed.batch_split=even",
        "round 1 of 2, even, distributed.batch_split=even",
    ]
    content = json.loads(file.read_text())
    assert [list(each) for each in content["workload"]["rounds"]] == [list(ROUND)] * 2
    assert content["workload"]["busy_cpus"] == [1] and len(content["findings"]) == 4


@pytest.mark.whole_machine
@pytest.mark.exhaustive
def test_real_ranks_train_with_even_and_uneven_batches(run_here: RunHere, tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    options = ["--rounds", "1", "--steps", "1", "--json", file, *SMALL]
    done = run_here(main, "bench", "batch-split", *options)
    assert done.returncode == 0, done.stderr
    content = json.loads(file.read_text())
    [measured] = content["workload"]["rounds"]
    assert list(measured) == ["undisturbed", "even", "speed"]
    for name, ranks in measured.items():
        assert [rank["rank"] for rank in ranks] == [0, 1]
        assert sum(rank["images"] for rank in ranks) == 4
        assert name == "speed" or ranks[0]["images"] == 2
        for rank in ranks:
            assert len(rank["seconds"]) == len(rank["held_back_seconds"]) == 1
            assert 0 < rank["data_seconds"][0] < rank["seconds"][0]


@pytest.mark.slow
def test_error_of_a_rank_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    missing = f"data.root={tmp_path / 'none'}"
    arguments = ["bench", "waiting", "--config", "coco.yaml", missing, "--ranks", "1"]
    monkeypatch.setattr("sys.argv", ["profiling", *arguments])
    assert run_command(main) == 2
    [line] = capfd.readouterr().err.splitlines()  # the rank's own stderr
    assert line.startswith("error: data.root: ") and "is not a folder" in line
