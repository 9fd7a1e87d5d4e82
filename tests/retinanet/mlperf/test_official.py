"""MLCommons' checkers: `mlperf check` and `mlperf rcp`."""

import json
from pathlib import Path

import pytest

from retinanet.__main__ import main
from tests.support.commands import RunHere
from tests.support.mlperf_runs import closed_config, write_run

CHECK = ("mlperf", "check")
DIVISIONS = ("open", "closed")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A converged run in the closed division."""
    return write_run(tmp_path / "run", closed_config(), accuracies=[0.2, 0.35])


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


def test_missed_target_is_the_only_fault(run_here: RunHere, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", closed_config(), accuracies=[0.2, 0.3])
    numbers = tmp_path / "found.json"
    done = run_here(main, *CHECK, run, "--json", numbers)
    assert done.returncode == 4
    faults = [line for line in done.stdout.splitlines() if "✗" in line]
    assert len(faults) == 1 and "eval_accuracy" in faults[0] and "0.340" in faults[0]
    content = json.loads(numbers.read_text())
    assert (content["passed"], len(content["faults"]), content["rules"]) == (False, 1, "5.1.0")


@pytest.mark.parametrize(
    "key", ["run_stop", "init_stop", "submission_org", "opt_name", "train_samples", "cache_clear"]
)
def test_missing_key_is_a_fault(key: str, run: Path, run_here: RunHere) -> None:
    log = run / "mlperf.log"
    lines = [line for line in log.read_text().splitlines() if f'"{key}"' not in line]
    log.write_text("\n".join(lines) + "\n")
    done = run_here(main, *CHECK, run)
    assert done.returncode == 4
    assert any(key in line for line in done.stdout.splitlines() if "✗" in line)


def test_remarks_on_what_a_submission_needs(run_here: RunHere, tmp_path: Path) -> None:
    config = closed_config("mlperf.organization=unnamed")
    run = write_run(tmp_path / "run", config, accuracies=[0.2])
    log = run / "mlperf.log"
    log.write_text(log.read_text().replace("1170301", "128"))
    output = run_here(main, *CHECK, log).stdout
    assert "eval_samples" not in output
    for remark in (
        "train_samples: 128 training images; MLPerf's data set has 1,170,301",
        "run_stop: aborted",
        "cache_clear: false",
        "submission_org: unnamed; train with mlperf.organization=NAME",
    ):
        assert remark in output


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: No such file or directory"),
        ("step 1 loss 2.0\n", "no lines of an MLPerf log"),
        (
            ':::MLLOG {"key": "seed", "value": 1, "time_ms": 1, "metadata": {}}\n',
            "submission_benchmark",
        ),
        (":::MLLOG [1]\n:::MLLOG {}\n", "no lines of an MLPerf log"),
        ("\x00\xff" * 100, "no lines of an MLPerf log"),
    ],
)
def test_invalid_log_is_an_error_on_one_line(
    content: str | None, reason: str, run_here: RunHere, tmp_path: Path
) -> None:
    file = tmp_path / "mlperf.log"
    if content is not None:
        file.write_text(content)
    done = run_here(main, *CHECK, file)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and str(file) in done.stderr and reason in done.stderr


def test_failure_of_the_checker_is_an_error_on_one_line(run: Path, run_here: RunHere) -> None:
    log = run / "mlperf.log"
    log.write_text(
        log.read_text().replace('"eval_accuracy", "value": 0.2', '"eval_accuracy", "value": "x"')
    )
    done = run_here(main, *CHECK, run)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "the official checker failed" in done.stderr


def test_rules_without_the_benchmark_are_an_error(run: Path, run_here: RunHere) -> None:
    done = run_here(main, *CHECK, run, "--rules", "4.1.0")
    assert done.returncode == 2 and "--rules 5.1.0" in done.stderr


def test_existing_json_file_is_not_replaced(run: Path, run_here: RunHere, tmp_path: Path) -> None:
    numbers = tmp_path / "found.json"
    numbers.write_text("mine")
    assert run_here(main, *CHECK, run, "--json", numbers).returncode == 2
    assert numbers.read_text() == "mine"


def replace_text(log: Path, old: str, new: str) -> None:
    text = log.read_text()
    assert old in text
    log.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("samples", "is_recognized"), [("4571", True), ("4572", True), ("4570", False)]
)
def test_samples_counted_in_batches_are_recognized(
    samples: str, is_recognized: bool, run: Path, run_here: RunHere, tmp_path: Path
) -> None:
    replace_text(run / "mlperf.log", "1170301", samples)
    replace_text(run / "mlperf.log", "24781", "97")
    numbers = tmp_path / "found.json"
    done = run_here(main, *CHECK, run, "--json", numbers)
    assert done.returncode == 0
    remarks = " ".join(json.loads(numbers.read_text())["remarks"])
    assert ("train_samples" not in remarks) == ("eval_samples" not in remarks) == is_recognized
    assert (f"{int(samples):,} × 256" in done.stdout) == is_recognized


def test_folder_of_results_is_checked_log_by_log(run_here: RunHere, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    for number, accuracy in ((2, 0.35), (10, 0.3), (0, 0.36)):
        config = closed_config(f"run.seed={number}")
        source = write_run(tmp_path / f"run{number}", config, accuracies=[0.2, accuracy])
        (source / "mlperf.log").rename(results / f"result_{number}.txt")
    (results / "result_x.txt").write_text("notes")
    numbers = tmp_path / "found.json"
    done = run_here(main, *CHECK, results, "--json", numbers)
    assert (done.returncode, done.stderr) == (4, "")
    content = json.loads(numbers.read_text())
    assert content["passed"] is False
    assert [Path(log["log"]).name for log in content["logs"]] == [
        "result_0.txt",
        "result_2.txt",
        "result_10.txt",
    ]
    assert [log["passed"] for log in content["logs"]] == [True, True, False]
    assert done.stdout.count("official compliance checker") == 3
    (results / "result_10.txt").unlink()
    assert run_here(main, *CHECK, results).returncode == 0
    empty = run_here(main, *CHECK, tmp_path)
    assert empty.returncode == 2 and empty.stderr.count("\n") == 1 and str(tmp_path) in empty.stderr


@pytest.mark.parametrize("prefix", ["0: ", "[1,0]<stdout>: ", "node1 rank 0 | "])
def test_prefixes_of_launchers_are_removed(prefix: str, run: Path, run_here: RunHere) -> None:
    log = run / "mlperf.log"
    expected = run_here(main, *CHECK, run)
    lines = [f"{prefix}{line}" for line in log.read_text().splitlines()]
    log.write_text("\n".join([f"{prefix}epoch 1", *lines]) + "\n")
    done = run_here(main, *CHECK, run)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", expected.stdout)


@pytest.mark.parametrize("damage", ['{"namespace": "", "ti', "[1]", "{}", '{"key": 1', ""])
def test_truncated_line_is_a_fault_with_its_number(
    damage: str, run: Path, run_here: RunHere
) -> None:
    log = run / "mlperf.log"
    lines = log.read_text().splitlines()
    lines.insert(4, f"0: :::MLLOG {damage}")
    log.write_text("\n".join(lines) + "\n")
    done = run_here(main, *CHECK, run)
    assert (done.returncode, done.stderr) == (4, "")
    faults = [line for line in done.stdout.splitlines() if "✗" in line]
    assert faults[-1].endswith("line 5")
    assert "success, mAP 0.350 after epoch 2" in done.stdout


def test_repeated_line_is_a_warning(run: Path, run_here: RunHere, tmp_path: Path) -> None:
    log = run / "mlperf.log"
    lines = log.read_text().splitlines()
    repeated = [line for line in lines if '"global_batch_size"' in line]
    log.write_text("\n".join([*repeated, *lines]) + "\n")
    numbers = tmp_path / "found.json"
    done = run_here(main, *CHECK, run, "--json", numbers)
    [warning] = json.loads(numbers.read_text())["warnings"]
    assert done.returncode == 0 and "EXACTLY_ONE" in warning and warning in done.stdout
    assert "passed" not in done.stdout and "1 warning" in done.stdout


def write_runs(folder: Path, *epochs: int, changes: tuple[str, ...] = ()) -> list[Path]:
    """Closed runs that converged after the given numbers of epochs."""
    return [
        write_run(
            folder / f"run{number}",
            closed_config(f"run.seed={number}", *changes),
            accuracies=[0.2] * (count - 1) + [0.35],
        )
        for number, count in enumerate(epochs)
    ]


def test_runs_like_the_reference_pass(run_here: RunHere, tmp_path: Path) -> None:
    numbers = tmp_path / "found.json"
    runs = write_runs(tmp_path, 4, 5, 4, 4, 6)
    done = run_here(main, "mlperf", "rcp", *runs, "--json", numbers)
    assert (done.returncode, done.stderr) == (0, "")
    output = " ".join(done.stdout.split())
    assert "runs at global batch size 256, rules 5.1.0" in output
    assert "reference implementation: 4.00 epochs, measured" in output
    assert "these runs: 4.33 epochs" in output and "passed: RCP found" in output
    content = json.loads(numbers.read_text())
    assert content["passed"] and content["mean_epochs"] == pytest.approx(13 / 3)
    assert [run["epochs"] for run in content["runs"]] == [4, 5, 4, 4, 6]


def test_too_fast_convergence_fails(run_here: RunHere, tmp_path: Path) -> None:
    done = run_here(main, "mlperf", "rcp", *write_runs(tmp_path, 3, 3, 3, 3, 3))
    assert done.returncode == 4
    assert "failed: RCP found" in done.stdout


def test_two_runs_without_convergence_fail(run_here: RunHere, tmp_path: Path) -> None:
    runs = write_runs(tmp_path, 4, 4, 4)
    for number in range(2):
        runs.append(write_run(tmp_path / f"bad{number}", closed_config(), accuracies=[0.1]))
    done = run_here(main, "mlperf", "rcp", *runs)
    assert done.returncode == 4 and "failed: Insufficient convergence" in done.stdout
    assert done.stdout.count("aborted") == 2


def test_batch_size_between_two_points_is_interpolated(run_here: RunHere, tmp_path: Path) -> None:
    changes = ("training.gradient_accumulation=448",)  # 896: between 768 and 1024
    done = run_here(main, "mlperf", "rcp", *write_runs(tmp_path, 6, 6, 6, changes=changes))
    assert done.returncode == 0
    assert "passed: RCP Interpolation" in done.stdout
    assert "3 runs; a submission has 5" in done.stdout


@pytest.mark.parametrize(("rules", "name"), [("4.1.0", "ssd"), ("2.1.0", "ssd")])
def test_older_rules_have_other_points(
    rules: str, name: str, run_here: RunHere, tmp_path: Path
) -> None:
    runs = write_runs(tmp_path, 5, 5, 5, changes=(f"mlperf.rules={rules}",))
    assert f'"value": "{name}"' in (runs[0] / "mlperf.log").read_text()
    done = run_here(main, "mlperf", "rcp", *runs, "--rules", rules)
    assert done.returncode == 0 and f"rules {rules}" in done.stdout


def test_incomparable_runs_are_an_error_on_one_line(run_here: RunHere, tmp_path: Path) -> None:
    runs = write_runs(tmp_path / "a", 4, 4, 4)
    [other] = write_runs(tmp_path / "b", 4, changes=("training.gradient_accumulation=160",))
    for arguments, reason in (
        (runs[:2], "2 runs, but at least 3"),
        ([*runs, other], "global batch size 320, but"),
        ([*runs, runs[0]], "given twice"),
        ([*runs, tmp_path / "none"], "cannot be read"),
    ):
        done = run_here(main, "mlperf", "rcp", *arguments)
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert reason in done.stderr


def test_rcp_ignores_prefixes_and_a_truncated_line(run_here: RunHere, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    for number, run in enumerate(write_runs(tmp_path, 4, 5, 4, 4, 6)):
        text = (run / "mlperf.log").read_text().replace(":::MLLOG", "0: :::MLLOG")
        (results / f"result_{number}.txt").write_text(text)
    cut = '0: :::MLLOG {"key": "eval_accuracy", "val'
    (results / "result_1.txt").write_text(f"{cut}\n{(results / 'result_1.txt').read_text()}")
    numbers = tmp_path / "found.json"
    done = run_here(main, "mlperf", "rcp", results, "--json", numbers)
    assert (done.returncode, done.stderr) == (0, "")
    assert "result_1.txt" in done.stdout and "line 1" in done.stdout
    content = json.loads(numbers.read_text())
    assert content["passed"] and [run["epochs"] for run in content["runs"]] == [4, 5, 4, 4, 6]
