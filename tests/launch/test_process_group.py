"""Jobs of real ranks that talk, fail, die, fall silent: how the whole job ends, and how soon."""

import signal
import socket
import time
from pathlib import Path

import pytest

from tests.launch.processes_left import wait_until_gone
from tests.launch.ranks import Ended, run_ranks, start_apart

PROGRAM = str(Path(__file__).with_name("group_program.py"))
TIMEOUT_S = 8.0


def job_of(case: str, *, ranks: int = 2, timeout_s: float = 30) -> Ended:
    return run_ranks(ranks, PROGRAM, case, str(timeout_s))


def lines_about(text: str, ended: Ended) -> list[str]:
    return [line for line in ended.errors.splitlines() if text in line]


def test_ranks_hear_each_other_and_wait_for_a_slow_one() -> None:
    job = job_of("talk", ranks=3, timeout_s=TIMEOUT_S)
    assert job.code == 0, job.errors
    common = "'from_first': 'made by 0', 'average': [1.0, 1.0], 'broadcast': [0.0, 0.0]}"
    rows = "'gather_rows': [[[0.5, 0.5], [1.5, 1.5], [1.5, 1.5]], [0, 0, 1]]"
    first = f"'gather': [0, 10, 20], {rows}, {common}"
    others = f"'gather': None, 'gather_rows': [[], []], {common}"
    assert sorted(filter(None, job.output.splitlines())) == [
        f"rank 0: {{'all_gather': [0, 10, 20], {first}",
        f"rank 1: {{'all_gather': [0, 10, 20], {others}",
        f"rank 2: {{'all_gather': [0, 10, 20], {others}",
    ]


def test_a_status_that_all_ranks_return_is_the_jobs() -> None:
    assert job_of("stopped").code == 75


@pytest.mark.parametrize(
    ("case", "code", "text"),
    [
        ("input", 2, "error: a.json: field: wrong"),
        ("input of all", 2, "error: a.json: field: wrong"),
        ("not finite", 3, "error: loss nan"),
    ],
)
def test_an_error_of_a_rank_is_told_once_and_ends_all_with_its_status(
    case: str, code: int, text: str
) -> None:
    job = job_of(case)
    assert job.code == code
    [line] = lines_about("error", job)
    assert line.endswith(text)
    assert case == "input of all" or line.startswith("rank 1 on ")


@pytest.mark.parametrize(("case", "remains"), [("input", False), ("bug", True)])
def test_bad_input_of_any_rank_leaves_no_folder_of_the_run(
    case: str, remains: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "new"
    job = run_ranks(2, PROGRAM, f"{case}, in a run folder", "30", RUN_FOLDER=str(folder))
    assert job.code == (1 if remains else 2), job.errors
    assert list(tmp_path.iterdir()) == ([folder.parent] if remains else [])


@pytest.mark.parametrize(("case", "rank"), [("bug", 1), ("bug of the first", 0)])
def test_a_bug_shows_its_traceback_and_no_other(case: str, rank: int) -> None:
    job = job_of(case)
    assert job.code == 1
    assert len(lines_about("Traceback", job)) == 1
    assert job.errors.rstrip().endswith("LookupError: a bug")
    assert job.errors.startswith("rank 1 on ") == (rank == 1)


def test_a_killed_rank_ends_the_job_at_once_and_leaves_no_other() -> None:
    begin = time.monotonic()
    job = job_of("killed", timeout_s=300)
    assert job.code not in (0, 2, 3, 75)
    assert time.monotonic() - begin < 20
    wait_until_gone(PROGRAM)


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("busy, killed", "error: rank 1 on {host} ended without a word"),
        ("busy, first killed", "error: rank 0 on {host} ended without a word"),
        ("busy, frozen", "error: rank 1 on {host} was silent for"),
        ("busy, first frozen", "error: rank 0 on {host} was silent for"),
    ],
)
def test_a_lost_rank_is_noticed_without_a_launcher_and_away_from_any_exchange(
    case: str, told: str
) -> None:
    begin = time.monotonic()
    apart = start_apart(2, PROGRAM, case, str(TIMEOUT_S))
    lost = 0 if "first" in case else 1
    left = apart.pop(1 - lost)
    _, errors = left.communicate(timeout=60)
    assert time.monotonic() - begin < TIMEOUT_S + 30  # torch's start included
    assert left.returncode == 1
    assert told.format(host=socket.gethostname()) in errors
    [process] = apart
    process.communicate(timeout=20)  # one that is stopped is killed by the other
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("case", ["busy, frozen", "busy, first frozen"])
def test_a_stopped_rank_leaves_no_process_of_the_job(case: str) -> None:
    begin = time.monotonic()
    job = job_of(case, timeout_s=TIMEOUT_S)
    assert job.code not in (0, 2, 3, 75)
    assert len(lines_about("was silent for", job)) == 1
    assert time.monotonic() - begin < TIMEOUT_S + 30
    wait_until_gone(PROGRAM)


def test_an_exchange_that_a_rank_never_joins_ends_with_the_timeout_and_leaves_no_rank() -> None:
    begin = time.monotonic()
    job = job_of("stuck", timeout_s=TIMEOUT_S)
    assert job.code == 1
    assert "imed out" in job.errors
    assert time.monotonic() - begin < TIMEOUT_S + 30
    wait_until_gone(PROGRAM)


def test_a_rank_that_never_comes_is_not_waited_for_for_ever() -> None:
    job = job_of("late", timeout_s=TIMEOUT_S)
    assert job.code in (1, 1 | signal.SIGKILL)  # mpirun may add how it ended the one that is late
    assert lines_about(" waited 8 s for ", job) or "imed out" in job.errors
