import json
from pathlib import Path

import pytest

from retinanet.__main__ import main
from tests.support.commands import RunHere
from tests.support.mlperf_runs import closed_config, write_run


def runs_of(folder: Path, *epochs: int, changes: tuple[str, ...] = ()) -> list[Path]:
    """Closed runs that converged after so many epochs."""
    return [
        write_run(
            folder / f"run{number}",
            closed_config(f"run.seed={number}", *changes),
            accuracies=[0.2] * (count - 1) + [0.35],
        )
        for number, count in enumerate(epochs)
    ]


def test_runs_as_long_as_the_references_pass(run_here: RunHere, tmp_path: Path) -> None:
    numbers = tmp_path / "found.json"
    runs = runs_of(tmp_path, 4, 5, 4, 4, 6)
    done = run_here(main, "mlperf", "rcp", *runs, "--json", numbers)
    assert (done.returncode, done.stderr) == (0, "")
    shown = " ".join(done.stdout.split())
    assert "runs at global batch size 256, rules 5.1.0" in shown
    assert "the reference implementation: 4.00 epochs, measured" in shown
    assert "these runs: 4.33 epochs, without the fastest and the slowest" in shown
    assert "passed: RCP found" in shown
    found = json.loads(numbers.read_text())
    assert found["passed"] and found["mean_epochs"] == pytest.approx(13 / 3)
    assert [run["epochs"] for run in found["runs"]] == [4, 5, 4, 4, 6]


def test_runs_that_converge_too_fast_fail(run_here: RunHere, tmp_path: Path) -> None:
    done = run_here(main, "mlperf", "rcp", *runs_of(tmp_path, 3, 3, 3, 3, 3))
    assert done.returncode == 4
    assert "failed: RCP found" in done.stdout


def test_two_runs_without_convergence_fail(run_here: RunHere, tmp_path: Path) -> None:
    runs = runs_of(tmp_path, 4, 4, 4)
    for number in range(2):
        runs.append(write_run(tmp_path / f"bad{number}", closed_config(), accuracies=[0.1]))
    done = run_here(main, "mlperf", "rcp", *runs)
    assert done.returncode == 4 and "failed: Insufficient convergence" in done.stdout
    assert done.stdout.count("aborted") == 2


def test_a_batch_size_between_two_points_is_interpolated(run_here: RunHere, tmp_path: Path) -> None:
    changes = ("training.gradient_accumulation=448",)  # 896: between 768 and 1024
    done = run_here(main, "mlperf", "rcp", *runs_of(tmp_path, 6, 6, 6, changes=changes))
    assert done.returncode == 0
    assert "passed: RCP Interpolation" in done.stdout
    assert "3 runs; a submission has 5" in done.stdout


@pytest.mark.parametrize(("rules", "name"), [("4.1.0", "ssd"), ("2.1.0", "ssd")])
def test_older_rules_have_points_of_their_own(
    rules: str, name: str, run_here: RunHere, tmp_path: Path
) -> None:
    runs = runs_of(tmp_path, 5, 5, 5, changes=(f"mlperf.rules={rules}",))
    assert f'"value": "{name}"' in (runs[0] / "mlperf.log").read_text()
    done = run_here(main, "mlperf", "rcp", *runs, "--rules", rules)
    assert done.returncode == 0 and f"rules {rules}" in done.stdout


def test_runs_that_do_not_belong_together_are_one_line(run_here: RunHere, tmp_path: Path) -> None:
    runs = runs_of(tmp_path / "a", 4, 4, 4)
    [other] = runs_of(tmp_path / "b", 4, changes=("training.gradient_accumulation=160",))
    for words, told in (
        (runs[:2], "found 2 of at least 3 runs: the fastest and the slowest"),
        ([*runs, other], "global batch size 320, but"),
        ([*runs, runs[0]], "given twice"),
        ([*runs, tmp_path / "none"], "cannot be read"),
    ):
        done = run_here(main, "mlperf", "rcp", *words)
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert told in done.stderr


def test_a_folder_of_results_with_ranks_and_a_cut_line(run_here: RunHere, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    for number, run in enumerate(runs_of(tmp_path, 4, 5, 4, 4, 6)):
        text = (run / "mlperf.log").read_text().replace(":::MLLOG", "0: :::MLLOG")
        (results / f"result_{number}.txt").write_text(text)
    cut = '0: :::MLLOG {"key": "eval_accuracy", "val'
    (results / "result_1.txt").write_text(f"{cut}\n{(results / 'result_1.txt').read_text()}")
    numbers = tmp_path / "found.json"
    done = run_here(main, "mlperf", "rcp", results, "--json", numbers)
    assert (done.returncode, done.stderr) == (0, "")
    assert "result_1.txt" in done.stdout and "line 1" in done.stdout
    found = json.loads(numbers.read_text())
    assert found["passed"] and [run["epochs"] for run in found["runs"]] == [4, 5, 4, 4, 6]
