"""A benchmark's measurements, from the first warm-up to the last profiled run."""

from collections.abc import Sequence

from rich.console import Console

from profiling.bench.benchmark import Benchmark
from profiling.bench.contestant import Contestant
from profiling.bench.crew import Crew, Racer
from profiling.bench.other_load import other_load
from profiling.bench.results import Primitives, Results
from profiling.bench.step_findings import CEILING
from profiling.bench.turns import take_turns
from profiling.bench.workload import Workload
from retinanet.progress import progress

PROFILED_RUNS = 3
PROFILED_SECONDS = 10.0
"""No further run is profiled after so long: a slow contestant is not the one of interest."""


def measure(
    benchmark: Benchmark,
    contestants: Sequence[Contestant],
    workload: Workload,
    *,
    rounds: int,
    warm_up: int,
    where: bool,
    console: Console,
) -> Results:
    """Everything that a benchmark measures.

    Args:
        benchmark: What is compared.
        contestants: Who takes part.
        workload: What each is given.
        rounds: Counted runs of each.
        warm_up: Runs of each that are not counted.
        where: Whether to time torch's operators too.
        console: Where progress is shown.

    Raises:
        WorkerDiedError: A worker ended by itself.
    """
    total = len(contestants) * (warm_up + rounds)
    with (
        other_load() as others,
        Crew(workload, warm_up=warm_up, say=console.print) as crew,
        progress(console, f"bench {benchmark.name}, runs", total=total) as advance,
    ):
        runs = take_turns(
            crew, contestants, rounds=rounds, advance=advance, settling=benchmark.settling
        )
        # Last of all: what watches a run also slows it down.
        convolving = [one for one in contestants if benchmark.uses_onednn and one.name != CEILING]
        primitives = {one.name: profiled(crew.worker(one)) for one in convolving}
        watched = contestants if where else []
        operators = {one.name: crew.worker(one).ask("operators")["operators"] for one in watched}
    return Results(
        workload=workload,
        contestants=contestants,
        runs=runs,
        facts=crew.facts,
        primitives=primitives,
        operators=operators,
        other_cores=others.cores,
    )


def profiled(worker: Racer) -> Primitives:
    """Of runs with oneDNN's verbose output, the middle one by its share in primitives."""
    runs: list[Primitives] = []
    while sum(run.seconds for run in runs) < PROFILED_SECONDS and len(runs) < PROFILED_RUNS:
        answer = worker.ask("primitives")
        runs.append(
            Primitives(
                seconds=answer["seconds"],
                by_kind=answer["primitives"],
                winograd_seconds=answer["winograd"],
            )
        )
    return sorted(runs, key=lambda run: run.convolving_share)[len(runs) // 2]
