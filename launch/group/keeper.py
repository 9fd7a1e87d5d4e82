"""A rank as the child of a small process, so that its end need not be the end of the job.

Launchers end all ranks when one of them ends badly. Where compute groups go on without a group that
has ended, the launcher must not hear of it: it sees the keeper, which then ends well.
"""

import os
import signal
from dataclasses import dataclass

from data.worker_signals import STOPS
from launch.group.launcher_process import is_gone
from retinanet.exit_codes import FINISHED, INTERRUPTED, OUR_BUG

SECONDS_BETWEEN_LOOKS = 1.0
"""At whether the launcher is still there."""
WATCHED = b"w"
ENDED_BY_SIGNAL = 128


@dataclass(frozen=True)
class Keeper:
    """The rank's side."""

    pipe: int

    def may_end_alone(self) -> None:
        """From now on the other ranks notice this one's end, and decide what it means to them."""
        os.write(self.pipe, WATCHED)


def keep_this_rank(*, launcher: int | None) -> Keeper:
    """Go on in a child of this process, which stays behind, small, until that has ended.

    Args:
        launcher: The process that has started this rank; where it ends the keeper does.
    """
    heard = {*STOPS, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    reads, writes = os.pipe()
    rank = os.fork()
    if rank:
        os.close(writes)
        code = ended(rank, heard, launcher=launcher)
        os._exit(told_code(code, watched=os.read(reads, 1) == WATCHED))
    os.close(reads)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Keeper(writes)


def ended(rank: int, heard: set[signal.Signals], *, launcher: int | None) -> int:
    """Hand on signals until a rank has ended; returns its exit code, as shells count."""
    while True:
        found = signal.sigtimedwait(heard, SECONDS_BETWEEN_LOOKS)
        if found is not None and found.si_signo in STOPS:
            os.kill(rank, found.si_signo)
        process, status = os.waitpid(rank, os.WNOHANG)
        if process:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else ENDED_BY_SIGNAL - code
        if is_gone(launcher):  # the rank sees that its parent has gone, and stops
            os._exit(OUR_BUG)


def told_code(code: int, *, watched: bool) -> int:
    """What the launcher is to hear of a rank's exit code."""
    died = code == OUR_BUG or (code >= ENDED_BY_SIGNAL and code != INTERRUPTED)
    return FINISHED if died and watched else code
