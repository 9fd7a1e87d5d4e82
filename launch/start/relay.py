"""A command in this one's place: its signals and its exit status are this one's."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def become(command: Sequence[str]) -> NoReturn:
    """Go on as `command`, in this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], list(command))


def run_with_gentle_stop(command: Sequence[str]) -> int:
    """Run a command that gives its children no time to stop; returns its exit status.

    Open MPI's mpirun kills its ranks half a second after SIGINT or SIGTERM, in the middle of a
    checkpoint. SIGUSR1 it only passes on. So the first signal becomes a SIGUSR1, which asks ranks
    to stop too, and the next one reaches mpirun as it is.

    The command has its own process group, since a terminal sends Ctrl-C to the whole group, and
    for the same reason it reads nothing from the terminal.
    """
    # Blocked until there is somebody to pass them on to; ignored ones (nohup, `&`) stay ignored.
    stops = [one for one in STOPS if signal.getsignal(one) != signal.SIG_IGN]
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        process_group=0,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, stops),  # noqa: PLW1509
    )
    asked = False

    def pass_on(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        process.send_signal(number if asked else signal.SIGUSR1)
        asked = True

    previous = {number: signal.signal(number, pass_on) for number in stops}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)
    try:
        status = process.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status
