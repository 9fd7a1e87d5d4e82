"""A command in this one's place: its signals and its exit status are this one's."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from launch.start.helpers import LocalHelper
from launch.start.process_tree import below_scripts
from launch.start.started_hosts import StartedHosts, named, where_to_look
from retinanet.exit_codes import FINISHED, INTERRUPTED, OUR_BUG, STOPPED_BY_SIGNAL

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SECONDS_BETWEEN_LOOKS = 2.0
PR_SET_PDEATHSIG = 1
"""From Linux's prctl.h."""


def run_with_gentle_stop(
    command: Sequence[str],
    *,
    ask: signal.Signals,
    patience_s: float = 30.0,
    hosts: Sequence[str] = (),
) -> int:
    """Run a launcher of ranks; returns its exit status, or 130 after a second Ctrl-C.

    The first signal becomes `ask`, which lets ranks write a checkpoint; the next ones reach the
    launcher as they are. It is asked too when this process is killed.

    The command has its own process group, since a terminal sends Ctrl-C to the whole group, and
    for the same reason it reads nothing from the terminal.

    Args:
        command: The launcher, or a script that starts it.
        ask: A signal that the launcher passes on to its ranks without killing them soon after.
        patience_s: How long the launcher may outlive its ranks on this host.
        hosts: Those on which it starts ranks, to be watched until all have started.
    """
    # Blocked until there is somebody to pass them on to; ignored ones (nohup, `&`) stay ignored.
    stops = [one for one in STOPS if signal.getsignal(one) != signal.SIG_IGN]
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    prctl = ctypes.CDLL(None).prctl

    def begin() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)
        prctl(PR_SET_PDEATHSIG, ask)

    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        process_group=0,
        preexec_fn=begin,  # noqa: PLW1509
    )
    passed: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(below_scripts(process.pid, ask), number if passed else ask)
        passed.append(number)

    previous = {number: signal.signal(number, pass_on) for number in stops}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)
    try:
        status = wait_for(process, patience_s=patience_s, hosts=hosts)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if signal.SIGINT in passed[1:] and status not in (FINISHED, STOPPED_BY_SIGNAL):
        return INTERRUPTED
    return status if status >= 0 else 128 - status


def wait_for(process: subprocess.Popen[bytes], *, patience_s: float, hosts: Sequence[str]) -> int:
    """The launcher's exit status; it is killed if it waits for hosts that are cut off."""
    helper = LocalHelper(process.pid)
    started = StartedHosts(process.pid, hosts)
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=min(SECONDS_BETWEEN_LOOKS, patience_s))
        if helper.seconds_gone() > patience_s:
            why = (
                f"the ranks of this host ended {patience_s:g} s ago, and mpirun waits for another "
                "host that does not answer"
            )
        elif missing := started.overdue():
            why = f"--hosts: {named(missing)} in time; {where_to_look(missing)}"
        else:
            continue
        print(f"error: {why}; mpirun was killed", file=sys.stderr)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return OUR_BUG
