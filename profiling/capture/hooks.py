"""`profile` of a configuration: the hooks of a training run, and what is printed of them.

Each hook watches some steps; what goes wrong in one ends it alone, and training goes on. oneDNN's
log begins with the facts of its run (`facts_of_run`), so that its problems can be run again under
the same conditions.
"""

import shlex
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console

from common.cli import installed
from common.console import python_output_apart
from common.errors import InputError
from common.machine import installed_versions
from launch.pinning import RankContext
from launch.process_group import ProcessGroup
from launch.topology import format_cpu_list
from profiling.capture.backends import CountHook, OneDnnHook, PerfFailedError, PerfHook, TraceHook
from retinanet.config import Config
from retinanet.config_types import split_at_start
from retinanet.engine.engines import PreparedTraining, chosen_engine
from retinanet.engine.folded_forward import FoldedForward
from retinanet.training.loop import NO_PROFILER, StepProfiler
from retinanet.training.recorder import print_summary
from retinanet.training.run_folder import command_line

NO_PERF = "there is no perf on this host (Debian's linux-perf, Ubuntu's linux-tools-generic)"


@contextmanager
def capturing(
    config: Config, folder: Path, *, place: RankContext, group: ProcessGroup, console: Console
) -> Iterator[StepProfiler]:
    """Yield the profiler of a run, to be told of steps and phases; all ranks enter the context.

    At the end rank 0 prints what was written, and what was not and why. No training fails for it.

    Args:
        config: Its section `profile` has what to watch; a log's facts are taken from all.
        folder: The run's; files are `onednn/rank0.log`, `trace/rank0.json.gz`, `perf/rank0.json`.
        place: This rank's place.
        group: The ranks.
        console: Rank 0's.
    """
    watches = hooks_of_rank(config, folder, place=place, group=group)
    if not watches:
        yield NO_PROFILER
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


class ProfilerHook(Protocol):
    """Watches steps. Training computes between these calls, never within one."""

    file: Path
    """The file that it writes; the name may change before `open`."""

    def open(self, prepared: PreparedTraining) -> None:
        """Do what takes time, before the first step."""

    def begin_step(self, number: int, prepared: PreparedTraining) -> None:
        """Begin a step."""

    def begin_phase(self, name: str) -> None:
        """Begin a phase of the step."""

    def end_phase(self, name: str) -> None:
        """End that phase."""

    def end_step(self, *, whole: bool) -> None:
        """End the step; it is not whole if an error has interrupted it."""

    def close(self) -> None:
        """Write what there is, after the last step. May be called twice."""


@dataclass
class Watch:
    """A hook and its steps."""

    name: str
    """Its section of the configuration: `profile.onednn`."""
    hook: ProfilerHook
    steps: Collection[int]
    is_open: bool = False
    done: list[int] = field(default_factory=list)
    """Steps that it has watched as a whole."""
    is_shown: bool = True
    """Whether messages name it; else it serves another hook."""
    problem: str = ""
    """Why it does not watch, or no longer."""


def hooks_of_rank(
    config: Config, folder: Path, *, place: RankContext, group: ProcessGroup
) -> Sequence[Watch]:
    """Return the hooks of this rank, in the order in which they begin."""
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


PROBLEMS = (OSError, InputError, PerfFailedError)
"""Errors of a hook: its folder cannot be written, the disk is full, perf does not count."""


class Capture:
    """The `StepProfiler` of a run that is profiled."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self.watches = watches
        self._active: list[Watch] = []

    def notes(self, steps: range) -> list[str]:
        """Return which files will not be written, before the run takes these steps."""
        return first_notes(self.watches, steps)

    @contextmanager
    def step(self, number: int, prepared: PreparedTraining) -> Iterator[None]:
        """Surround a step."""
        self._active = [one for one in self.watches if number in one.steps and not one.problem]
        if not self._active:
            yield
            return
        # All are open before any begins, so that none measures what another needs for that.
        self._each(lambda one: open_once(one, number, prepared))
        self._each(lambda one: one.hook.begin_step(number, prepared))
        try:
            yield
        except BaseException:
            self._each(lambda one: one.hook.end_step(whole=False), backwards=True)
            raise
        self._each(lambda one: one.hook.end_step(whole=True), backwards=True)
        for one in self._active:
            one.done.append(number)
        self._active = [one for one in self._active if number == max(one.steps)]
        self._each(lambda one: one.hook.close())
        self._active = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Surround a phase of the step."""
        self._each(lambda one: one.hook.begin_phase(name))
        yield
        self._each(lambda one: one.hook.end_phase(name), backwards=True)

    def close(self) -> None:
        """Write what there is of windows that have not ended."""
        self._active = [one for one in self.watches if not one.problem]
        self._each(lambda one: one.hook.close())

    def _each(self, action: Callable[[Watch], None], *, backwards: bool = False) -> None:
        """Call `action` for all active hooks; one that fails is no longer active."""
        for one in self._active[:: -1 if backwards else 1]:
            try:
                action(one)
            except PROBLEMS as error:
                one.problem = describe_error(error, one.hook.file)
                self._active.remove(one)
                with suppress(*PROBLEMS):
                    one.hook.close()


