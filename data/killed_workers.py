"""What to say of a loading process that was killed, such as by the kernel for want of memory.

torch raises a RuntimeError, at whatever line the main thread is when the process ends.
"""

import re
import signal
import socket

ENDED = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? (?P<process>\d+)[\d, ]*\) "
    r"(?:is killed by signal: (?P<signal>[\w ()]+)|exited unexpectedly)"
)
"""torch's messages, for one process or several."""


def killed_worker(error: BaseException | None) -> str | None:
    """Return a line on the killed loading process that an error comes from, or None.

    Args:
        error: Any; torch may wrap the error that names the signal.
    """
    found = None
    while isinstance(error, RuntimeError):
        match = ENDED.search(str(error))
        found = match if match and (found is None or match["signal"]) else found
        error = error.__cause__ or error.__context__
    if found is None:
        return None
    name = name_of_signal(found["signal"])
    what = f"was killed by {name}" if name else "ended unexpectedly"
    fix = "set data.workers lower (0: load in the training process), or give it more memory"
    if name == signal.SIGBUS.name:
        fix = "/dev/shm is full: docker run --shm-size=1g (or --ipc=host), or data.workers=0"
    cause = " (out of memory?)" if name == signal.SIGKILL.name else ""
    return (
        f"data loading: process {found['process']} on {socket.gethostname()} {what}{cause}; {fix}; "
        "--resume goes on from the last checkpoint"
    )


def name_of_signal(description: str | None) -> str | None:
    """Return `SIGKILL` for `Killed`, the C library's description; other words stay as they are."""
    if description is None:
        return None
    described = {signal.strsignal(number): number.name for number in signal.Signals}
    return described.get(description.strip(), description.strip())
