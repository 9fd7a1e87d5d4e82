"""Ranks in groups that watch each other, as real processes: whose end is the end of whom."""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.launch.ranks import REPOSITORY
from tests.launch.watched_ranks import SILENCE_S, TRACEBACK

LEFT = "its group 1, ranks 2-3, is given up, and the others go on\n"
WORDLESS = "ended without a word (killed, or out of memory?)"
KILLED = -9


class Ended(NamedTuple):
    codes: list[int]
    """Of the ranks."""
    errors: str


def watched(folder: Path, case: str) -> Ended:
    program = str(Path(__file__).with_name("watched_ranks.py"))
    done = subprocess.run(
        [sys.executable, program, str(folder), case],
        cwd=REPOSITORY,
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return Ended(json.loads(done.stdout), done.stderr)


@pytest.mark.parametrize(
    ("case", "codes", "told"),
    [
        ("kill:3", [0, 0, 1, KILLED], f"warning: rank 3 on d {WORDLESS}: {LEFT}"),
        ("kill:2 kill:3", [0, 0, KILLED, KILLED], f"warning: rank 2 on c {WORDLESS}: {LEFT}"),
        (
            "stop:3",
            [0, 0, 1, KILLED],
            f"warning: rank 3 on d was silent for {SILENCE_S:g} s (stopped, or cut off?): {LEFT}",
        ),
        ("input:2", [0, 0, 2, 2], f"warning: a.json: wrong: {LEFT}"),
        ("bug:3", [0, 0, 1, 1], f"{TRACEBACK}\nwarning: rank 3 has failed: {LEFT}"),
    ],
    ids=["killed", "both killed", "stopped", "bad input", "bug"],
)
def test_the_end_of_a_rank_is_told_once_and_is_that_of_its_group_alone(
    tmp_path: Path, case: str, codes: list[int], told: str
) -> None:
    ended = watched(tmp_path, f"outlive {case}")
    if case.count("kill") > 1:  # either may be noticed first, and the other be told to end
        assert ended.codes[:2] == [0, 0] and set(ended.codes[2:]) in ({KILLED}, {KILLED, 1})
        told, other = (told.replace("rank 2 on c", one) for one in ("rank 2 on c", "rank 3 on d"))
        assert ended.errors in (told, other)
    else:
        assert (ended.codes, ended.errors) == (codes, told)


@pytest.mark.parametrize(
    ("case", "codes", "told"),
    [
        ("kill:0", [KILLED, 1, 1, 1], f"error: rank 0 on a {WORDLESS}\n"),
        ("kill:1", [1, KILLED, 1, 1], f"error: rank 1 on b {WORDLESS}\n"),
        ("interrupt:3", [130] * 4, "interrupted\n"),
    ],
    ids=["first killed", "neighbour killed", "interrupted"],
)
def test_an_end_in_the_first_group_and_an_interruption_are_the_end_of_all(
    tmp_path: Path, case: str, codes: list[int], told: str
) -> None:
    ended = watched(tmp_path, f"outlive {case}")
    assert (ended.codes, ended.errors) == (codes, told)


@pytest.mark.parametrize("before", ["", "outlive restore"])
def test_while_groups_are_together_the_end_of_any_is_that_of_all(
    tmp_path: Path, before: str
) -> None:
    ended = watched(tmp_path, f"{before} kill:3")
    assert ended == ([1, 1, 1, KILLED], f"error: rank 3 on d {WORDLESS}\n")
