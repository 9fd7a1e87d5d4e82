import json
from pathlib import Path

import pytest

from retinanet.__main__ import main
from tests.conftest import RunHere
from tests.mlperf_runs import closed_config, write_run

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
