"""`profile` of a configuration: the hooks of a training run, and their messages.

Each hook watches some steps; an error in one ends it alone, and training continues. oneDNN's log
begins with the facts of its run (`collect_run_facts`), so that its problems can be run again under
the same conditions.
"""

import shlex
import shutil
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from common.cli import installed_command
from common.console import print_summary, separate_python_output
from common.errors import InputError
from common.machine import installed_versions
from launch.pinning import RankContext
from launch.process_group import ProcessGroup
from launch.topology import format_cpu_list
from profiling.capture.backends import (
    CountHook,
    OneDnnHook,
    PerfFailedError,
    PerfHook,
    ProfilerHook,
    TraceHook,
)
from retinanet.config import Config
from retinanet.config_types import split_at_start
from retinanet.engine.engines import PreparedTraining, chosen_engine
from retinanet.engine.folded_forward import FoldedForward
from retinanet.training.loop import NO_PROFILER, StepProfiler
from retinanet.training.run_folder import command_line

NO_PERF = "perf is not installed (Debian: linux-perf, Ubuntu: linux-tools-generic)"


@contextmanager
def capturing(
    config: Config, folder: Path, *, place: RankContext, group: ProcessGroup, console: Console
) -> Iterator[StepProfiler]:
    """Yield the profiler of a run; all ranks enter the context.

    The section `profile` of the configuration has what to watch; a log's facts are taken from all
    sections. Files in the run's folder are `onednn/rank0.log`, `trace/rank0.json.gz` and
    `perf/rank0.json`. At the end rank 0 prints on its console what was written, and what was not
    and why. No training fails for it.
    """
    hooks = create_hooks(config, folder, place=place, group=group)
    if not hooks:
        yield NO_PROFILER
        return
    capture = Capture(hooks)
    with separate_python_output() if config.profile.onednn_steps else nullcontext():
        try:
            yield capture
        except BaseException:
            # The notes are not gathered: after an error on one rank, others may never reach the
            # gather.
            capture.close()
            print_files(console, hooks, ranks=group.size)
            raise
        capture.close()
        notes = group.gather(capture.final_notes(), list[str])
        if notes is not None:
            print_files(console, hooks, ranks=group.size)
            for note in dict.fromkeys(note for rank_notes in notes for note in rank_notes):
                console.print(f"note: {note}", soft_wrap=True, markup=False)


def create_hooks(
    config: Config, folder: Path, *, place: RankContext, group: ProcessGroup
) -> list[ProfilerHook]:
    """Return the hooks of this rank, in the order in which they begin."""
    profile, rank = config.profile, group.rank
    onednn, trace = profile.onednn_steps, profile.trace_steps
    hooks: list[ProfilerHook] = []
    if trace:
        tracing = TraceHook(folder / "trace" / f"rank{rank}.json.gz", trace)
        # There is no step 0. A step in oneDNN's log must not include the counter's work either.
        before = frozenset({min(trace) - 1}) - {0, *onednn}
        hooks += [CountHook(tracing, before), tracing]
    if onednn:
        facts = partial(collect_run_facts, config=config, place=place, group=group)
        hooks.append(OneDnnHook(folder / "onednn" / f"rank{rank}.log", onednn, facts=facts))
    if profile.perf:
        # It begins last and ends first, so that it counts little of the other hooks' work.
        file = folder / "perf" / f"rank{rank}.json"
        problem = "" if shutil.which("perf") else NO_PERF
        steps = frozenset(onednn) | frozenset(trace)
        hooks.append(PerfHook(file, steps, rank=rank, problem=problem))
    return hooks


PROBLEMS = (OSError, InputError, PerfFailedError)
"""Errors of a hook: its folder cannot be written, the disk is full, perf does not count."""


