"""A program runs on the cores that it is given, and is gone when it should be."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from common.errors import InputError
from profiling.replay.benchdnn import Ended, find_benchdnn, probe_benchdnn, run_benchdnn
from profiling.replay.replay import Conditions

CPU = min(os.sched_getaffinity(0))
TELL = """\
import json, os
names = ("OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND", "KMP_AFFINITY", "ONEDNN_VERBOSE")
told = {name: os.environ.get(name) for name in names}
print(json.dumps({"cpus": sorted(os.sched_getaffinity(0)), **told}))
"""


def program(folder: Path, text: str, *, interpreter: str = "/bin/sh") -> Path:
    """A real program that does what `text` says."""
    file = folder / "program"
    file.write_text(f"#!{interpreter}\n{text}\n")
    file.chmod(0o755)
    return file


def run(path: Path, *, patience: float = 60.0, conditions: Conditions = Conditions(1)) -> Ended:  # noqa: B008
    """Run it with its output beside it."""
    output = path.with_name("output")
    return run_benchdnn(path, [], output, conditions=conditions, patience=patience)


def test_it_has_the_cores_and_threads_that_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KMP_AFFINITY", "compact")
    before = os.sched_getaffinity(0)
    teller = program(tmp_path, TELL, interpreter=sys.executable)
    assert run(teller, conditions=Conditions(threads=1, cpus=(CPU,))) == Ended(0, "")
    assert json.loads((tmp_path / "output").read_text()) == {
        "cpus": [CPU],
        "OMP_NUM_THREADS": "1",
        "OMP_PLACES": f"{{{CPU}}}",
        "OMP_PROC_BIND": "close",
        "KMP_AFFINITY": None,
        "ONEDNN_VERBOSE": "1",
    }
    assert os.sched_getaffinity(0) == before


def test_one_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    sleeper = program(tmp_path, f"sleep 61 & echo $! > {tmp_path}/child; wait")
    ended = run(sleeper, patience=0.5)
    assert ended == Ended(None, "took longer than 0 s and was ended")
    assert is_gone(int((tmp_path / "child").read_text()))


def test_ctrl_c_leaves_no_process_behind(tmp_path: Path) -> None:
    sleeper = program(tmp_path, f"echo $$ > {tmp_path}/own; exec sleep 62")
    interrupting = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        run(sleeper)
    interrupting.join()
    assert is_gone(int((tmp_path / "own").read_text()))


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        ("kill -SEGV $$", Ended(-signal.SIGSEGV, "ended by SIGSEGV")),
        ("kill -KILL $$", Ended(-signal.SIGKILL, "ended by SIGKILL (out of memory?)")),
        ("exit 3", Ended(3, "ended with status 3")),
        ("echo a; echo 'ERROR: no tag'; echo Error; exit 2", Ended(2, "ERROR: no tag")),
        ("echo 'err: unknown driver' >&2", Ended(0, "err: unknown driver")),
    ],
)
def test_how_it_ended_is_told_in_a_few_words(text: str, ended: Ended, tmp_path: Path) -> None:
    assert run(program(tmp_path, text)) == ended


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("exit 3", "does not run: ended with status 3"),
        ("echo hello", "is no benchdnn, or one whose oneDNN writes no log"),
    ],
)
def test_another_program_is_no_benchdnn(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=why):
        probe_benchdnn(program(tmp_path, text), Conditions(1))


def test_what_is_no_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "benchdnn").write_text("text")
    with pytest.raises(InputError, match=r"--benchdnn: .*benchdnn is not a program"):
        find_benchdnn(tmp_path)
    with pytest.raises(InputError, match=r"--benchdnn: .*nowhere is not there"):
        find_benchdnn(tmp_path / "nowhere")


def is_gone(process: int) -> bool:
    """Whether it has ended, within a second; one that nobody waited for counts as ended."""
    for _ in range(20):
        status = Path(f"/proc/{process}/status")
        try:
            if "State:\tZ" in status.read_text():
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False
