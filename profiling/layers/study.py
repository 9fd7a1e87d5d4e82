"""Configurations in turn, each in a process of its own."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass

from rich.console import Console

from profiling.bench.available_memory import available_mb
from profiling.bench.crew import SPARE_MB
from profiling.bench.worker_process import Worker
from profiling.huge_pages import huge_pages_environment
from profiling.layers.measured import Measured
from profiling.layers.subject import Configuration, Subject, labels
from retinanet.progress import progress

MODULE = "profiling.layers.worker"
TURN_MS = 10_000.0
"""About so long is a turn, so that what disturbs the machine meets all configurations alike."""
LONGEST_TURN = 10
SETTLING = 1
"""Iterations at the start of a turn that do not count: another process has used the memory."""

Told = Callable[[int, str], None]
"""Called as `told(iterations done since the last call, what to say of them)`."""


@dataclass(frozen=True)
class Contestant:
    """A configuration's worker, and what it has measured."""

    worker: Worker
    measured: Measured


def run_study(
    subject: Subject,
    configurations: Sequence[Configuration],
    *,
    iterations: int,
    warm_up: int,
    console: Console,
) -> list[Measured]:
    """Time iterations of each configuration, in turn as far as memory does for them at once.

    Args:
        subject: What is timed.
        configurations: How.
        iterations: Of each, that count.
        warm_up: Of each, before them.
        console: Progress is shown here.

    Raises:
        WorkerDiedError: A worker ended by itself.
        InputError: A configuration asks for what is not here.
    """
    left = list(zip(labels(configurations), configurations, strict=True))
    measured: list[Measured] = []
    done, total = 0, len(left) * (warm_up + iterations)
    with progress(console, f"layers of {subject.model}, iterations", total=total) as advance:

        def told(count: int, note: str) -> None:
            nonlocal done
            done += count
            advance(done, note)

        while left:
            measured += run_group(
                subject, left, iterations=iterations, warm_up=warm_up, told=told, console=console
            )
    return measured


def run_group(
    subject: Subject,
    left: list[tuple[str, Configuration]],
    *,
    iterations: int,
    warm_up: int,
    told: Told,
    console: Console,
) -> list[Measured]:
    """Take as many from `left` as fit into memory together, and time them in turn."""
    with ExitStack() as workers:
        group: list[Contestant] = []
        while left and fits(group):
            label, configuration = left.pop(0)
            told(0, f"{label}: warming up")
            contestant = start(subject, configuration, label=label)
            workers.enter_context(closing(contestant.worker))
            ask(contestant, f"warm-up {warm_up}")
            told(warm_up, f"{label}: warmed up")
            group.append(contestant)
        if left:
            later = ", ".join(label for label, _ in left)
            console.print(f"memory does not do for all at once: {later} come afterwards")
        take_turns(group, iterations=iterations, told=told)
    return [one.measured for one in group]


def fits(group: Sequence[Contestant]) -> bool:
    """Whether there is memory for one more; for the first there always is."""
    hungriest = max((one.measured.peak_mb for one in group), default=None)
    return hungriest is None or available_mb() >= hungriest + SPARE_MB


def start(subject: Subject, configuration: Configuration, *, label: str) -> Contestant:
    """Start a configuration's worker."""
    worker = Worker(
        label,
        module=MODULE,
        specification={"subject": asdict(subject), "configuration": asdict(configuration)},
        environment=huge_pages_environment() if configuration.huge_pages else None,
    )
    measured = Measured(configuration=configuration, label=label, facts=worker.facts)
    return Contestant(worker, measured)


def take_turns(group: Sequence[Contestant], *, iterations: int, told: Told) -> None:
    """A few iterations of each after the other, until all have theirs; then a look at oneDNN."""
    done = 0
    while done < iterations:
        count = min(iterations - done, turn_length(group))
        for one in group:
            if len(group) > 1:
                one.worker.ask(f"warm-up {SETTLING}")
            ask(one, f"measure {count}")
            told(count, f"{one.measured.label} {one.measured.middle_ms / 1000:.3g} s")
        done += count
    for one in group:
        one.measured.primitives = one.worker.ask("primitives 1")["seconds"]


def turn_length(group: Sequence[Contestant]) -> int:
    """Iterations of each in the next turn."""
    slowest = max(one.measured.middle_ms for one in group)
    return max(1, min(LONGEST_TURN, round(TURN_MS / slowest)))


def ask(contestant: Contestant, question: str) -> None:
    """Put a question, and keep what comes back."""
    answer = contestant.worker.ask(question)
    measured = contestant.measured
    measured.watched += answer.get("watched", [])
    measured.plain += answer.get("plain", [])
    measured.warm_ms = answer.get("last_ms", measured.warm_ms)
    measured.peak_mb = answer["peak_mb"]
    measured.huge_pages_mb = answer.get("huge_pages_mb", 0.0)
