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
    """A closed run that converged."""
    return write_run(tmp_path / "run", closed_config(), accuracies=[0.2, 0.35])


OF_BOTH = [(rules, division) for rules in ("5.1.0", "5.0.0", "4.1.0") for division in DIVISIONS]


# Closed 2.1.0 lists all tensors of the model: tests/test_train_mlperf.py.
@pytest.mark.parametrize(("rules", "division"), [*OF_BOTH, ("2.1.0", "open")])
def test_the_official_checker_passes(
    rules: str, division: str, run_here: RunHere, tmp_path: Path
) -> None:
    config = closed_config(f"mlperf.rules={rules}", f"mlperf.division={division}")
    run = write_run(tmp_path / "run", config, accuracies=[0.2, 0.35])
    done = run_here(main, *CHECK, run, "--rules", rules)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"rules {rules}, {division} division, batch size 256, success" in done.stdout
    assert "mAP 0.350 after epoch 2" in done.stdout
    assert "mlperf-logging 4.1.68): passed" in done.stdout
    assert "✗" not in done.stdout


def test_a_closed_run_short_of_the_target_falls_short_of_nothing_else(
    run_here: RunHere, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", closed_config(), accuracies=[0.2, 0.3])
    numbers = tmp_path / "found.json"
    done = run_here(main, *CHECK, run, "--json", numbers)
    assert done.returncode == 4
    faults = [line for line in done.stdout.splitlines() if "✗" in line]
    assert len(faults) == 1 and "eval_accuracy" in faults[0] and "0.340" in faults[0]
    found = json.loads(numbers.read_text())
    assert (found["passed"], len(found["faults"]), found["rules"]) == (False, 1, "5.1.0")


@pytest.mark.parametrize(
    "key", ["run_stop", "init_stop", "submission_org", "opt_name", "train_samples", "cache_clear"]
)
def test_what_is_missing_is_told(key: str, run: Path, run_here: RunHere) -> None:
    log = run / "mlperf.log"
    lines = [line for line in log.read_text().splitlines() if f'"{key}"' not in line]
    log.write_text("\n".join(lines) + "\n")
    done = run_here(main, *CHECK, run)
    assert done.returncode == 4
    assert any(key in line for line in done.stdout.splitlines() if "✗" in line)


def test_what_a_submission_needs_beside_is_told(run_here: RunHere, tmp_path: Path) -> None:
    config = closed_config("mlperf.organization=unnamed")
    run = write_run(tmp_path / "run", config, accuracies=[0.2])
    log = run / "mlperf.log"
    log.write_text(log.read_text().replace("1170301", "128"))
    shown = run_here(main, *CHECK, log).stdout
    assert "train_samples: 128 training images; MLPerf's data set has 1,170,301" in shown
    assert "eval_samples" not in shown
    assert "run_stop: aborted" in shown
    assert "cache_clear: not done" in shown
    assert "submission_org: unnamed; train with mlperf.organization=NAME" in shown


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be read: No such file or directory; expected the folder of a run"),
        ("step 1 loss 2.0\n", "no line of an MLPerf log"),
        (':::MLLOG {"key": "seed", "value": 1, "time_ms": 1, "metadata": {}}\n', "no run of Ret"),
        (":::MLLOG [1]\n:::MLLOG {}\n", "no line of an MLPerf log"),
        ("\x00\xff" * 100, "no line of an MLPerf log"),
    ],
)
def test_what_is_no_log_is_one_line(
    content: str | None, told: str, run_here: RunHere, tmp_path: Path
) -> None:
    file = tmp_path / "mlperf.log"
    if content is not None:
        file.write_text(content)
    done = run_here(main, *CHECK, file)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and str(file) in done.stderr and told in done.stderr


def test_values_that_the_checker_breaks_at_are_one_line(run: Path, run_here: RunHere) -> None:
    log = run / "mlperf.log"
    log.write_text(
        log.read_text().replace('"eval_accuracy", "value": 0.2', '"eval_accuracy", "value": "x"')
    )
    done = run_here(main, *CHECK, run)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "the official checker broke off" in done.stderr


