"""From a configuration's section `profile` to the hooks of a run, and the last words on them."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from rich.console import Console

from launch.group.process_group import ProcessGroup
from launch.place import Place
from profiling.capture.capture import Capture
from profiling.capture.count_hook import CountHook
from profiling.capture.descriptors import python_output_apart
from profiling.capture.facts import facts_of_run
from profiling.capture.onednn_hook import OneDnnHook
from profiling.capture.perf_hook import PerfHook
from profiling.capture.trace_hook import TraceHook
from profiling.capture.watch import Watch
from profiling.capture.words import last_notes, print_files
from retinanet.config import Config
from retinanet.training.phases import UNWATCHED, Phases

NO_PERF = "there is no perf on this host (Debian's linux-perf, Ubuntu's linux-tools-generic)"


@contextmanager
def capturing(
    config: Config, folder: Path, *, place: Place, group: ProcessGroup, console: Console
) -> Iterator[Phases]:
    """What a run tells of its phases while the context lasts; all ranks enter it.

    At the end rank 0 says what was written, and what was not and why. No training fails for it.

    Args:
        config: Its section `profile` says what is asked for; a log's facts are taken from all.
        folder: The run's; files are `onednn/rank0.log`, `trace/rank0.json.gz`, `perf/rank0.json`.
        place: Where this rank runs.
        group: The ranks.
        console: Rank 0's.
    """
    watches = asked_for(config, folder, place=place, group=group)
    if not watches:
        yield UNWATCHED
        return
    capture = Capture(watches)
    with python_output_apart() if config.profile.onednn_steps else nullcontext():
        try:
            yield capture
        except BaseException:
            capture.close()
            print_files(console, watches, ranks=group.size)
            raise
        capture.close()
        notes = group.gather(last_notes(watches))
        if notes is not None:
            print_files(console, watches, ranks=group.size)
            for note in dict.fromkeys(note for of_rank in notes for note in of_rank):
                console.print(f"note: {note}", soft_wrap=True, markup=False)


def asked_for(
    config: Config, folder: Path, *, place: Place, group: ProcessGroup
) -> Sequence[Watch]:
    """The hooks of this rank, in the order in which they begin."""
    profile, rank = config.profile, group.rank
    onednn, trace = profile.onednn_steps, profile.trace_steps
    watches = []
    if trace:
        tracing = TraceHook(folder / "trace" / f"rank{rank}.json.gz")
        before = frozenset({min(trace) - 1}) - {0, *onednn}
        watches.append(Watch("profile.trace", CountHook(tracing), before, is_shown=False))
        watches.append(Watch("profile.trace", tracing, trace))
    if onednn:
        facts = partial(facts_of_run, config=config, place=place, group=group)
        log = OneDnnHook(folder / "onednn" / f"rank{rank}.log", facts=facts)
        watches.append(Watch("profile.onednn", log, onednn))
    if profile.perf:  # the last to begin and the first to end: it counts least of the others' work
        counting = PerfHook(folder / "perf" / f"rank{rank}.json", rank=rank)
        problem = "" if shutil.which("perf") else NO_PERF
        steps = frozenset(onednn) | frozenset(trace)
        watches.append(Watch("profile.perf", counting, steps, problem=problem))
    return watches
