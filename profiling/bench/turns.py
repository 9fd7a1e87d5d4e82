"""Contestants in turn: A B C, A B C, …, one at a time."""

from collections.abc import Iterator, Sequence

from profiling.bench.busy_cores import busy_cores
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

    See `rounds_of`.
    """
    found = list(rounds_of(crew, contestants, rounds=rounds, advance=advance, settling=settling))
    return {one.name: [of_round[one.name] for of_round in found] for one in contestants}


def take_turns_beside_load(
    crew: Crew,
    contestants: Sequence[Contestant],
    *,
    rounds: int,
    advance: Advance,
    cpus: Sequence[int],
) -> tuple[dict[str, list[Run]], dict[str, list[Run]]]:
    """Return the runs of `take_turns`, and as many that another process slowed down, by name.

    After each round every contestant runs once more while another process keeps one core busy: the
    first of `cpus` in the first round, the next one in the next, and so on. The first one matters
    most where main threads are on it.

    Raises:
        WorkerDiedError: A worker ended by itself.
    """
    quiet: dict[str, list[Run]] = {one.name: [] for one in contestants}
    loaded: dict[str, list[Run]] = {one.name: [] for one in contestants}
    for number, quiet_round in enumerate(
        rounds_of(crew, contestants, rounds=rounds, advance=advance)
    ):
        with busy_cores([cpus[number % len(cpus)]]):
            for contestant in contestants:
                loaded[contestant.name].append(crew.worker(contestant).run())
        for name, run in quiet_round.items():
            quiet[name].append(run)
    return quiet, loaded


def rounds_of(
    crew: Crew,
    contestants: Sequence[Contestant],
    *,
    rounds: int,
    advance: Advance,
    settling: int = 0,
) -> Iterator[dict[str, Run]]:
    """A run of every contestant, by name: one round after another, once all are warm.

    `settling` runs come before it in every turn, and are not counted.

    Raises:
        WorkerDiedError: A worker ended by itself.
    """
    done = 0
    for contestant in contestants:
        advance(done, f"warming up {contestant.name}")
        crew.worker(contestant)
        done += crew.warm_up
    for number in range(rounds):
        of_round = {}
        for place, contestant in enumerate(contestants, start=1):
            worker = crew.worker(contestant)
            for _ in range(settling):
                worker.run()
            run = worker.run()
            of_round[contestant.name] = run
            advance(
                done + number * len(contestants) + place, f"{contestant.name} {run.seconds:.3f} s"
            )
        yield of_round
