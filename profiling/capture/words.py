"""What a person is told of a run's profile: what does not come, what was written, what next."""

import shlex
from collections.abc import Collection, Mapping, Sequence

from rich.console import Console

from profiling.capture.perf_hook import PerfHook
from profiling.capture.watch import Watch
from retinanet.command_line import installed
from retinanet.training.report import print_summary

FILES = {"profile.onednn": "oneDNN's log", "profile.trace": "trace", "profile.perf": "counters"}


def first_notes(watches: Sequence[Watch], steps: range) -> list[str]:
    """What is known not to come, before a run takes these steps."""
    notes = []
    for one in filter(is_shown, watches):
        if one.problem:
            notes.append(f"{one.name}: {one.problem}; training goes on without it")
        elif not any(step in steps for step in one.steps):
            takes = f"takes {shown(steps)}" if steps else "takes no step"
            notes.append(f"{one.name}: this run {takes}, nothing of {shown(one.steps)}")
    return notes


def last_notes(watches: Sequence[Watch]) -> list[str]:
    """What has not come, after the run."""
    notes = []
    for one in filter(is_shown, watches):
        if one.problem:
            notes.append(f"{one.name}: {one.problem}; training went on without it")
        elif not one.done:
            asked = shown(one.steps)
            notes.append(f"{one.name}: nothing is written: this run trained nothing of {asked}")
        elif len(one.done) < len(one.steps):
            asked, found = shown(one.steps), shown(one.done)
            notes.append(f"{one.name}: of {asked} this run trained only {found}")
        if isinstance(one.hook, PerfHook) and one.hook.not_counted:
            events = ", ".join(one.hook.not_counted)
            notes.append(f"{one.name}: perf has no counters here for {events}")
    return notes


def is_shown(watch: Watch) -> bool:
    """Return whether a person asked for it by itself."""
    return watch.is_shown


def print_files(console: Console, watches: Sequence[Watch], *, ranks: int) -> None:
    """Where rank 0's files lie, and the commands that read them."""
    shown_watches = filter(is_shown, watches)
    written = [one for one in shown_watches if one.done and one.hook.file.exists()]
    if not written:
        return
    others = f", one for each of {ranks} ranks" if ranks > 1 else ""
    print_summary(
        console,
        headline="profiled",
        facts={FILES[one.name]: f"{one.hook.file}, {shown(one.done)}{others}" for one in written},
        paths={},
        next_commands=reading_commands({one.name: one for one in written}),
    )


def reading_commands(written: Mapping[str, Watch]) -> list[str]:
    """Such as `.venv/bin/python -m profiling stats runs/demo/onednn/rank0.log --out …`."""
    log, trace = written.get("profile.onednn"), written.get("profile.trace")
    commands = []
    if log:
        file = log.hook.file
        commands.append(["stats", str(file), "--out", str(file.with_name("stats"))])
    if trace:
        file = trace.hook.file
        same = ["--onednn-log", str(log.hook.file)] if log and log.done == trace.done else []
        commands.append(["trace", str(file), *same, "--out", str(file.with_name("tables"))])
    return [shlex.join([installed("python"), "-m", "profiling", *words]) for words in commands]


def shown(steps: Collection[int]) -> str:
    """`steps 20-22`, `step 20`, or `steps 20, 30` where they do not follow each other."""
    ordered = sorted(steps)
    first, last = ordered[0], ordered[-1]
    if first == last:
        return f"step {first}"
    if last - first >= len(ordered):
        return f"steps {', '.join(map(str, ordered))}"
    return f"steps {first}-{last}"
