"""`retinanet launch scale`: tables, chart and JSON, with sample jobs and with real ranks."""

import io
import json
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from rich.console import Console

from common.errors import InputError
from launch.__main__ import main
from profiling.bench.job import JobFailedError, MeasuredJob, RankSteps
from profiling.studies import rounds
from profiling.studies.rounds import Measured, Shape
from profiling.studies.scale import draw_chart, print_study, shape_records
from tests.launch.ranks import MPIRUN, ended, run_python
from tests.launch.two_hosts import two_hosts
from tests.profiling.studies.scale.samples import measured
from tests.support.commands import RunHere, run_program
from tests.support.fast_precision import FAST_PRECISION
from tests.support.rank_steps import rank_steps

SMALL = (
    *("--mpirun", str(MPIRUN), "--batch-size", "1", "--warm-up", "1"),
    *("data.scenes.train=8", "data.scenes.validation=1", "data.image_size=64"),
    f"engine.precision={FAST_PRECISION}",
)
ONE, TWO_THREADS = measured(1, 1, 2.0), measured(1, 2, 1.25)
TWO_RANKS = measured(2, 1, 2.5, without=0.96)
REASONS = {(2, 2): "too few cores", (4, 1): "4 are too many", (4, 2): "4 are too many"}
MISFITS = {
    Shape(ranks=ranks, threads=threads, batch_size=2): REASONS.get((ranks, threads), "")
    for ranks in (1, 2, 4)
    for threads in (1, 2)
}


def printed(*results: Measured, weak: bool = True) -> list[str]:
    text = io.StringIO()
    console = Console(file=text, width=120, highlight=False)
    records = shape_records(MISFITS, {}, results, weak=weak)
    print_study(console, records, MISFITS, results, weak=weak)
    return [" ".join(line.replace("│", " ").split()) for line in text.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("results", "weak", "lines"),
    [
        (
            (ONE, TWO_THREADS, TWO_RANKS),
            True,
            [
                *("throughput relative to 1 rank × 1 thread, 1 images/s", "1 1.00 1.60 –"),
                *("2 1.60 – –", "1 2 2 1.25 s 1.6 0.0%", "2 1 4 2.5 s 1.6 80.0% 0.0% 1.0% 4.0%"),
                *("– 2 × 2: too few cores", "– 4 × 1, 4 × 2: 4 are too many"),
            ],
        ),
        ((ONE, TWO_RANKS), False, ["2 1 4 2.5 s 1.6 0.0% 1.0% 4.0%"]),
        ((ONE,), True, ["1 1.00 ? –", "2 ? – –"]),
    ],
)
def test_tables_of_a_study(results: tuple[Measured, ...], weak: bool, lines: list[str]) -> None:
    found = printed(*results, weak=weak)
    assert set(lines) <= set(found)
    assert any("efficiency" in line for line in found) == weak


def test_notes_of_ranks_are_printed_once() -> None:
    job = tuple(rank_steps(r, [1.0], held_back=[1.0], notes=["not bound"]) for r in range(2))
    results = [Measured(shape=each.shape, jobs=(job,)) for each in (ONE, TWO_RANKS)]
    notes = [line for line in printed(*results) if line.startswith("note")]
    assert notes == ["note: 1 × 1, 2 × 1: not bound"]


@pytest.mark.slow
def test_chart_shows_the_measurements(tmp_path: Path) -> None:
    pictures = []
    for name, second in (("new/a", 2.5), ("b", 2.5), ("c", 3.0)):
        file = tmp_path / f"{name}.png"
        draw_chart([ONE, measured(2, 1, second, without=0.98)], file, title="a study", weak=True)
        pictures.append(imread(file))
    first, same, other = pictures
    assert first.shape[1] > 1000
    assert np.array_equal(first, same) and not np.array_equal(first, other)


def test_chart_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        draw_chart([ONE], tmp_path / "file" / "chart.png", title="a study", weak=True)