def describe_error(error: Exception, file: Path) -> str:
    """Return a hook's error in one line."""
    if isinstance(error, OSError):
        return f"{error.filename or file}: cannot be written: {error.strerror}"
    return str(error)


def open_once(watch: Watch, number: int, prepared: PreparedTraining) -> None:
    """Open a hook before its first step; what the run wrote before it was resumed is kept."""
    hook = watch.hook
    if watch.is_open:
        return
    watch.is_open = True
    hook.file.parent.mkdir(parents=True, exist_ok=True)
    if hook.file.exists():
        name, _, kind = hook.file.name.partition(".")
        hook.file = hook.file.with_name(f"{name}-from-step-{number}.{kind}")
    hook.open(prepared)


IPEX = "intel_extension_for_pytorch"


def facts_of_run(
    prepared: PreparedTraining, *, config: Config, place: RankContext, group: ProcessGroup
) -> dict[str, Any]:
    """Return this rank's conditions for a log, see `profiling.onednn_log.parse.facts_line`."""
    share, engine = place.pinned.share, config.engine
    forward = prepared.forward
    own_kernels = forward.own_kernels if isinstance(forward, FoldedForward) else None
    name = chosen_engine(engine.name)
    return {
        "run": config.run.name,
        "rank": group.rank,
        "ranks": group.size,
        "local_rank": place.ranks.local_rank,
        "local_ranks": place.ranks.local_size,
        "host": group.hosts[group.rank],
        "threads": torch.get_num_threads(),
        "cpus": format_cpu_list(share.cpus),
        "memory_nodes": format_cpu_list(share.nodes),
        "pinned": place.pinned.enabled,
        "images_a_step": images_a_step(config, group),
        "image_size": config.data.image_size,
        "precision": engine.precision,
        "engine": name,
        "convolutions": engine.convolutions,
        "own_kernels": own_kernels,
        "allocator": engine.allocator,
        "torch": torch.__version__,
        "ipex": installed_versions([IPEX]).get(IPEX) if name == "ipex" else None,
        "command": command_line(),
    }


def images_a_step(config: Config, group: ProcessGroup) -> int | None:
    """Return this rank's images a step; None where only the run itself determines them."""
    split, training = config.distributed.batch_split, config.training
    if split == "speed" and group.size > 1:
        return None
    batches = split_at_start(split, batch_size=training.batch_size, ranks=group.size)
    return batches[group.rank] * training.gradient_accumulation


FILES = {"profile.onednn": "oneDNN's log", "profile.trace": "trace", "profile.perf": "counters"}


def first_notes(watches: Sequence[Watch], steps: range) -> list[str]:
    """Return which files will not be written, before a run takes these steps."""
    notes = []
    for one in (watch for watch in watches if watch.is_shown):
        if one.problem:
            notes.append(f"{one.name}: {one.problem}; training goes on without it")
        elif not any(step in steps for step in one.steps):
            takes = f"takes {format_steps(steps)}" if steps else "takes no step"
            notes.append(f"{one.name}: this run {takes}, nothing of {format_steps(one.steps)}")
    return notes


def last_notes(watches: Sequence[Watch]) -> list[str]:
    """Return which files were not written, after the run."""
    notes = []
    for one in (watch for watch in watches if watch.is_shown):
        if one.problem:
            notes.append(f"{one.name}: {one.problem}; training went on without it")
        elif not one.done:
            steps = format_steps(one.steps)
            notes.append(f"{one.name}: nothing is written: this run trained nothing of {steps}")
        elif len(one.done) < len(one.steps):
            steps, done = format_steps(one.steps), format_steps(one.done)
            notes.append(f"{one.name}: of {steps} this run trained only {done}")
        if isinstance(one.hook, PerfHook) and one.hook.not_counted:
            events = ", ".join(one.hook.not_counted)
            notes.append(f"{one.name}: perf has no counters here for {events}")
    return notes


def print_files(console: Console, watches: Sequence[Watch], *, ranks: int) -> None:
    """Print rank 0's files, and the commands that read them."""
    written = [one for one in watches if one.is_shown and one.done and one.hook.file.exists()]
    if not written:
        return
    others = f", one for each of {ranks} ranks" if ranks > 1 else ""
    print_summary(
        console,
        headline="profiled",
        facts={
            FILES[one.name]: f"{one.hook.file}, {format_steps(one.done)}{others}" for one in written
        },
        paths={},
        next_commands=reading_commands({one.name: one for one in written}),
    )


def reading_commands(written: Mapping[str, Watch]) -> list[str]:
    """Return commands: `.venv/bin/python -m profiling stats runs/demo/onednn/rank0.log --out …`."""
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


def format_steps(steps: Collection[int]) -> str:
    """Return `steps 20-22`, `step 20`, or `steps 20, 30` where they are not consecutive."""
    ordered = sorted(steps)
    first, last = ordered[0], ordered[-1]
    if first == last:
        return f"step {first}"
    if last - first >= len(ordered):
        return f"steps {', '.join(map(str, ordered))}"
    return f"steps {first}-{last}"