def test_rules_that_have_no_such_benchmark_are_told(run: Path, run_here: RunHere) -> None:
    done = run_here(main, *CHECK, run, "--rules", "4.1.0")
    assert done.returncode == 2 and "give --rules 5.1.0, or train with" in done.stderr


def test_a_json_file_that_exists_is_left_as_it_is(
    run: Path, run_here: RunHere, tmp_path: Path
) -> None:
    numbers = tmp_path / "found.json"
    numbers.write_text("mine")
    assert run_here(main, *CHECK, run, "--json", numbers).returncode == 2
    assert numbers.read_text() == "mine"


def changed(log: Path, old: str, new: str) -> None:
    text = log.read_text()
    assert old in text
    log.write_text(text.replace(old, new))


@pytest.mark.parametrize(("samples", "is_found"), [("4571", True), ("4572", True), ("4570", False)])
def test_samples_in_batches_are_recognised(
    samples: str, is_found: bool, run: Path, run_here: RunHere, tmp_path: Path
) -> None:
    changed(run / "mlperf.log", "1170301", samples)
    changed(run / "mlperf.log", "24781", "97")
    numbers = tmp_path / "found.json"
    done = run_here(main, *CHECK, run, "--json", numbers)
    assert done.returncode == 0
    remarks = " ".join(json.loads(numbers.read_text())["remarks"])
    assert ("train_samples" not in remarks) == ("eval_samples" not in remarks) == is_found
    assert (f"{int(samples):,} × 256" in done.stdout) == is_found


def test_a_folder_of_results_is_checked_log_by_log(run_here: RunHere, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    for number, accuracy in ((2, 0.35), (10, 0.3), (0, 0.36)):
        config = closed_config(f"run.seed={number}")
        made = write_run(tmp_path / f"run{number}", config, accuracies=[0.2, accuracy])
        (made / "mlperf.log").rename(results / f"result_{number}.txt")
    (results / "result_x.txt").write_text("notes")
    numbers = tmp_path / "found.json"
    done = run_here(main, *CHECK, results, "--json", numbers)
    assert (done.returncode, done.stderr) == (4, "")
    found = json.loads(numbers.read_text())
    assert found["passed"] is False
    assert [Path(log["log"]).name for log in found["logs"]] == [
        "result_0.txt",
        "result_2.txt",
        "result_10.txt",
    ]
    assert [log["passed"] for log in found["logs"]] == [True, True, False]
    assert done.stdout.count("official compliance checker") == 3
    (results / "result_10.txt").unlink()
    assert run_here(main, *CHECK, results).returncode == 0
    empty = run_here(main, *CHECK, tmp_path)
    assert empty.returncode == 2 and empty.stderr.count("\n") == 1 and str(tmp_path) in empty.stderr


@pytest.mark.parametrize("prefix", ["0: ", "[1,0]<stdout>: ", "node1 rank 0 | "])
def test_names_of_ranks_before_lines_are_left_out(
    prefix: str, run: Path, run_here: RunHere
) -> None:
    log = run / "mlperf.log"
    without = run_here(main, *CHECK, run)
    lines = [f"{prefix}{line}" for line in log.read_text().splitlines()]
    log.write_text("\n".join([f"{prefix}epoch 1", *lines]) + "\n")
    done = run_here(main, *CHECK, run)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", without.stdout)


@pytest.mark.parametrize("damage", ['{"namespace": "", "ti', "[1]", "{}", '{"key": 1', ""])
def test_a_cut_line_is_named_and_the_others_are_read(
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


def test_what_is_said_twice_is_no_plain_pass(run: Path, run_here: RunHere, tmp_path: Path) -> None:
    log = run / "mlperf.log"
    lines = log.read_text().splitlines()
    twice = [line for line in lines if '"global_batch_size"' in line]
    log.write_text("\n".join([*twice, *lines]) + "\n")
    numbers = tmp_path / "found.json"
    done = run_here(main, *CHECK, run, "--json", numbers)
    [warning] = json.loads(numbers.read_text())["warnings"]
    assert done.returncode == 0 and "EXACTLY_ONE" in warning and warning in done.stdout
    assert "passed" not in done.stdout and "1 warning" in done.stdout
