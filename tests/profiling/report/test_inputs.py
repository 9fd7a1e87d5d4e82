"""What is found in a run's folder and beside a log."""

from pathlib import Path

import pytest

from common.errors import InputError
from profiling.report.command import find_inputs


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of eleven ranks with everything; two files are somebody else's."""
    folder = tmp_path / "coco"
    for name in ("onednn", "trace", "perf"):
        (folder / name).mkdir(parents=True)
    for rank in (10, 0, 2):
        (folder / "onednn" / f"rank{rank}.log").touch()
        (folder / "trace" / f"rank{rank}.json.gz").touch()
        (folder / "perf" / f"rank{rank}.json").touch()
    (folder / "trace" / ".partial-rank0.json.gz").touch()
    (folder / "onednn" / "notes.txt").touch()
    (folder / "environment.json").touch()
    return folder


def test_all_of_a_run_is_found_in_order_of_ranks(run: Path) -> None:
    found = find_inputs([run], trace=None, environment=None)
    assert [file.name for file in found.logs] == ["rank0.log", "rank2.log", "rank10.log"]
    assert found.trace == run / "trace" / "rank0.json.gz"
    assert found.environment == run / "environment.json"
    assert [file.name for file in found.counters] == ["rank0.json", "rank2.json", "rank10.json"]


def test_a_runs_log_or_folder_of_logs_tells_of_the_run(run: Path) -> None:
    folder = find_inputs([run / "onednn"], trace=None, environment=None)
    assert folder.environment == run / "environment.json"
    assert len(folder.logs) == 3
    one = find_inputs([run / "onednn" / "rank2.log"], trace=None, environment=None)
    assert one.environment == run / "environment.json"
    assert one.logs == (run / "onednn" / "rank2.log",)


def test_of_one_ranks_log_the_files_are_that_ranks(run: Path) -> None:
    one = find_inputs([run / "onednn" / "rank2.log"], trace=None, environment=None)
    assert one.trace == run / "trace" / "rank2.json.gz"
    assert one.counters == (run / "perf" / "rank2.json",)


def test_what_is_given_goes_before_what_is_found(run: Path, tmp_path: Path) -> None:
    trace, environment = tmp_path / "t.json", tmp_path / "e.json"
    found = find_inputs([run], trace=trace, environment=environment)
    assert (found.trace, found.environment) == (trace, environment)


def test_a_log_of_any_program_has_only_what_lies_beside_it(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.touch()
    alone = find_inputs([log], trace=None, environment=None)
    assert (alone.trace, alone.environment, alone.counters) == (None, None, ())
    (tmp_path / "environment.json").touch()
    beside = find_inputs([log], trace=None, environment=None)
    assert beside.environment == tmp_path / "environment.json"


def test_a_run_without_logs_says_how_to_get_them(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    with pytest.raises(InputError, match="train with profile"):
        find_inputs([tmp_path], trace=None, environment=None)
