"""The supervisor of a rank outside the first compute group: a small process that is its parent.

Launchers end all ranks when one of them fails. The supervisor then exits with 0, so that the other
groups continue.
"""

import ctypes
import math
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass

from common.errors import FINISHED, INTERRUPTED, OUR_BUG
from common.processes import STOPS
from launch.waiting import BEAT_S
from launch.watchdog import is_gone

ENDED_BY_SIGNAL = 128
MOST_BEATS = 4096


@dataclass(frozen=True)
class RankSupervisor:
    """The rank's side of its supervisor, the small parent process that ends as the job needs it."""

    pipe: int

    def beat(self) -> None:
        """Send a heartbeat; other ranks watch this rank from its first heartbeat on."""
        with suppress(BlockingIOError, BrokenPipeError):  # the supervisor is stopped, or gone
            os.write(self.pipe, b".")


def supervise_this_rank(*, launcher: int | None, silence_s: float) -> RankSupervisor:
    """Continue in a child process; this process remains as a small supervisor until it has ended.

    If the `launcher` process ends, the supervisor does. A rank that has not beaten for
    `silence_s` has been given up, and is killed.
    """
    signals = {*STOPS, signal.SIGCHLD}
    # Blocked before the fork, so that no signal is lost before one of the processes handles it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    reads, writes = os.pipe2(os.O_NONBLOCK)
    # `fork` copies the calling thread only, so that torch and its threads must come later.
    rank = os.fork()
    if rank:
        os.close(writes)
        code, is_watched = wait_for_rank(
            rank, signals, beats=reads, launcher=launcher, silence_s=silence_s
        )
        has_died = code == OUR_BUG or (code >= ENDED_BY_SIGNAL and code != INTERRUPTED)
        if has_died and is_watched:
            # C's exit runs MPICH's exit handler, which reports a regular end to the launcher;
            # without it mpirun kills all ranks.
            ctypes.CDLL(None).exit(FINISHED)
        os._exit(code)
    os.close(reads)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return RankSupervisor(writes)


def wait_for_rank(
    rank: int,
    signals: set[signal.Signals],
    *,
    beats: int,
    launcher: int | None,
    silence_s: float,
) -> tuple[int, bool]:
    """Forward signals until a rank has ended; return its exit code, and whether it has beaten."""
    last_beat = math.inf
    while True:
        # SIGCHLD is among the signals, so that the wait ends as soon as the rank does.
        received = signal.sigtimedwait(signals, BEAT_S)
        if received is not None and received.si_signo in STOPS:
            os.kill(rank, received.si_signo)
        with suppress(BlockingIOError):  # there is no beat
            if os.read(beats, MOST_BEATS):
                last_beat = time.monotonic()
        process, status = os.waitpid(rank, os.WNOHANG)
        if process:
            code = os.waitstatus_to_exitcode(status)
            return (code if code >= 0 else ENDED_BY_SIGNAL - code), last_beat < math.inf
        # A suspended rank, which the launcher and so the job would wait for.
        if time.monotonic() - last_beat > silence_s:
            os.kill(rank, signal.SIGKILL)
        if is_gone(launcher):  # the rank notices that its parent has gone, and stops
            os._exit(OUR_BUG)
