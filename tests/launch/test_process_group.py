"""Jobs of real ranks that exchange values, fail, die or hang: how and when the whole job ends."""

import signal
import socket
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from common.errors import InputError
from launch import process_group
from launch.process_group import RankFacts, connect, exchange_facts, wait_for_listener
from launch.ranks import Ranks
from launch.rendezvous import Rendezvous
from launch.secret import JobSecret, SealedStore
from launch.waiting import Wait
from tests.launch.ranks import Ended, free_port, run_ranks, start_apart
from tests.support.processes import wait_until, wait_until_gone

PROGRAM = str(Path(__file__).with_name("group_program.py"))
TIMEOUT_S = 8.0
TIMEOUT = timedelta(seconds=TIMEOUT_S)


def run_job(case: str, *, ranks: int = 2, timeout_s: float = 30, run_folder: str = "") -> Ended:
    return run_ranks(ranks, PROGRAM, case, str(timeout_s), RUN_FOLDER=run_folder)


def lines_with(text: str, job: Ended) -> list[str]:
    return [line for line in job.errors.splitlines() if text in line]


@pytest.mark.slow
def test_ranks_exchange_values_and_wait_for_a_slow_one() -> None:
    job = run_job("exchange", ranks=3, timeout_s=TIMEOUT_S)
    assert job.code == 75, job.errors  # as all ranks return
    common = "'from_first': 'made by 0', 'average': [1.0, 1.0], 'broadcast': [0.0, 0.0]}"
    rows = "'gather_rows': [[[0.5, 0.5], [1.5, 1.5], [1.5, 1.5]], [0, 0, 1]]"
    first = f"'gather': [0, 10, 20], {rows}, {common}"
    others = f"'gather': None, 'gather_rows': [[], []], {common}"
    assert sorted(filter(None, job.output.splitlines())) == [
        f"rank 0: {{'all_gather': [0, 10, 20], {first}",
        f"rank 1: {{'all_gather': [0, 10, 20], {others}",
        f"rank 2: {{'all_gather': [0, 10, 20], {others}",
    ]


@pytest.mark.slow
def test_bad_input_of_a_rank_is_one_line_and_removes_the_new_folder(tmp_path: Path) -> None:
    job = run_job("input, in a run folder", run_folder=str(tmp_path / "runs" / "new"))
    assert job.code == 2, job.errors
    [line] = lines_with("error", job)
    assert line.startswith("rank 1 on ") and line.endswith("a.json: field: wrong")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_bug_of_a_rank_is_printed_once_and_ends_all_ranks() -> None:
    job = run_job("bug")
    assert job.code == 1, job.errors
    assert len(lines_with("Traceback", job)) == 1
    assert job.errors.startswith("rank 1 on ")
    assert job.errors.rstrip().endswith("LookupError: a bug")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("case", "code", "text"),
    [
        ("input of all", 2, "error: a.json: field: wrong"),
        ("not finite", 3, "error: loss nan"),
        ("bug of the first", 1, "LookupError: a bug"),
    ],
)
def test_other_errors_are_printed_once(case: str, code: int, text: str) -> None:
    job = run_job(case)
    assert job.code == code
    [line] = lines_with(text, job)
    assert line == text if case == "input of all" else line.endswith(text)
    assert job.errors.count("Traceback") == (case == "bug of the first")


@pytest.mark.slow
def test_killed_rank_ends_the_job_at_once() -> None:
    begin = time.monotonic()
    job = run_job("killed", timeout_s=300)
    assert job.code not in (0, 2, 3, 75)
    assert time.monotonic() - begin < 150
    wait_until_gone(PROGRAM)


@pytest.mark.parametrize(
    ("case", "lost", "keyword"),
    [
        pytest.param("busy, frozen", 1, "sent no heartbeat for", marks=pytest.mark.slow),
        pytest.param("busy, killed", 1, "ended without a message", marks=pytest.mark.exhaustive),
        *(
            pytest.param(case, 0, keyword, marks=pytest.mark.exhaustive)
            for case, keyword in (
                ("busy, first killed", "ended without a message"),
                ("busy, first frozen", "sent no heartbeat for"),
            )
        ),
    ],
)
def test_lost_rank_is_detected_without_launcher_and_exchange(
    case: str, lost: int, keyword: str
) -> None:
    begin = time.monotonic()
    processes = start_apart(2, PROGRAM, case, str(TIMEOUT_S))
    survivor = processes.pop(1 - lost)
    _, errors = survivor.communicate(timeout=120)
    assert time.monotonic() - begin < 90  # with the import of torch; the other one sleeps longer
    assert survivor.returncode == 1
    assert f"error: rank {lost} on {socket.gethostname()} {keyword}" in errors
    [process] = processes
    process.communicate(timeout=20)  # a suspended one is killed by the survivor
    assert process.returncode == -signal.SIGKILL


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", ["busy, frozen", "busy, first frozen"])
def test_suspended_rank_under_mpirun_leaves_no_process(case: str) -> None:
    begin = time.monotonic()
    job = run_job(case, timeout_s=TIMEOUT_S)
    assert job.code not in (0, 2, 3, 75)
    assert len(lines_with("sent no heartbeat for", job)) == 1
    assert time.monotonic() - begin < TIMEOUT_S + 30
    wait_until_gone(PROGRAM)


