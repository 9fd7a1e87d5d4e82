"""What makes a replay differ from the run that wrote a log, other than running alone."""

from profiling.bench.other_load import disturbance
from profiling.onednn_log.log import OneDnnLog
from profiling.replay.replay import Replay


def mismatches(log: OneDnnLog, replay: Replay) -> list[str]:
    """Other work beside it; instruction set, threads and version where they differ. Lines."""
    found = []
    if disturbed := disturbance(replay.other_cores):
        found.append(f"the replay was {disturbed}")
    if log.instruction_sets and replay.instruction_set not in log.instruction_sets:
        found.append(
            f"instruction set: {' and '.join(log.instruction_sets)} in the log, "
            f"{replay.instruction_set or 'unknown'} in the replay"
        )
    threads = log.run_threads
    if threads and replay.conditions.threads not in threads:
        counts = " and ".join(map(str, threads))
        found.append(f"threads: {counts} in the log, {replay.conditions.threads} in the replay")
    if log.versions and replay.version not in log.versions:
        found.append(
            f"oneDNN: {' and '.join(log.versions)} in the log, "
            f"{replay.version or 'unknown'} in the replay"
        )
    return found
