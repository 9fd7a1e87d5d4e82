"""Commands whose standard input, output or errors are closed, full, or read by nobody."""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.support.commands import REPOSITORY, run_program

COMMAND = """
import os, sys
from common.cli import run_command
from common.errors import InputError
from common.streams import make_output_optional

def main():
    if "optional" in sys.argv:
        make_output_optional()
    print("before", flush=True)
    with open(sys.argv[1], "wb", buffering=0) as file:
        for descriptor in (1, 2):
            os.write(descriptor, b"of a library") if "library" in sys.argv else None
        print("in between", flush=True)
        file.write(f"{len(sys.stdin.read())} characters".encode())
    if "wrong" in sys.argv:
        raise InputError("file: wrong")
    return 0

sys.exit(run_command(main))
"""
FULL = "error: standard output: cannot be written: No space left on device\n"


def run(file: Path, *words: str, streams: str) -> CompletedProcess[str]:
    """Run the command with redirections of a shell; it writes a file between two lines."""
    command = shlex.join([sys.executable, "-c", COMMAND, str(file), *words])
    return run_program("bash", "-c", f"{command} {streams}")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&-", "<&- >&- 2>&-", "<&- >&-"])
def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path, closed: str) -> None:
    file = tmp_path / "file"
    done = run(file, "library", streams=f"</dev/null {closed}")
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert file.read_bytes() == b"0 characters"


def test_error_is_not_printed_to_the_output_if_errors_are_closed(tmp_path: Path) -> None:
    done = run(tmp_path / "file", "wrong", streams="</dev/null 2>&-")
    assert (done.returncode, done.stdout) == (2, "before\nin between\n")


def test_full_output_does_not_end_the_work_and_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    done = run(file, streams="</dev/null >/dev/full")
    assert (done.returncode, done.stderr) == (2, FULL)
    assert file.read_bytes() == b"0 characters"


def test_full_output_leaves_the_status_of_work_that_writes_files(tmp_path: Path) -> None:
    done = run(tmp_path / "file", "optional", streams="</dev/null >/dev/full")
    assert (done.returncode, done.stderr) == (0, FULL.replace("error", "note"))


def test_full_errors_leave_the_status(tmp_path: Path) -> None:
    done = run(tmp_path / "file", "wrong", streams="</dev/null 2>/dev/full")
    assert (done.returncode, done.stdout) == (2, "before\nin between\n")


@pytest.mark.parametrize("option", ["", "-u"])
def test_work_goes_on_if_the_reader_has_ended(tmp_path: Path, option: str) -> None:
    file = tmp_path / "file"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, *option.split(), "-c", COMMAND, file], cwd=REPOSITORY,
        stdin=subprocess.DEVNULL, stdout=writing, stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
    assert file.read_bytes() == b"0 characters"


def test_full_pipe_that_another_program_has_made_non_blocking(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    filled = os.write(writing, bytes(1_000_000))
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, tmp_path / "file"], cwd=REPOSITORY,
        stdin=subprocess.DEVNULL, stdout=writing, stderr=subprocess.PIPE,
    ) as command:  # fmt: skip
        os.close(writing)
        time.sleep(0.2)  # it waits
        with os.fdopen(reading, "rb") as pipe:
            assert pipe.read()[filled:] == b"before\nin between\n"
        assert command.communicate()[1] == b"" and command.returncode == 0
