"""The image's HEALTHCHECK: report a training that makes no progress.

Exit status 1, with the reason in one line, if the process of a training is suspended, or has
written nothing into its run's folder for an hour (`HEALTH_SILENCE_S`; longer than any evaluation).
A container in which nothing trains is healthy.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

SILENCE_S = 3600.0
RUN_FILES = ("metrics.jsonl", "mlperf.log")  # A training holds these open from its start to its end


def main() -> int:
    """Check every process; returns the exit status."""
    silence_s = float(os.environ.get("HEALTH_SILENCE_S") or SILENCE_S)
    for process, files in trainings(Path("/proc")):
        problem = find_problem(process, files, silence_s=silence_s, now=time.time())
        if problem:
            print(problem)
            return 1
    return 0


def trainings(processes: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Yield the processes that hold a run's files open, with these."""
    for process in processes.glob("[0-9]*"):
        try:
            open_files = [link.readlink() for link in (process / "fd").iterdir()]
        except OSError:  # it has ended, or is another user's
            continue
        files = [file for file in open_files if file.name in RUN_FILES]
        if files:
            yield process, files


def find_problem(process: Path, files: list[Path], *, silence_s: float, now: float) -> str | None:
    """Return the problem of a training in a line; None: it advances, or has just ended."""
    try:
        # The name in parentheses may hold anything; the state is the word after it.
        state = (process / "stat").read_text(encoding="utf-8").rpartition(") ")[2][:1]
        written = max(file.stat().st_mtime for file in files)
    except OSError:
        return None
    # T: stopped by a signal; t: stopped by a debugger.
    if state in "Tt":
        return f"process {process.name} is suspended; kill -CONT {process.name} resumes it"
    if now - written > silence_s:
        folder = files[0].parent
        return f"process {process.name} has written nothing into {folder} for {now - written:.0f} s"
    return None


if __name__ == "__main__":
    raise SystemExit(main())
