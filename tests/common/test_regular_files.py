"""Files that users name: what never begins or never ends is refused in a line."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import InputError
from common.files import open_regular, read_bytes, read_text
from profiling.onednn_log import log
from profiling.onednn_log.log import read_logs

REPOSITORY = Path(__file__).resolve().parents[2]
COMMANDS = (
    "train.py --config {file} --dry-run",
    "-m data split {file} --out {folder}/out",
    "-m data convert {file} --out {folder}/out",
    "-m launch plan --topology {file}",
    "-m launch run --np 2 --hostfile {file} train.py",
    "-m launch tune --plan {file}",
    "-m profiling stats {file}",
    "-m profiling trace {file}",
    "-m retinanet convert {file} --trust --out {folder}/out.safetensors",
    "-m retinanet mlperf check {file}",
)
"""A command for each reader of a file that a user names."""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_fifo_is_refused_in_a_line_by_every_command(command: str, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    words = shlex.split(command.format(file=fifo, folder=tmp_path))
    done = subprocess.run(
        [sys.executable, *words],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and str(fifo) in done.stderr, done.stderr


@pytest.mark.parametrize("read", [open_regular, read_bytes, read_text])
def test_a_device_without_end_is_not_read(read: Callable[[Path], object]) -> None:
    with pytest.raises(OSError, match="regular"):
        read(Path("/dev/zero"))


def test_a_folder_is_called_one(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)


def test_no_more_than_the_limit_is_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_bytes(file, most_bytes=5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_bytes(file, most_bytes=4)


def test_files_of_the_kernel_are_read_though_their_size_is_zero() -> None:
    assert read_text(Path("/proc/self/status")).startswith("Name:")


def test_the_pipe_of_a_process_substitution_is_read_to_its_limit() -> None:
    program = (
        "import sys; from pathlib import Path; from common.files import read_bytes\n"
        "print(read_bytes(Path(sys.argv[1]), most_bytes=100_000))"
    )
    outcomes = [
        subprocess.run(
            ["bash", "-c", f'exec "{sys.executable}" -c "$1" <({writer})', "bash", program],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        for writer in ("sleep 0.3; echo late", "yes")
    ]
    assert outcomes[0].stdout == "b'late\\n'\n", outcomes[0].stderr
    assert outcomes[1].returncode == 1 and "100,000 bytes" in outcomes[1].stderr


def test_a_log_through_a_pipe_is_read(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("no line of oneDNN's\n")
    command = f"exec {shlex.quote(sys.executable)} -m profiling stats <(cat {tmp_path}/log)"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "contains no oneDNN lines" in done.stderr


def test_a_file_without_a_line_of_onednn_is_not_read_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "MOST_BEFORE_ONEDNN", 3 << 20)
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as stream:
        stream.truncate(10 << 30)
    seen: list[int] = []
    with pytest.raises(InputError, match="sparse: no oneDNN line in its first"):
        read_logs([sparse], advance=seen.append)
    assert sum(seen) == 3 << 20


@pytest.mark.parametrize(
    "command",
    [
        "train.py --config {name} --dry-run",
        "train.py --config {name}/x --dry-run",
        "-m data split {name} --out out",
        "-m launch plan --topology {name}",
        "-m profiling stats {name}",
        "-m profiling report {name} --out out",
    ],
)
def test_a_name_that_the_system_refuses_is_told_in_a_line(command: str, tmp_path: Path) -> None:
    words = shlex.split(command.format(name="x" * 300))
    done = subprocess.run(
        [sys.executable, REPOSITORY / words[0], *words[1:]]
        if words[0] != "-m"
        else [sys.executable, *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and "xxx" in done.stderr