@pytest.mark.exhaustive
def test_exchange_that_a_rank_never_joins_times_out() -> None:
    begin = time.monotonic()
    job = run_job("stuck", timeout_s=TIMEOUT_S)
    assert job.code == 1
    assert "imed out" in job.errors
    assert time.monotonic() - begin < TIMEOUT_S + 30
    wait_until_gone(PROGRAM)


@pytest.mark.exhaustive
def test_rank_that_never_connects_ends_the_job() -> None:
    job = run_job("late", timeout_s=TIMEOUT_S)
    assert job.code in (1, 1 | signal.SIGKILL)  # mpirun may add how it ended the late one
    assert lines_with(" waited 8 s for ", job) or "imed out" in job.errors


# Ranks that do not find each other, in this process.


def make_rank(rank: int, *, size: int = 2) -> Ranks:
    return Ranks(rank=rank, size=size, local_rank=0, local_size=1, launcher="torchrun")


def test_rank_waits_until_rank_0_listens() -> None:
    port, wait = free_port(), Wait("", advice="")
    arguments = {"port": port, "wait": wait}
    thread = threading.Thread(
        target=wait_for_listener, args=(make_rank(1), "127.0.0.1"), kwargs=arguments, daemon=True
    )
    thread.start()
    wait_until(lambda: "refused" in wait.what)
    assert (
        f"127.0.0.1, port {port}" in wait.what and "firewall" in wait.advice and thread.is_alive()
    )
    with socket.create_server(("127.0.0.1", port)):
        thread.join(5)
        assert not thread.is_alive()


def test_unknown_host_of_rank_0_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "ANSWER_S", -1.0)
    rendezvous = Rendezvous(address="no-such-host.invalid", port=29500)
    with pytest.raises(InputError, match=r"^no-such-host\.invalid: .*MASTER_ADDR"):
        connect(make_rank(1), rendezvous, timeout=TIMEOUT, wait=Wait("", advice=""))


def test_port_in_use_is_an_error() -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        rendezvous = Rendezvous(address="127.0.0.1", port=port)
        with pytest.raises(InputError, match=rf"^MASTER_PORT: .*{port}"):
            connect(
                make_rank(0), rendezvous, timeout=timedelta(seconds=5), wait=Wait("", advice="")
            )


def test_rank_0_names_the_missing_ranks() -> None:
    store = dist.HashStore()
    sealed = SealedStore(store=store, secret=b"secret")
    wait, facts = Wait("", advice=""), list[RankFacts]()

    def collect() -> None:
        secret = JobSecret(value=sealed.secret)
        facts.extend(exchange_facts(sealed, make_rank(0, size=5), wait=wait, secret=secret))

    sealed.set("about/1", RankFacts(host="1", network="", process=None))
    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    wait_until(lambda: "2-4 of 5" in wait.what)
    assert "WORLD_SIZE" in wait.advice
    for rank in (2, 3, 4):
        sealed.set(f"about/{rank}", RankFacts(host=str(rank), network="", process=None))
    thread.join(5)
    assert [fact.host for fact in facts[1:]] == ["1", "2", "3", "4"]


@pytest.mark.exhaustive
def test_missing_ranks_end_the_others() -> None:
    first, second, *others = start_apart(5, PROGRAM, "exchange", str(TIMEOUT_S), started=2)
    assert not others
    _, errors = first.communicate(timeout=90)
    note, last = errors.splitlines()
    assert first.returncode == 1
    assert note.startswith("note: rank 0 on ") and "-4 of 5" in note
    assert last.startswith("error: rank 0 on ") and "WORLD_SIZE" in last and "2-4" in last
    _, errors = second.communicate(timeout=30)
    assert second.returncode in (1, 2)
    [line] = errors.splitlines()
    assert "error: " in line and "rank 0" in line