@pytest.mark.parametrize(
    ("failure", "code", "reason"),
    [
        (None, 0, ""),
        (JobFailedError(7), 7, "exit status 7"),
        (KeyboardInterrupt(), 130, "interrupt"),
    ],
)
def test_study_keeps_what_was_measured_before_an_error(
    run_here: RunHere,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    failure: BaseException | None,
    code: int,
    reason: str,
) -> None:
    jobs: list[MeasuredJob] = []

    def measure_ranks(job: MeasuredJob, **_: Any) -> list[RankSteps]:
        jobs.append(job)
        if len(jobs) == 2 and failure is not None:
            raise failure
        return [rank_steps(0, [2.0 / len(jobs)] * 2)]

    monkeypatch.setattr(rounds, "measure_ranks", measure_ranks)
    file = tmp_path / "scaling.json"
    options = ("--ranks", "1,4096", "--threads", "1", "--rounds", "3", "--json", file)
    done = run_here(main, "scale", *options, *SMALL)
    assert done.returncode == code
    assert {job.overrides[-2:] for job in jobs} == {("launch.threads=1", "training.batch_size=1")}
    content = json.loads(file.read_text())["workload"]
    [combination, misfit] = content["combinations"]
    assert len(combination["jobs"]) == (1 if failure else 3)
    assert content["complete"] == (not failure)
    assert not misfit["fits"] and "jobs" not in misfit
    assert combination["images_per_s"] == pytest.approx(0.5 if failure else 1.0)
    assert file.with_suffix(".png").stat().st_size > 10_000
    assert reason in done.stderr and ("1 of 3 jobs" in done.stderr) == bool(failure)


@pytest.mark.whole_machine
def test_ranks_under_mpirun_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "small.json"
    command = [sys.executable, "-m", "launch", "scale", "--json", str(file), *SMALL]
    command += ["--ranks", "2,4096", "--threads", "1", "--rounds", "1", "--steps", "2"]
    done = run_program(*command, timeout=300)
    assert done.returncode == 0, done.stderr
    workload, chart = json.loads(file.read_text())["workload"], file.with_suffix(".png")
    two, misfit = workload["combinations"]
    assert (two["fits"], misfit["fits"]) == (True, False)
    assert "jobs" not in misfit and workload["complete"]
    (ranks,) = two["jobs"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    for rank in ranks:
        assert len(rank["seconds"]) == len(rank["held_back_seconds"]) == 2
        for step, exchange in zip(rank["seconds"], rank["exchange_seconds"], strict=True):
            assert 0 < exchange < step
    assert two["step_s"] == median(map(max, *(rank["seconds"] for rank in ranks)))
    assert two["images_per_s"] == pytest.approx(2 / two["step_s"])
    # What does not fit is a dash with its reason.
    lines = done.stdout.splitlines()
    rows = [line.replace("│", " ").split() for line in lines]
    assert ["1", "1.00", "–"] in rows
    assert any(line.startswith("– 4096 × 1: 4096 ranks are more") for line in lines)
    assert chart.stat().st_size > 10_000 and f"chart: {chart}" in done.stdout


@pytest.mark.exhaustive
@pytest.mark.whole_machine
def test_ranks_on_two_hosts_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "hosts.json"
    options = ("--hosts", "left,right", "--ranks", "1,2", "--threads", "1", "--rounds", "1")
    command = [sys.executable, "-m", "launch", "scale", *options, "--steps", "1"]
    command += ["--json", str(file)]
    with two_hosts(tmp_path, names_are_loopback=True) as hosts:
        done = ended(hosts.start_on_left([*command, *SMALL], environment=os.environ))
    assert done.code == 0, done.errors
    single, two = json.loads(file.read_text())["workload"]["combinations"]
    assert single["why_not"].startswith("--np 1: does not divide evenly among 2 hosts")
    assert two["hosts"] == {"left": 1, "right": 1}
    ((first, second),) = two["jobs"]
    assert (first["host"], second["host"]) == ("left", "right")
    assert "all hosts are assumed" in done.output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--ranks", "4096"], "--ranks, --threads: no combination fits: 4096 × 1"),
        (["--ranks", "1,x"], "expected numbers such as 1,2,4, found '1,x'"),
        (
            ["--chart", "data.image_size=64"],
            "expected a name that ends in .png or .svg, found 'data.i",
        ),
        (["launch.threads=4"], "launch.threads: set by --threads"),
        (["training.batch_size=4"], "training.batch_size: set by --batch-size or --global-batch"),
        (["--json", "README.md"], "README.md: exists; give --json another file"),
        (["--mpirun", "README.md"], "--mpirun: README.md"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: list[str], expected: str, run_here: RunHere
) -> None:
    done = run_here(main, "scale", *arguments)
    assert done.returncode == 2
    assert expected in done.stderr


@pytest.mark.slow
def test_command_line_loads_neither_torch_nor_matplotlib() -> None:
    loaded = "{'torch', 'numpy', 'matplotlib'} & {*sys.modules}"
    assert run_python(f"import sys, launch.__main__; print({loaded})").output == "set()\n"
