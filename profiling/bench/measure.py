"""A benchmark's measurements, from the first warm-up to the last profiled run."""

from collections.abc import Sequence

from rich.console import Console

from profiling.bench.benchmark import Benchmark
from profiling.bench.contestant import Contestant
from profiling.bench.crew import Crew, Racer
from profiling.bench.other_load import other_load
from profiling.bench.results import BytesMoved, Primitives, Results
from profiling.bench.run import Run
from profiling.bench.step_findings import CEILING
from profiling.bench.turns import take_turns, take_turns_beside_load
from profiling.bench.workload import Workload
from profiling.peaks.cores import choose_cores
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
    beside_load: bool = False,
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
        beside_load: Whether each also runs while another process keeps one of the cores busy.
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
        loaded_runs: dict[str, list[Run]] = {}
        if beside_load:
            cpus = choose_cores(threads=None).cpus
            runs, loaded_runs = take_turns_beside_load(
                crew, contestants, rounds=rounds, advance=advance, cpus=cpus
            )
        else:
            runs = take_turns(
                crew, contestants, rounds=rounds, advance=advance, settling=benchmark.settling
            )
        # Last of all: what watches a run also slows it down.
        convolving = [one for one in contestants if benchmark.uses_onednn and one.name != CEILING]
        primitives = {one.name: profiled(crew.worker(one)) for one in convolving}
        counted = convolving if benchmark.counts_bytes else []
        moved = {one.name: crew.worker(one).ask("bytes")["bytes"] for one in counted}
        watched = contestants if where else []
        operators = {one.name: crew.worker(one).ask("operators")["operators"] for one in watched}
    return Results(
        workload=workload,
        contestants=contestants,
        runs=runs,
        loaded_runs=loaded_runs,
        facts=crew.facts,
        primitives=primitives,
        operators=operators,
        bytes_moved={name: [BytesMoved(*row) for row in rows] for name, rows in moved.items()},
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
                kernel_seconds=answer["kernels"],
            )
        )
    return sorted(runs, key=lambda run: run.convolving_share)[len(runs) // 2]
