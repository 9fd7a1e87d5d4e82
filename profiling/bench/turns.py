"""Contestants in turn: A B C, A B C, …, one at a time."""

from collections.abc import Sequence

from profiling.bench.contestant import Contestant
from profiling.bench.crew import Crew
from profiling.bench.run import Run
from retinanet.progress import Advance


def take_turns(
    crew: Crew,
    contestants: Sequence[Contestant],
    *,
    rounds: int,
    advance: Advance,
    settling: int = 0,
) -> dict[str, list[Run]]:
    """A run of every contestant in every round, after its warm-up; by name, in order of rounds.

    `settling` runs come before it in every turn, and are not counted.

    Raises:
        WorkerDiedError: A worker ended by itself.
    """
    done = 0
    for contestant in contestants:
        advance(done, f"warming up {contestant.name}")
        crew.worker(contestant)
        done += crew.warm_up
    runs: dict[str, list[Run]] = {contestant.name: [] for contestant in contestants}
    for _ in range(rounds):
        for contestant in contestants:
            worker = crew.worker(contestant)
            for _ in range(settling):
                worker.run()
            run = worker.run()
            runs[contestant.name].append(run)
            done += 1
            advance(done, f"{contestant.name} {run.seconds:.3f} s")
    return runs
