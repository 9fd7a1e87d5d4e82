"""What a user should know before trusting numbers that stand beside a machine's peaks."""

from profiling.bench.other_load import DISTURBING_CORES
from profiling.onednn_log.log import OneDnnLog
from profiling.peaks.peaks import Peaks


def are_disturbed(peaks: Peaks) -> bool:
    """Return whether other work kept cores busy while the peaks were measured."""
    return peaks.other_cores > DISTURBING_CORES


def cautions_of_peaks(peaks: Peaks | None, log: OneDnnLog) -> list[str]:
    """Return a line for each thing that makes the peaks unfit for the log; none if they fit."""
    if peaks is None:
        return []
    found = []
    if are_disturbed(peaks):
        found.append(
            f"peaks: disturbed: other work kept {peaks.other_cores:.2f} cores busy while they were "
            "measured, so they are too low, and what is held against them looks better than it is"
        )
    threads = log.run_threads
    if threads and peaks.threads not in threads:
        counts = " and ".join(map(str, threads))
        found.append(
            f"peaks: threads: {counts} in the log, {peaks.threads} when peaks were measured; "
            f"measure them with python -m profiling peaks --threads {threads[0]} --json FILE"
        )
    return [*found, *(f"peaks: {note}" for note in peaks.notes)]
