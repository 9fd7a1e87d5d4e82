"""Files that users name, files that are written, and CSV cells."""

import csv
import io
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

import data.__main__
import launch.__main__
import profiling.__main__
import retinanet.__main__
import train
from common.errors import InputError
from common.files import (
    LineFile,
    as_csv,
    copy_atomically,
    create_anew,
    in_place_when_whole,
    open_regular,
    read_bytes,
    read_json_lines,
    read_json_object,
    read_text,
    removed_on_failure,
    require_free,
    require_writable,
    temporary_name,
    write_atomically,
    write_parts,
)
from profiling.onednn_log import log
from profiling.onednn_log.log import read_logs
from tests.data.samples import random_content, write_json
from tests.support.commands import RunHere, error_line, run_program

MAINS = {
    "train": train.main,
    "data": data.__main__.main,
    "launch": launch.__main__.main,
    "profiling": profiling.__main__.main,
    "retinanet": retinanet.__main__.main,
}
READERS = (
    "train --config {file} --dry-run",
    "data split {file} --out {folder}/out",
    "data convert {file} --out {folder}/out",
    "launch plan --topology {file}",
    "launch run --np 2 --hostfile {file} train.py",
    "launch tune --plan {file}",
    "profiling stats {file}",
    "profiling trace {file}",
    "retinanet convert {file} --trust --out {folder}/out.safetensors",
    "retinanet mlperf check {file}",
    "retinanet mlperf compare {file}",
)
"""A command for each reader of a file that a user names."""


@pytest.fixture
def time_limit() -> Iterator[None]:
    """Raise an error in a test that waits for a FIFO."""

    def fail(number: int, frame: object) -> None:
        raise TimeoutError

    previous = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


@pytest.mark.usefixtures("time_limit")
@pytest.mark.parametrize("command", READERS)
def test_commands_refuse_a_fifo_in_one_line(
    command: str, tmp_path: Path, run_here: RunHere
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    program, *arguments = command.format(file=fifo, folder=tmp_path).split()
    done = run_here(MAINS[program], *arguments)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and str(fifo) in done.stderr, done.stderr


@pytest.mark.parametrize("read", [open_regular, read_bytes, read_text])
def test_device_is_refused(read: Callable[[Path], object]) -> None:
    with pytest.raises(OSError, match="regular"):
        read(Path("/dev/zero"))


def test_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)


def test_size_limit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_bytes(file, most_bytes=5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_bytes(file, most_bytes=4)


def test_byte_order_mark_is_not_part_of_a_text(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_text(file) == '{"a": 1}'
    assert read_json_object(file, advice="") == {"a": 1}


def test_files_of_proc_are_read() -> None:
    assert read_text(Path("/proc/self/status")).startswith("Name:")


@pytest.mark.slow
def test_pipe_of_a_process_substitution_is_read_up_to_the_limit() -> None:
    program = (
        "import sys; from pathlib import Path; from common.files import read_bytes\n"
        "print(read_bytes(Path(sys.argv[1]), most_bytes=100_000))"
    )
    command = f'exec "{sys.executable}" -c "$1" <'
    outcomes = [
        run_program("bash", "-c", f"{command}({writer})", "bash", program, timeout=60)
        for writer in ("sleep 0.2; echo late", "yes")
    ]
    assert outcomes[0].stdout == "b'late\\n'\n", outcomes[0].stderr
    assert outcomes[1].returncode == 1 and "100,000 bytes" in outcomes[1].stderr


def test_search_for_onednn_lines_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "MOST_BEFORE_ONEDNN", 3 << 20)
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as stream:
        stream.truncate(10 << 30)
    sizes: list[int] = []
    with pytest.raises(InputError, match="sparse: "):
        read_logs([sparse], advance=sizes.append)
    assert 3 << 20 < sum(sizes) <= 4 << 20  # With the block that is beyond the limit


@pytest.mark.parametrize(
    "command",
    [
        "train --config {name} --dry-run",
        "train --config {name}/x --dry-run",
        "data split {name} --out {folder}/out",
        "launch plan --topology {name}",
        "profiling stats {name}",
        "profiling report {name} --out {folder}/out",
    ],
)
def test_too_long_file_name_is_refused_in_one_line(
    command: str, tmp_path: Path, run_here: RunHere
) -> None:
    program, *arguments = command.format(name="x" * 300, folder=tmp_path).split()
    done = run_here(MAINS[program], *arguments)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and "xxx" in done.stderr


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=1+1", "'=1+1"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        (" =1", "' =1"),
        ("\t=1", "�=1"),
        ("\x1b[31m", "�[31m"),
        ("-1.5", "-1.5"),
        ("+1e-3", "+1e-3"),
        (-1.5, "-1.5"),
        (-7, "-7"),
        (None, ""),
        ("alg:convolution_direct", "alg:convolution_direct"),
        ('a,"b"', 'a,"b"'),
    ],
)
def test_csv_cell_is_no_formula(cell: object, written: str) -> None:
    [header, row] = csv.reader(io.StringIO(as_csv(["name", "=x"], [["row", cell]])))
    assert (header, row) == (["name", "'=x"], ["row", written])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("of the parts"), OSError(28)])
