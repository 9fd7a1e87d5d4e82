"""Signals ignored by the caller of the tests are not ignored by the programs that tests start."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
STATUS_OF_A_CHILD = """
import subprocess, tests.conftest
print(subprocess.check_output(["cat", "/proc/self/status"], text=True))
"""


@pytest.mark.parametrize("signals", ["HUP", "INT,QUIT", "TERM,USR1"])
def test_children_do_not_inherit_ignored_or_blocked_signals(
    signals: str,
) -> None:
    status = subprocess.check_output(
        [
            *("env", f"--ignore-signal={signals}", f"--block-signal={signals}"),
            *(sys.executable, "-c", STATUS_OF_A_CHILD),
        ],
        cwd=REPOSITORY,
        text=True,
    )
    fields = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
    # The C library keeps signals 32 and 33 to itself: no program can reset them, if its parent
    # (a container's supervisor that does not use the C library) ignores them.
    valid = sum(1 << (number - 1) for number in signal.valid_signals())
    assert int(fields["SigIgn"], 16) & valid == 0
    assert int(fields["SigBlk"], 16) & valid == 0
