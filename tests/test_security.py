"""The statements of SECURITY.md about this code."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
CODE = [
    file
    for folder in ("common", "retinanet", "data", "launch", "profiling")
    for file in sorted((REPOSITORY / folder).rglob("*.py"))
]
HOLED = r"linalg\.lu|torch\.rot90|unpack_sequence|jit\.script|jit\.load|lstm_cell"


def test_pillow_is_at_least_version_13() -> None:
    pins = (REPOSITORY / "requirements.txt").read_text(encoding="utf-8")
    [version] = re.findall(r"^pillow==(\d+)\.", pins, re.MULTILINE)
    assert int(version) >= 13


def test_no_function_with_a_known_vulnerability_is_called() -> None:
    calls = {file.name: re.findall(HOLED, file.read_text(encoding="utf-8")) for file in CODE}
    assert len(calls) > 100
    assert {name: names for name, names in calls.items() if names} == {}


ONE_PLACE = {
    # A pickle runs what its author wrote.
    r"torch\.load\(|import pickle": {"weight_files.py"},
    r"pickle\.loads?\(|Unpickler|import (?:shelve|marshal|dill)|allow_pickle=True": set[str](),
    # What ranks receive: torch's functions for objects; mpi4py's, of which those that begin with a
    # capital send memory.
    r"(?:all_gather|broadcast|gather|scatter|send|recv)_object|distributed\.rpc": set[str](),
    r"\.(?:allgather|bcast|alltoall|allreduce|sendrecv|isend|irecv)\(": set[str](),
    r"(?:world|COMM_WORLD)\.(?:gather|scatter|reduce|send|recv)\(": set[str](),
    # multiprocessing's connections: a pipe to the process that computes a metric, which its own
    # training has forked.
    r"\.recv\(\)": {"evaluation.py"},
    # What is written goes under a random name, and never through a link: common/files.py. The
    # others write to a pipe, to /dev/null, and to a name of files.py.
    r"""open\(.*["']w""": {"files.py", "processes.py", "rendezvous.py", "video.py"},
    r"""open\(.*["'][axr]b?\+""": {"gradient_sync.py", "http.py"},
    # Folders of others may hold links to one another, and devices.
    r"os\.walk\(|\.rglob\(": {"prune.py"},  # of the image while it is built
    r"shutil\.copy(file)?\(|copy2\(": set[str](),
}
"""Calls that do harm with what somebody else made, and the files that may have them."""


@pytest.mark.parametrize("call", ONE_PLACE)
def test_what_is_dangerous_is_done_in_one_place(call: str) -> None:
    texts = {item.name: item.read_text(encoding="utf-8") for item in CODE}
    assert {name for name, text in texts.items() if re.search(call, text)} == ONE_PLACE[call]
