"""Under what a log's problems ran, as far as this machine can do the same."""

import os
from collections.abc import Callable
from typing import Any

from launch.host.cpu_lists import format_cpu_list, parse_cpu_list
from profiling.onednn_log.log import OneDnnLog
from profiling.peaks.cores import choose_cores
from profiling.replay.replay import Conditions
from retinanet.errors import InputError


def conditions_of(
    log: OneDnnLog,
    *,
    threads: int | None,
    cpus: str | None,
    say: Callable[[str], None] = lambda _: None,
) -> Conditions:
    """Threads, cores and memory nodes of the log's first rank, within what this process may use.

    Args:
        log: Its facts go before its header, which knows of threads alone.
        threads: In place of the log's.
        cpus: In place of the log's, as `0-3`.
        say: Told, in one line each, what differs from the log and why.

    Raises:
        InputError: `cpus` is no list, or has a CPU that this process may not use.
    """
    facts: dict[str, Any] = log.facts[0] if log.facts else {}
    allowed = frozenset(os.sched_getaffinity(0))
    if cpus is None:
        chosen = within(numbers(facts.get("cpus")), allowed, say=say)
    else:
        chosen = given(cpus, allowed)
    available = choose_cores(threads=None, cpus=tuple(chosen)).threads
    wanted = threads or next(iter(log.run_threads), available)
    count = min(wanted, available)
    if count < wanted:
        whose = "asked for" if threads else "of the log"
        say(f"{wanted} threads {whose}, {count} here: there are no more cores for them")
    if log.ranks[1:] and cpus is None and facts:
        say(f"the log is of {len(log.ranks)} ranks; its problems run again alone, as rank 0 had it")
    return Conditions(
        threads=count,
        cpus=tuple(sorted(chosen)),
        memory_nodes=tuple(sorted(numbers(facts.get("memory_nodes")))) if chosen else (),
    )


def numbers(value: object) -> frozenset[int]:
    """CPUs or nodes of a log's facts: `0-3`, or a list; nothing where there are none."""
    if isinstance(value, list):
        return frozenset(one for one in value if isinstance(one, int))
    try:
        return parse_cpu_list(value) if isinstance(value, str) else frozenset()
    except ValueError:
        return frozenset()


def within(
    told: frozenset[int], allowed: frozenset[int], *, say: Callable[[str], None]
) -> frozenset[int]:
    """Of the log's CPUs those that this process may use; none where it may use none of them."""
    kept = told & allowed
    if told - allowed:
        instead = format_cpu_list(kept) or f"any of {format_cpu_list(allowed)}"
        say(
            f"CPUs {format_cpu_list(told)} of the log, {instead} here: this process may use no "
            "others"
        )
    return kept


def given(text: str, allowed: frozenset[int]) -> frozenset[int]:
    """The CPUs of `--cpus`.

    Raises:
        InputError: It is no list of CPUs, or has one that may not be used.
    """
    try:
        chosen = parse_cpu_list(text)
    except ValueError as error:
        raise InputError(f"--cpus: {error}") from None
    if not chosen or chosen - allowed:
        raise InputError(
            f"--cpus: {text!r}: this process may use {format_cpu_list(allowed)}; name some of these"
        )
    return chosen
