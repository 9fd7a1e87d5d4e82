"""MLCommons' checkers: `mlperf check` and `mlperf rcp`."""

import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from mlperf_logging.rcp_checker.rcp_checker import check_directory

from retinanet.__main__ import main
from tests.support.commands import RunHere
from tests.support.mlperf_runs import closed_config, write_run, write_runs

CHECK, RCP = ("mlperf", "check"), ("mlperf", "rcp")
DIVISIONS = ("open", "closed")
PUBLISHED = Path(__file__).resolve().parents[4] / "shared" / "logs" / "mlperf"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A converged run in the closed division."""
    return write_run(tmp_path / "run", closed_config(), accuracies=[0.2, 0.35])


def fault_lines(done: CompletedProcess[str]) -> list[str]:
    return [line for line in done.stdout.splitlines() if "✗" in line]


def assert_one_error(done: CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert all(part in done.stderr for part in parts)


def change_lines(log: Path, change: Callable[[list[str]], list[str]]) -> None:
    log.write_text("\n".join(change(log.read_text().splitlines())) + "\n")


def replace_text(log: Path, old: str, new: str) -> None:
    text = log.read_text()
    assert old in text
    log.write_text(text.replace(old, new))


VARIANTS = [(rules, division) for rules in ("5.1.0", "5.0.0", "4.1.0") for division in DIVISIONS]


# Closed 2.1.0 checks all tensors of the model: tests/test_train_mlperf.py.
@pytest.mark.parametrize(("rules", "division"), [*VARIANTS, ("2.1.0", "open")])
def test_converged_run_passes(rules: str, division: str, run_here: RunHere, tmp_path: Path) -> None:
    config = closed_config(f"mlperf.rules={rules}", f"mlperf.division={division}")
    run = write_run(tmp_path / "run", config, accuracies=[0.2, 0.35])
    done = run_here(main, *CHECK, run, "--rules", rules)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"rules {rules}, {division} division, batch size 256, success" in done.stdout
    assert "mAP 0.350 after epoch 2" in done.stdout
    assert "mlperf-logging 4.1.68): passed" in done.stdout
    assert "✗" not in done.stdout


@pytest.mark.parametrize("submitter", ["intel", "nvidia"])
def test_published_logs_pass_both_checkers(
    submitter: str, run_here: RunHere, tmp_path: Path
) -> None:
    logs = [*PUBLISHED.glob(f"{submitter}-*.txt")]
    if not logs:
        pytest.skip("no published logs at ../shared/logs")
    done = run_here(main, *CHECK, logs[0])
    assert (done.returncode, done.stderr) == (0, "")
    assert "ssd, rules 4.1.0, closed division, batch size 256, success, mAP 0.344" in done.stdout
    assert "samples are counted in batches, which is allowed" in done.stdout
    for number in range(3):
        shutil.copy(logs[0], tmp_path / f"result_{number}.txt")
    done = run_here(main, *RCP, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "these runs: 4.00 epochs" in done.stdout and "passed: RCP found" in done.stdout
    # Three copies of one run are no set.
    [line] = [line for line in done.stdout.splitlines() if line.startswith("not a set: ")]
    assert line.startswith("not a set: equal seeds (") and line.count("result_") == 3


def test_missed_target_is_the_only_fault(run_here: RunHere, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", closed_config(), accuracies=[0.2, 0.3])
    numbers = tmp_path / "found.json"
    done = run_here(main, *CHECK, run, "--json", numbers)
    [fault] = fault_lines(done)
    assert done.returncode == 4 and "eval_accuracy" in fault and "0.340" in fault
    content = json.loads(numbers.read_text())
    assert (content["passed"], len(content["faults"]), content["rules"]) == (False, 1, "5.1.0")
    assert run_here(main, *CHECK, run, "--json", numbers).returncode == 2
    assert json.loads(numbers.read_text()) == content


@pytest.mark.parametrize(
    "key", ["run_stop", "init_stop", "submission_org", "opt_name", "train_samples", "cache_clear"]
)
def test_missing_key_is_a_fault(key: str, run: Path, run_here: RunHere) -> None:
    change_lines(run / "mlperf.log", lambda lines: [x for x in lines if f'"{key}"' not in x])
    done = run_here(main, *CHECK, run)
    assert done.returncode == 4 and any(key in fault for fault in fault_lines(done))


def test_remarks_on_what_a_submission_needs(run_here: RunHere, tmp_path: Path) -> None:
    config = closed_config("mlperf.organization=unnamed")
    log = write_run(tmp_path / "run", config, accuracies=[0.2]) / "mlperf.log"
    replace_text(log, "1170301", "128")
    output = run_here(main, *CHECK, log).stdout
    assert "eval_samples" not in output
    remarks = ("train_samples: 128", "run_stop: aborted", "cache_clear: false", "organization=NAME")
    assert all(remark in output for remark in remarks)


def test_log_without_a_benchmark_is_an_error_on_one_line(run_here: RunHere, tmp_path: Path) -> None:
    file = tmp_path / "mlperf.log"
    file.write_text(':::MLLOG {"key": "seed", "value": 1, "time_ms": 1, "metadata": {}}\n')
    assert_one_error(run_here(main, *CHECK, file), str(file), "submission_benchmark")


def test_failure_of_the_checker_is_an_error_on_one_line(run: Path, run_here: RunHere) -> None:
    replace_text(
        run / "mlperf.log", '"eval_accuracy", "value": 0.2', '"eval_accuracy", "value": "x"'
    )
    assert_one_error(run_here(main, *CHECK, run), "the official checker failed")


def test_rules_without_the_benchmark_are_an_error(run: Path, run_here: RunHere) -> None:
    assert_one_error(run_here(main, *CHECK, run, "--rules", "4.1.0"), "--rules 5.1.0")


@pytest.mark.parametrize(
    ("samples", "batch", "is_recognized"),
    [
        ("4571", 256, True),
        ("4572", 256, True),
        ("4570", 256, False),
        ("4573", 256, False),
        ("576", 2048, True),
        ("570", 2048, False),
        ("600", 2048, False),
    ],
)
def test_samples_counted_in_batches_are_recognized(
    samples: str, batch: int, *, is_recognized: bool, run: Path, run_here: RunHere, tmp_path: Path
) -> None:
    replace_text(run / "mlperf.log", "1170301", samples)
    replace_text(run / "mlperf.log", "24781", "97")
    key = '"global_batch_size", "value": '
    replace_text(run / "mlperf.log", f"{key}256", f"{key}{batch}")
    numbers = tmp_path / "found.json"
    done = run_here(main, *CHECK, run, "--json", numbers)
    assert done.returncode == 0
    remarks = " ".join(json.loads(numbers.read_text())["remarks"])
    assert ("train_samples" not in remarks) == ("eval_samples" not in remarks) == is_recognized
    assert (f"{int(samples):,} × {batch:,}" in done.stdout) == is_recognized


def test_folder_of_results_is_checked_log_by_log(run_here: RunHere, tmp_path: Path) -> None:
    results, numbers = tmp_path / "results", tmp_path / "found.json"
    results.mkdir()
    for number, accuracy in ((2, 0.35), (10, 0.3), (0, 0.36)):
        config = closed_config(f"run.seed={number}")
        source = write_run(tmp_path / f"run{number}", config, accuracies=[0.2, accuracy])
        (source / "mlperf.log").rename(results / f"result_{number}.txt")
    (results / "result_x.txt").write_text("notes")
    done = run_here(main, *CHECK, results, "--json", numbers)
    assert (done.returncode, done.stderr) == (4, "")
    content = json.loads(numbers.read_text())
    assert content["passed"] is False
    logs = [(Path(log["log"]).stem, log["passed"]) for log in content["logs"]]
    assert logs == [("result_0", True), ("result_2", True), ("result_10", False)]
    assert done.stdout.count("official compliance checker") == 3
    (results / "result_10.txt").unlink()
    assert run_here(main, *CHECK, results).returncode == 0
    assert_one_error(run_here(main, *CHECK, tmp_path), str(tmp_path))


@pytest.mark.parametrize("prefix", ["0: ", "[1,0]<stdout>: ", "node1 rank 0 | "])
def test_prefixes_of_launchers_are_removed(prefix: str, run: Path, run_here: RunHere) -> None:
    expected = run_here(main, *CHECK, run)
    change_lines(run / "mlperf.log", lambda lines: [prefix + x for x in ("epoch 1", *lines)])
    done = run_here(main, *CHECK, run)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", expected.stdout)


@pytest.mark.parametrize("damage", ['{"namespace": "", "ti', "[1]", "{}", '{"key": 1', ""])
def test_truncated_line_is_a_fault_with_its_number(
    damage: str, run: Path, run_here: RunHere
) -> None:
    line = f"0: :::MLLOG {damage}"
    change_lines(run / "mlperf.log", lambda lines: [*lines[:4], line, *lines[4:]])
    done = run_here(main, *CHECK, run)
    assert (done.returncode, done.stderr) == (4, "")
    assert fault_lines(done)[-1].endswith("line 5")
    assert "success, mAP 0.350 after epoch 2" in done.stdout


def test_repeated_line_is_a_warning(run: Path, run_here: RunHere, tmp_path: Path) -> None:
    size = '"global_batch_size"'
    change_lines(run / "mlperf.log", lambda x: [*(line for line in x if size in line), *x])
    numbers = tmp_path / "found.json"
    done = run_here(main, *CHECK, run, "--json", numbers)
    [warning] = json.loads(numbers.read_text())["warnings"]
    assert done.returncode == 0 and "EXACTLY_ONE" in warning and warning in done.stdout
    assert "passed" not in done.stdout and "1 warning" in done.stdout


def test_runs_like_the_reference_pass(run_here: RunHere, tmp_path: Path) -> None:
    numbers, results = tmp_path / "found.json", tmp_path / "results"
    runs = write_runs(tmp_path, 4, 5, 4, 4, 6)
    done = run_here(main, *RCP, *runs, "--json", numbers)
    assert (done.returncode, done.stderr) == (0, "")
    output = " ".join(done.stdout.split())
    assert "global batch size 256, rules 5.1.0" in output
    assert "reference implementation: 4.00 epochs, measured" in output
    assert "these runs: 4.33 epochs" in output and "passed: RCP found" in output
    content = json.loads(numbers.read_text())
    assert content["passed"] and content["mean_epochs"] == pytest.approx(13 / 3)
    assert content["remarks"] == [] and "not a set" not in output
    assert [run["epochs"] for run in content["runs"]] == [4, 5, 4, 4, 6]
    # The same with prefixes and a truncated line, in the folder of a submission.
    results.mkdir()
    for number, run in enumerate(runs):
        cut = '0: :::MLLOG {"key": "eval_accuracy", "val\n' * (number == 1)
        text = (run / "mlperf.log").read_text().replace(":::MLLOG", "0: :::MLLOG")
        (results / f"result_{number}.txt").write_text(cut + text)
    numbers.unlink()
    done = run_here(main, *RCP, results, "--json", numbers)
    assert (done.returncode, done.stderr) == (0, "")
    assert "result_1.txt" in done.stdout and "line 1" in done.stdout
    again = json.loads(numbers.read_text())
    assert again["passed"] and [run["epochs"] for run in again["runs"]] == [4, 5, 4, 4, 6]


@pytest.mark.parametrize(
    ("epochs", "changes", "code", "expected"),
    [
        ((3, 3, 3, 3, 3), (), 4, ["failed: RCP found"]),
        # 896: between 768 and 1024
        ((6, 6, 6), ("training.gradient_accumulation=448",), 0, ["RCP Interpolation", "3 runs; "]),
        ((5, 5, 5), ("mlperf.rules=4.1.0",), 0, ["rules 4.1.0"]),
        ((5, 5, 5), ("mlperf.rules=2.1.0",), 0, ["rules 2.1.0"]),
    ],
)
def test_runs_are_compared_with_the_reference_points(
    run_here: RunHere,
    tmp_path: Path,
    *,
    epochs: tuple[int, ...],
    changes: tuple[str, ...],
    code: int,
    expected: list[str],
) -> None:
    rules = [change.partition("=")[2] for change in changes if change.startswith("mlperf.rules")]
    options = ["--rules", *rules] if rules else []
    done = run_here(main, *RCP, *write_runs(tmp_path, *epochs, changes=changes), *options)
    assert done.returncode == code and all(text in done.stdout for text in expected)


def test_mean_of_the_runs_is_the_official_checkers(
    run_here: RunHere, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # 512: its point is pruned, so that the reference is interpolated. The run that misses the
    # target counts as the slowest one.
    batches = "training.gradient_accumulation=256"
    runs = write_runs(tmp_path, 5, 6, 7, 8, changes=(batches,))
    runs.append(write_run(tmp_path / "bad", closed_config(batches), accuracies=[0.1]))
    numbers = tmp_path / "found.json"
    assert run_here(main, *RCP, *runs, "--json", numbers).returncode == 0
    content = json.loads(numbers.read_text())
    for number, run in enumerate(runs):
        shutil.copy(run / "mlperf.log", tmp_path / f"result_{number}.txt")
    with caplog.at_level(logging.INFO):
        check_directory(str(tmp_path), "training", "5.1.0", False, False, rcp_pass="pruned_rcps")
    official = re.search(r"Submission mean epochs: ([\d.]+)", caplog.text)
    reference = re.search(r"'RCP Mean': (?:np.float64\()?([\d.]+)", caplog.text)
    assert official and content["mean_epochs"] == float(official[1]) == 7
    assert reference and content["reference_epochs"] == pytest.approx(float(reference[1]))


def test_two_runs_without_convergence_fail(run_here: RunHere, tmp_path: Path) -> None:
    runs = write_runs(tmp_path, 4, 4, 4)
    for number in range(2):
        runs.append(write_run(tmp_path / f"bad{number}", closed_config(), accuracies=[0.1]))
    done = run_here(main, *RCP, *runs)
    assert done.returncode == 4 and "failed: Insufficient convergence" in done.stdout
    assert done.stdout.count("aborted") == 2


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        (("run.seed=1",), "not a set: equal seeds (1: "),
        (("mlperf.organization=Them",), "not a set: different submitters (Us: "),
        (("mlperf.platform=8 nodes",), "not a set: different systems ("),
        (("mlperf.division=open",), "not a set: different divisions (closed: "),
    ],
)
def test_run_that_does_not_belong_to_the_set_is_named(
    changes: tuple[str, ...], remark: str, run_here: RunHere, tmp_path: Path
) -> None:
    runs = write_runs(tmp_path / "a", 5, 5, 5, 5)
    other = closed_config("run.seed=9", *changes)
    runs.append(write_run(tmp_path / "other", other, accuracies=[0.2] * 4 + [0.35]))
    numbers = tmp_path / "found.json"
    done = run_here(main, *RCP, *runs, "--json", numbers)
    assert done.returncode == 0
    [line] = [line for line in done.stdout.splitlines() if line.startswith("not a set")]
    assert line.startswith(remark) and "other/mlperf.log" in line
    assert json.loads(numbers.read_text())["remarks"] == [line]


def test_incomparable_runs_are_an_error_on_one_line(run_here: RunHere, tmp_path: Path) -> None:
    runs = write_runs(tmp_path / "a", 4, 4, 4)
    [other] = write_runs(tmp_path / "b", 4, changes=("training.gradient_accumulation=160",))
    assert_one_error(run_here(main, *RCP, *runs[:2]), "2 runs")
    for more, reason in ((other, "320"), (runs[0], "twice"), (tmp_path / "none", "cannot be read")):
        assert_one_error(run_here(main, *RCP, *runs, more), reason)
