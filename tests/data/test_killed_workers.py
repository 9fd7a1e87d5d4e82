"""What is said of a loading process that a signal has ended, from torch's own words."""

import os
import signal
from collections.abc import Callable
from typing import Never

import pytest

from common.errors import OUR_BUG, exit_code_for, format_error, killed_worker
from data.loader import DetectionLoader

KILLED = "DataLoader worker (pid 123) is killed by signal: Killed. "
FULL = (
    "DataLoader worker (pid 123) is killed by signal: Bus error. It is possible that dataloader's "
    "workers are out of shared memory. Please try to raise your shared memory limit."
)


@pytest.mark.parametrize(
    ("message", "told", "fix"),
    [
        (KILLED, "SIGKILL", "data.workers"),
        (FULL, "SIGBUS", "/dev/shm"),
        ("DataLoader worker (pid(s) 123, 124) exited unexpectedly", "unexpectedly", "data.workers"),
    ],
)
def test_it_is_one_line_with_cause_and_remedy(message: str, told: str, fix: str) -> None:
    error = RuntimeError(message)
    line = format_error(error)
    assert line is not None and line.startswith("error: ") and "\n" not in line
    assert "process 123 " in line and told in line and fix in line
    assert exit_code_for(error) == OUR_BUG


def test_the_signal_is_found_behind_the_error_that_torch_raises_from_it() -> None:
    error = RuntimeError("DataLoader worker (pid(s) 123) exited unexpectedly")
    error.__cause__ = RuntimeError(KILLED)
    assert "SIGKILL" in (killed_worker(error) or "")


def test_any_other_error_keeps_its_traceback() -> None:
    for error in (RuntimeError("CUDA"), ValueError(KILLED)):
        assert killed_worker(error) is None and format_error(error) is None


def killed_while_read(process: int) -> Never:
    os.kill(process, signal.SIGKILL)
    raise ConnectionResetError


class SampleOfProcess:
    """What its loading process does not survive the reading of."""

    def __reduce__(self) -> tuple[Callable[[int], Never], tuple[int]]:
        return killed_while_read, (os.getpid(),)


class Samples:
    def __getitem__(self, key: int) -> SampleOfProcess:
        return SampleOfProcess()


def test_a_process_killed_while_its_batch_is_read_is_told_as_one_that_was_killed() -> None:
    loader = DetectionLoader(Samples(), [[0]], workers=1)  # type: ignore[arg-type]
    loader.collate_fn = list
    with pytest.raises(RuntimeError) as raised:
        next(iter(loader))
    assert "SIGKILL" in (killed_worker(raised.value) or "")
