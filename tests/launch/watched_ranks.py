"""Four ranks in two groups that only watch each other; JSON of their exit codes at the end.

watched_ranks.py FOLDER CASE: what rank 0 does before (`outlive`, `restore`), then who does what.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from common.errors import BAD_INPUT, INTERRUPTED, OUR_BUG
from launch.watchdog import Watch, watch_as_first, watch_as_other

HOSTS = ("a", "b", "c", "d")
GROUPS = (0, 0, 1, 1)
KEY = b"of these ranks"
SILENCE_S = 2.0
TRACEBACK = "Traceback (most recent call last):\nLookupError: a bug"


def wait_for(file: Path) -> str:
    end = time.monotonic() + 20
    while not file.exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    return file.read_text()


def write(file: Path, text: str = "") -> None:
    """So that who finds it finds all of it."""
    partial = file.with_suffix(".partial")
    partial.write_text(text)
    partial.rename(file)


def joined(rank: int, folder: Path) -> Watch:
    port = folder / "port"
    if rank == 0:
        return watch_as_first(hosts=HOSTS, key=KEY, publish=lambda one: write(port, str(one)))
    address = ("127.0.0.1", int(wait_for(port)))
    return watch_as_other(rank, hosts=HOSTS, key=KEY, address=address)


def act(watch: Watch, what: str) -> None:
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "interrupt":
        watch.fail(INTERRUPTED, "interrupted")
    if what == "input":
        watch.fail(BAD_INPUT, "error: a.json: wrong")
    watch.fail(OUR_BUG, TRACEBACK)


def be(rank: int, folder: Path, case: list[str]) -> None:
    """One rank, which goes on until a group was given up, or is ended."""
    watch = joined(rank, folder)
    watch.start(silence_s=SILENCE_S)
    if rank == 0:
        watch.outlive(GROUPS if "outlive" in case else ())
        if "restore" in case:
            watch.outlive(())
        write(folder / "begun")
    wait_for(folder / "begun")
    for word in case:
        what, _, whose = word.partition(":")
        if whose == str(rank):
            act(watch, what)
    if rank == 0:
        end = time.monotonic() + 10
        while not watch.lost:
            assert time.monotonic() < end
            time.sleep(0.01)
        time.sleep(0.3)  # what follows from it
        write(folder / "lost", json.dumps(sorted(watch.lost)))
    assert wait_for(folder / "lost") == "[2, 3]"
    watch.close()


def main() -> None:
    folder, case = Path(sys.argv[1]), sys.argv[2].split()
    ranks = {}
    for rank in range(len(HOSTS)):
        process = os.fork()
        if process == 0:
            be(rank, folder, case)
            os._exit(0)
        ranks[process] = rank
    codes: dict[int, int] = {}
    stopped = {process for process, rank in ranks.items() if f"stop:{rank}" in case}
    while len(codes) < len(ranks):
        if len(codes) + len(stopped) == len(ranks):
            for process in stopped:
                os.kill(process, signal.SIGKILL)
        process, status = os.wait()
        codes[ranks[process]] = os.waitstatus_to_exitcode(status)
    print(json.dumps([codes[rank] for rank in sorted(codes)]))


if __name__ == "__main__":
    main()