class Capture:
    """The `StepProfiler` of a run that is profiled."""

    def __init__(self, hooks: Sequence[ProfilerHook]) -> None:
        self.hooks = hooks
        self._active: list[ProfilerHook] = []
        self._entered: defaultdict[ProfilerHook, list[AbstractContextManager[object]]]
        self._entered = defaultdict(list)

    def notes(self, steps: range) -> list[str]:
        """Return notes on files that will not be written, before the run reaches these steps."""
        notes = []
        for hook in self.hooks:
            if hook.is_shown and hook.problem:
                notes.append(f"{hook.name}: {hook.problem}; training continues without it")
            elif hook.is_shown and not any(step in steps for step in hook.steps):
                trained = format_steps(steps) if steps else "no step"
                notes.append(
                    f"{hook.name}: this run trains {trained}, not {format_steps(hook.steps)}"
                )
        return notes

    def final_notes(self) -> list[str]:
        """Return notes on files that were not written, after the run."""
        notes = []
        for hook in (hook for hook in self.hooks if hook.is_shown):
            name, steps = hook.name, format_steps(hook.steps)
            if hook.problem:
                notes.append(f"{name}: {hook.problem}; training continued without it")
            elif not hook.done:
                notes.append(f"{name}: nothing was recorded: this run did not train {steps}")
            elif len(hook.done) < len(hook.steps):
                notes.append(f"{name}: only {format_steps(hook.done)} of {steps} were recorded")
            if isinstance(hook, PerfHook) and hook.not_counted:
                events = ", ".join(hook.not_counted)
                notes.append(f"{name}: perf has no counters on this machine for {events}")
        return notes

    @contextmanager
    def step(self, number: int, prepared: PreparedTraining) -> Iterator[None]:
        """Surround a step."""
        self._active = [hook for hook in self.hooks if number in hook.steps and not hook.problem]
        # All are open before any begins, so that none measures what another needs for that.
        self._each(lambda hook: open_once(hook, number, prepared))
        with self._surrounded(lambda hook: hook.step(number, prepared)):
            yield
        for hook in self._active:
            hook.done.append(number)
        # Files are written after a hook's last step: a run that is killed later keeps them.
        self._active = [hook for hook in self._active if number == max(hook.steps)]
        self._each(lambda hook: hook.close())
        self._active = []

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Surround a phase of the step."""
        return self._surrounded(lambda hook: hook.phase(name))

    def close(self) -> None:
        """Write the files of windows that have not ended."""
        self._active = [hook for hook in self.hooks if not hook.problem]
        self._each(lambda hook: hook.close())

    @contextmanager
    def _surrounded(
        self, context: Callable[[ProfilerHook], AbstractContextManager[object]]
    ) -> Iterator[None]:
        """Enter a context of each active hook; leave them in reverse, also after an error."""

        def enter(hook: ProfilerHook) -> None:
            entered = context(hook)
            entered.__enter__()
            self._entered[hook].append(entered)

        self._each(enter)
        try:
            yield
        except BaseException as error:
            raised = error
            self._each(lambda hook: self._leave(hook, raised), backwards=True)
            raise
        self._each(self._leave, backwards=True)

    def _leave(self, hook: ProfilerHook, error: BaseException | None = None) -> None:
        """Leave the innermost context of a hook."""
        trace = None if error is None else error.__traceback__
        self._entered[hook].pop().__exit__(None if error is None else type(error), error, trace)

    def _each(self, action: Callable[[ProfilerHook], object], *, backwards: bool = False) -> None:
        """Call `action` for all active hooks; one that fails is no longer active."""
        # A slice is a copy, so that a failing hook can be removed in the loop.
        for hook in self._active[:: -1 if backwards else 1]:
            try:
                action(hook)
            except PROBLEMS as error:
                hook.problem = str(error)
                if isinstance(error, OSError):
                    file = error.filename or hook.file
                    hook.problem = f"{file}: cannot be written: {error.strerror}"
                self._active.remove(hook)
                with suppress(*PROBLEMS):
                    while self._entered[hook]:
                        self._leave(hook, error)
                    hook.close()


def open_once(hook: ProfilerHook, number: int, prepared: PreparedTraining) -> None:
    """Open a hook before its first step; what the run wrote before it was resumed is kept."""
    if hook.is_open:
        return
    hook.is_open = True
    hook.file.parent.mkdir(parents=True, exist_ok=True)
    if hook.file.exists():
        name, _, kind = hook.file.name.partition(".")
        hook.file = hook.file.with_name(f"{name}-from-step-{number}.{kind}")
    hook.open(prepared)


IPEX = "intel_extension_for_pytorch"


def collect_run_facts(
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
    """Return this rank's images per step; None if they are determined during the run."""
    split, training = config.distributed.batch_split, config.training
    if split == "speed" and group.size > 1:
        return None
    batches = split_at_start(split, batch_size=training.batch_size, ranks=group.size)
    return batches[group.rank] * training.gradient_accumulation


def print_files(console: Console, hooks: Sequence[ProfilerHook], *, ranks: int) -> None:
    """Print rank 0's files, and the commands that read them.

    For example `.venv/bin/retinanet profile stats runs/demo/onednn/rank0.log --out …`.
    """
    written = {
        hook.name: hook for hook in hooks if hook.is_shown and hook.done and hook.file.exists()
    }
    if not written:
        return
    others = f", one for each of {ranks} ranks" if ranks > 1 else ""
    log, trace = written.get("profile.onednn"), written.get("profile.trace")
    commands = []
    if log:
        commands.append(["stats", str(log.file), "--out", str(log.file.with_name("stats"))])
    if trace:
        log_option = ["--onednn-log", str(log.file)] if log and log.done == trace.done else []
        out = trace.file.with_name("tables")
        commands.append(["trace", str(trace.file), *log_option, "--out", str(out)])
    profiling = installed_command("profiling")
    print_summary(
        console,
        headline="profiled",
        rows={
            hook.content: f"{hook.file}, {format_steps(hook.done)}{others}"
            for hook in written.values()
        },
        next_commands=[shlex.join([*profiling, *command]) for command in commands],
    )


def format_steps(steps: Collection[int]) -> str:
    """Return `step 20`, or `steps 20-22, 30`."""
    text = format_cpu_list(steps).replace(",", ", ")
    return f"step{'' if text.isdigit() else 's'} {text}"
