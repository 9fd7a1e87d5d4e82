"""Signals in processes that load or check images.

Ctrl-C, and what a batch system or Open MPI's mpirun sends, reach all processes of a run. The
training process ends its step first, for which it needs its workers; then it ends them by a SIGTERM
of its own.
"""

import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

STOPS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGUSR1})
"""Signals that ask a run to stop."""


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Processes that are started meanwhile never hear `STOPS`, in any of their threads.

    This process gets what has come meanwhile afterwards.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def let_signals_in() -> None:
    """Under `signals_blocked`, take what has come until now: Ctrl-C raises KeyboardInterrupt."""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)


PR_SET_PDEATHSIG = 1
"""From Linux's prctl.h."""


def obey_parent(worker: int, *, parent: int) -> None:
    """End this process, which was started under `signals_blocked`, when its parent asks or is gone.

    A parent that was killed cannot ask. Its connections are this process's too, so that others
    would not notice its end while this process lives.

    Args:
        worker: Its number, as a DataLoader's `worker_init_fn` gets it.
        parent: The parent's process number.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before
        os._exit(1)
    threading.Thread(target=end_when_parent_asks, name=f"signals of {worker}", daemon=True).start()


def end_when_parent_asks() -> None:
    """Wait for a SIGTERM that the parent has sent."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