def test_file_that_is_not_finished_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    def parts() -> Iterator[bytes]:
        yield b"a"
        raise error

    file = tmp_path / "a.json"
    with pytest.raises(InputError if isinstance(error, OSError) else type(error)):
        write_parts(file, parts())
    assert list(tmp_path.iterdir()) == []
    file.write_text("mine")
    with pytest.raises(InputError, match=r"b\.json: cannot be copied from .*none"):
        copy_atomically(tmp_path / "none", tmp_path / "b.json")
    assert list(tmp_path.iterdir()) == [file] and file.read_text() == "mine"


def test_outputs_of_a_failed_command_are_removed_and_earlier_ones_kept(tmp_path: Path) -> None:
    mine = tmp_path / "mine.json"
    mine.write_text("mine")
    link = tmp_path / "link"
    link.symlink_to("nowhere")
    folder = tmp_path / "new" / "out"
    outputs = [mine, link, folder / "a.json", folder / "images" / "train", folder / "never made"]

    def write() -> None:
        (folder / "images" / "train").mkdir(parents=True)
        (folder / "images" / "train" / "a.jpg").write_text("")
        (folder / "a.json").write_text("")
        mine.write_text("replaced")

    with pytest.raises(KeyboardInterrupt), removed_on_failure(outputs):
        write()
        raise KeyboardInterrupt
    assert {*tmp_path.iterdir()} == {mine, link}
    with removed_on_failure(outputs):
        write()
    assert (folder / "images" / "train" / "a.jpg").exists() and (folder / "a.json").exists()
    with pytest.raises(KeyboardInterrupt), removed_on_failure([folder / "b.json"]):
        (folder / "b.json").write_text("")
        temporary_name(folder / "b.json").write_text("begun as the signal came")
        raise KeyboardInterrupt
    assert sorted(path.name for path in folder.iterdir()) == ["a.json", "images"]


def test_interrupted_check_that_a_file_can_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tempfile.TemporaryFile

    def interrupted(dir: Path) -> IO[bytes]:  # noqa: A002
        file = temporary(dir=dir)
        os.kill(os.getpid(), signal.SIGINT)
        return file

    monkeypatch.setattr(tempfile, "TemporaryFile", interrupted)
    with pytest.raises(KeyboardInterrupt):
        require_writable([tmp_path / "new.json"])
    assert list(tmp_path.iterdir()) == []


