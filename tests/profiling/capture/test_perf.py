"""perf on this process: it counts only while it is on, and its errors end its hook alone."""

import os
import shutil
import time
from pathlib import Path

import pytest
from torch import nn
from torch.optim import SGD

from profiling.capture.backends import PerfFailedError, PerfHook, PerfStat, parse_counters
from profiling.capture.hooks import Capture
from retinanet.engine.engines import PreparedTraining
from tests.support.commands import write_program

NEEDS_PERF = pytest.mark.skipif(shutil.which("perf") is None, reason="perf is not installed")


@NEEDS_PERF
@pytest.mark.slow
def test_perf_counts_while_it_is_on() -> None:
    try:
        perf = PerfStat(["task-clock"])
    except PerfFailedError as error:
        pytest.skip(f"perf may not count: {error}")
    busy(0.2)
    perf.count(on=True)
    busy(0.1)
    perf.count(on=False)
    busy(0.2)
    counters, missing = parse_counters(perf.end())
    assert missing == [] and counters["task-clock"]["unit"] == "msec"
    assert 20 < counters["task-clock"]["value"] < 300


def busy(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def write_perf(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, *, interpreter: str = "/bin/sh"
) -> None:
    """Put a program named `perf` on PATH, before the real one."""
    write_program(folder / "perf", text, interpreter=interpreter)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo Error: >&2; echo 'No permission to enable.' >&2; exit 255", "No permission"),
        ("exit 1", "does not respond"),
        (None, "cannot be started: No such file"),
    ],
)
def test_error_has_the_reason(
    script: str | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script is None:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        write_perf(tmp_path, monkeypatch, script)
    with pytest.raises(PerfFailedError, match=f"perf: {reason}"):
        PerfStat(["task-clock"])


def test_perf_that_ends_during_a_run_ends_its_hook_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import os, sys\n"
        "[control] = [word[3:].split(',') for word in sys.argv if word.startswith('fd:')]\n"
        "os.read(int(control[0]), 100)\nos.write(int(control[1]), b'ack')"
    )
    write_perf(tmp_path, monkeypatch, script, interpreter="/usr/bin/env python3")
    model = nn.Linear(2, 2)
    prepared = PreparedTraining(model, SGD(model.parameters(), lr=0.1), model)  # type: ignore[arg-type]
    hook = PerfHook(tmp_path / "counters" / "rank0.json", range(1, 3), rank=0)
    capture = Capture([hook])
    for step in (1, 2):
        with capture.step(step, prepared):
            pass
    capture.close()
    [note] = capture.final_notes()
    assert note.startswith("profile.perf: perf: does not respond")
    assert not hook.file.exists()


def test_multiplexed_and_missing_counters_are_parsed() -> None:
    counters, missing = parse_counters(
        "# started on Sat Nov 21 23:22:24 2026\n\n"
        "370.91,msec,task-clock:u,370913970,100.00,0.115,CPUs utilized\n"
        "1200,,cycles,370913970,48.50,3.2,GHz\n"
        "<not supported>,,instructions,0,100.00,,\n"
        "<not counted>,,cache-misses:u,0,0.00,,\n"
    )
    assert counters == {
        "task-clock": {"value": 370.91, "unit": "msec", "share": 1.0},
        "cycles": {"value": 1200.0, "unit": "", "share": 0.485},
    }
    assert missing == ["instructions", "cache-misses"]
