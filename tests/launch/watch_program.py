"""Four ranks in two groups that only watch each other; prints their exit codes as JSON.

watch_program.py FOLDER CASE: the calls of rank 0 (`outlive`, `restore`), then ACTION:RANK pairs.
"""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

from common.errors import BAD_INPUT, INTERRUPTED, OUR_BUG
from launch import watchdog
from launch.watchdog import Watch, watch_as_first, watch_as_other
from tests.support.processes import wait_until

HOSTS = ("a", "b", "c", "d")
GROUPS = (0, 0, 1, 1)
KEY = b"secret"
SILENCE_S = 1.5
TRACEBACK = "Traceback (most recent call last):\nLookupError: a bug"


def wait_for(file: Path) -> str:
    wait_until(file.exists, seconds=40)
    return file.read_text()


def write(file: Path, text: str = "") -> None:
    """Write a file that exists only once it is complete."""
    partial = file.with_suffix(".partial")
    partial.write_text(text)
    partial.rename(file)


def joined(rank: int, folder: Path) -> Watch:
    port = folder / "port"
    if rank == 0:
        listener = socket.create_server(("127.0.0.1", 0))
        write(port, str(listener.getsockname()[1]))
        return watch_as_first(hosts=HOSTS, key=KEY, listener=listener)
    address = ("127.0.0.1", int(wait_for(port)))
    return watch_as_other(rank, hosts=HOSTS, key=KEY, address=address)


def act(watch: Watch, action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if action == "interrupt":
        watch.fail(INTERRUPTED, "interrupted")
    if action == "input":
        watch.fail(BAD_INPUT, "error: a.json: wrong")
    watch.fail(OUR_BUG, TRACEBACK)


def run_rank(rank: int, folder: Path, case: list[str]) -> None:
    """Run one rank until a group is lost, or the rank is ended."""
    watchdog.BEAT_S = 0.2
    watch = joined(rank, folder)
    watch.clean_up = (folder / "cleaned").touch
    watch.start(silence_s=SILENCE_S)
    if rank == 0:
        watch.outlive(GROUPS if "outlive" in case else ())
        if "restore" in case:
            watch.outlive(())
        write(folder / "begun")
    wait_for(folder / "begun")
    for item in case:
        action, _, actor = item.partition(":")
        if actor == str(rank):
            act(watch, action)
    if rank == 0:
        wait_until(lambda: watch.lost, seconds=30)
        time.sleep(0.3)  # for the consequences
        write(folder / "lost", json.dumps(sorted(watch.lost)))
    assert wait_for(folder / "lost") == "[2, 3]"
    watch.close()


def main() -> None:
    folder, case = Path(sys.argv[1]), sys.argv[2].split()
    ranks = {}
    for rank in range(len(HOSTS)):
        process = os.fork()
        if process == 0:
            run_rank(rank, folder, case)
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