def test_outputs_that_cannot_be_written_are_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "disk").symlink_to(tmp_path / "not mounted")
    require_free([tmp_path / "new" / "folder" / "a.json"], overwrite=False, advice="")
    for folder in ("file", "disk"):
        outputs = [tmp_path / "b.json", tmp_path / folder / "a.json"]
        with pytest.raises(InputError, match=f"{folder}/a.json: cannot be written: "):
            require_free(outputs, overwrite=True, advice="")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "disk"}


@pytest.fixture
def bashrc(tmp_path: Path) -> Path:
    """Return a file of the user, beside a folder `set` from somebody else that links to it."""
    (tmp_path / "set").mkdir()
    (tmp_path / ".bashrc").write_text("# mine\n")
    return tmp_path / ".bashrc"


def test_nothing_is_written_through_links_of_a_foreign_folder(bashrc: Path) -> None:
    file = bashrc.parent / "set" / "train.json"
    for name in (".train.json.partial", "train.json"):
        file.with_name(name).symlink_to(bashrc)
    write_atomically(file, "$(touch PWN)")
    assert bashrc.read_text() == "# mine\n"
    assert not file.is_symlink() and file.read_text() == "$(touch PWN)"
    # While it is written it has a name that nobody can predict.
    names = set()
    for _ in range(2):
        with in_place_when_whole(file) as stream:
            names.add(stream.name)
    assert len(names) == 2 and {Path(str(name)).parent for name in names} == {file.parent}


def test_command_refuses_an_output_that_is_a_link(
    bashrc: Path, run_here: RunHere, tmp_path: Path
) -> None:
    labels = write_json(tmp_path / "labels.json", random_content(images=9, boxes=9))
    (tmp_path / "set" / "train.json").symlink_to(bashrc)
    out = tmp_path / "set"
    done = run_here(data.__main__.main, "split", labels, "--out", out, "--overwrite")
    assert done.returncode == 2
    assert error_line(done) == (
        f"error: {out / 'train.json'}: is a link, which is not written through; give another name"
    )
    assert bashrc.read_text() == "# mine\n"


@pytest.mark.parametrize("kind", ["link", "broken link", "FIFO"])
def test_lines_are_appended_to_regular_files_only(bashrc: Path, kind: str) -> None:
    file = bashrc.parent / "set" / "metrics.jsonl"
    if kind == "FIFO":
        os.mkfifo(file)
    else:
        file.symlink_to(bashrc if kind == "link" else bashrc.with_name("new"))
    with pytest.raises(OSError, match="it is"):
        LineFile(file)
    assert bashrc.read_text() == "# mine\n" and not bashrc.with_name("new").exists()


@pytest.mark.parametrize("source", ["/dev/zero", "a FIFO"])
def test_only_regular_files_are_copied(tmp_path: Path, source: str) -> None:
    path = Path(source)
    if source == "a FIFO":
        os.mkfifo(path := tmp_path / "fifo.jpg")
    with pytest.raises(InputError, match=r"cannot be copied from .*: it is not a regular file"):
        copy_atomically(path, tmp_path / "out" / "copy.jpg")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("line", ["[" * 100_000, "[1]", "{", "9" * 5000])
def test_lines_that_are_no_records_end_the_records(tmp_path: Path, line: str) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(f'{{"step": 1}}\n{line}\n{{"step": 2}}\n')
    assert read_json_lines(file) == [{"step": 1}]
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InputError, match="fifo: cannot be read: it is not a regular file"):
        read_json_lines(tmp_path / "fifo")


@pytest.mark.parametrize("name", ["/dev/full", "fifo"])
def test_devices_and_fifos_are_not_replaced(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    if name == "fifo":
        os.mkfifo(file)
    before = file.lstat()
    for write in (write_atomically, lambda file, _: create_anew(file)):
        with pytest.raises((InputError, OSError), match="it is not a regular file"):
            write(file, "text")
    with pytest.raises(InputError, match="cannot be written: it is not a regular file"):
        require_free([file], overwrite=True, advice="")
    assert file.lstat() == before
