"""A replay runs where the log ran, as far as this process may, and says what differs."""

import os

import pytest

from common.errors import InputError
from profiling.onednn_log.log import OneDnnLog, Where
from profiling.replay.replay import Conditions, Replay, conditions_of, mismatches

ALLOWED = sorted(os.sched_getaffinity(0))
FIRST = ALLOWED[0]


def test_a_log_s_facts_go_before_its_header() -> None:
    log = OneDnnLog(threads=[64], facts=[{"threads": 1, "cpus": str(FIRST), "memory_nodes": "0"}])
    found = conditions_of(log, threads=None, cpus=None)
    assert found == Conditions(threads=1, cpus=(FIRST,), memory_nodes=(0,))


def test_without_facts_the_header_tells_threads_alone() -> None:
    found = conditions_of(OneDnnLog(threads=[1, 7]), threads=None, cpus=None)
    assert found == Conditions(threads=1)


def test_a_log_that_tells_nothing_gets_all_that_may_be_used() -> None:
    assert conditions_of(OneDnnLog(), threads=None, cpus=None).threads == len(ALLOWED)


def test_more_threads_than_there_are_cpus_become_fewer_with_a_note() -> None:
    said: list[str] = []
    found = conditions_of(OneDnnLog(threads=[4096]), threads=None, cpus=None, say=said.append)
    assert found.threads == len(ALLOWED)
    assert said == [
        f"4096 threads of the log, {len(ALLOWED)} here: there are no more cores for them"
    ]


def test_cpus_of_another_machine_are_left_out_with_a_note() -> None:
    said: list[str] = []
    log = OneDnnLog(facts=[{"threads": 1, "cpus": f"{FIRST},99999", "memory_nodes": "0"}])
    assert conditions_of(log, threads=None, cpus=None, say=said.append).cpus == (FIRST,)
    assert said == [f"CPUs {FIRST},99999 of the log, {FIRST} here: this process may use no others"]


def test_options_go_before_the_log() -> None:
    log = OneDnnLog(threads=[64], facts=[{"threads": 64, "cpus": "99999"}])
    said: list[str] = []
    found = conditions_of(log, threads=1, cpus=str(FIRST), say=said.append)
    assert (found, said) == (Conditions(threads=1, cpus=(FIRST,)), [])


@pytest.mark.parametrize("cpus", ["a", "99999", ""])
def test_cpus_that_may_not_be_used_are_refused(cpus: str) -> None:
    with pytest.raises(InputError, match="--cpus: "):
        conditions_of(OneDnnLog(), threads=None, cpus=cpus)


def test_of_several_ranks_the_first_is_taken_with_a_note() -> None:
    log = OneDnnLog(
        facts=[{"threads": 1, "cpus": str(FIRST)}, {"threads": 1, "cpus": str(FIRST)}],
        executions={Where(0): {}, Where(1): {}},
    )
    said: list[str] = []
    conditions_of(log, threads=None, cpus=None, say=said.append)
    assert said == ["the log is of 2 ranks; its problems run again alone, as rank 0 had it"]


def test_what_differs_is_told_in_a_line_each() -> None:
    log = OneDnnLog(versions=["2.6.0"], instruction_sets=["Intel AVX2"], threads=[4])
    replay = Replay("benchdnn", "3.7.2", "Intel AVX-512", Conditions(2))
    assert mismatches(log, replay) == [
        "instruction set: Intel AVX2 in the log, Intel AVX-512 in the replay",
        "threads: 4 in the log, 2 in the replay",
        "oneDNN: 2.6.0 in the log, 3.7.2 in the replay",
    ]


def test_what_is_alike_or_not_known_is_not_told() -> None:
    replay = Replay("benchdnn", "3.7.2", "Intel AVX-512", Conditions(2))
    assert mismatches(OneDnnLog(), replay) == []
    alike = OneDnnLog(versions=["3.7.2"], instruction_sets=["Intel AVX-512"], threads=[2])
    assert mismatches(alike, replay) == []
