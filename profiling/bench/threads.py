"""`bench step --threads 1,2,4`: the step, each kernel and the machine's rates by threads.

Each contestant runs with each number of threads, in a process of its own whose threads are bound to
the first CPU of each physical core, then to the second ones. In the same rounds `machine` measures
on the same CPUs what bounds a step: matrix products, and a copy in memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from common.charts import Column, Table, text_column
from common.console import make_console, print_line, progress, significant, three_digits
from common.machine import processor_name
from common.wording import counted
from profiling.bench.physical_cores import Cores, find_cores
from profiling.bench.report import PIPE_WIDTH, as_json, where_table
from profiling.bench.results import MACHINE_RECIPE, Benchmark, Results, disturbance, measure
from profiling.bench.variant import Variant, Workload

MACHINE = "machine"
RATES = {"float32": "product in float32", "bf16": "product in BF16", "copy": "copy in memory"}
"""The details of the machine's runs."""

STEP_COLUMNS = (
    text_column("contestant"),
    Column("threads"),
    Column("cores", name="physical_cores"),
    Column("median s", significant, name="median_s"),
    Column("lowest–highest", name="range"),
    Column("speed-up", ".2f", name="speed_up"),
    Column("GFLOP/s", three_digits, name="gflop_per_s"),
    Column("GFLOP/s\na core", three_digits, name="gflop_per_s_and_core"),
    Column("outside\nkernels ms", three_digits, name="outside_kernels_ms"),
    Column("float32\nGFLOP/s", ",.0f", name="float32_gflop_per_s"),
    Column("BF16\nGFLOP/s", ",.0f", name="bf16_gflop_per_s"),
    Column("copy\nGB/s", ",.1f", name="copy_gb_per_s"),
)


@dataclass(frozen=True, kw_only=True)
class ByThreads:
    """Results of contestants by name and number of threads."""

    contestants: Sequence[str]
    threads: Sequence[int]
    cores: Cores
    results: Results

    def steps(self) -> Table:
        """Return a row for each contestant and number of threads."""
        rows = [self.step_row(name, n) for name in self.contestants for n in self.threads]
        rounds = len(next(iter(self.results.runs.values())))
        title = f"{self.results.workload}; {counted(rounds, 'round')}"
        return Table(title, STEP_COLUMNS, rows).without_empty_columns()

    def step_row(self, name: str, threads: int) -> list[object]:
        """Return the values of `STEP_COLUMNS`."""
        results, label, cores = self.results, named(name, threads), self.cores.count(threads)
        seconds, first = results.seconds(label), named(name, self.threads[0])
        outside = self.outside(name, threads)
        runs = [run.seconds for run in results.runs[label]]
        rates, rate = self.rates(threads), self.gflop(threads) / seconds
        return [
            *(name, threads, cores, seconds),
            f"{significant(min(runs))}–{significant(max(runs))}",
            *(results.ratio(label, first).median, rate, rate / cores),
            None if outside is None else 1000 * outside,
            *(rates.get("float32"), rates.get("bf16"), rates["copy"] / 1e9),
        ]

    def gflop(self, threads: int) -> float:
        """Return the arithmetic of a step. [10⁹]"""
        return self.results.facts[named(MACHINE, threads)]["step_gflop"]

    def rates(self, threads: int) -> dict[str, float]:
        """Return the machine's rates by the names of `RATES`."""
        return self.results.details(named(MACHINE, threads))

    def kernels(self, name: str, threads: int) -> dict[str, float]:
        """Return the seconds of a step in each of our kernels and each kind of primitive."""
        primitives = self.results.primitives[named(name, threads)]
        ours = {f"{kernel} (ours)": s for kernel, s in primitives.kernel_seconds.items()}
        return {**ours, **primitives.by_kind}

    def outside(self, name: str, threads: int) -> float | None:
        """Return the seconds of a step outside of all kernels; None where these took longer.

        They are timed in steps of their own, which other work may have slowed down.
        """
        seconds = self.results.seconds(named(name, threads))
        outside = seconds - sum(self.kernels(name, threads).values())
        return outside if outside >= 0 else None

    def by_kernel(self, name: str) -> Table:
        """Return milliseconds of a step in each kernel, and how well it scales; then the rest.

        How well: the speed-up over the first number of threads, relative to the number of physical
        cores over the first one's. The costliest kernel with the most threads comes first.
        """
        first, *others = self.threads
        seconds = {n: self.kernels(name, n) for n in self.threads}
        steps = {n: self.results.seconds(named(name, n)) for n in self.threads}

        def row(what: str, times: Mapping[int, float | None]) -> list[object]:
            shown = [None if s is None else 1000 * s for s in times.values()]
            return [what, *shown, *(self.scaling(times[first], times[n], n) for n in others)]

        last = seconds[self.threads[-1]]
        names = sorted(
            dict.fromkeys(kernel for of_step in seconds.values() for kernel in of_step),
            key=lambda kernel: -last.get(kernel, 0.0),
        )
        in_all = {n: sum(of_step.values()) for n, of_step in seconds.items()}
        totals = [
            row("all kernels", in_all),
            row("outside kernels", {n: self.outside(name, n) for n in self.threads}),
            row("step", steps),
        ]
        for rate, what in RATES.items() if others else ():
            times = {n: 1 / r if (r := self.rates(n).get(rate)) else None for n in self.threads}
            if all(times.values()):
                of_rate = row(f"machine: {what}", times)
                totals.append([of_rate[0], *(None for _ in times), *of_rate[1 + len(times) :]])
        columns = [
            text_column("kernel"),
            *(Column(f"ms\n{n}", three_digits, name=f"ms_{n}") for n in self.threads),
            *(Column(f"scaling\n{n}", ".0%", name=f"scaling_{n}") for n in others),
        ]
        rows = [row(kernel, {n: seconds[n].get(kernel) for n in self.threads}) for kernel in names]
        title = f"{name}: a step by kernel and number of threads"
        return Table(title, columns, rows, totals=totals)

    def scaling(self, first: float | None, seconds: float | None, threads: int) -> float | None:
        """Return the speed-up relative to the number of physical cores, against the first time."""
        if not first or not seconds:
            return None
        count = self.cores.count
        return first / seconds / (count(threads) / count(self.threads[0]))


def named(contestant: str, threads: int) -> str:
    """Return the name of a contestant's variant."""
    return f"{contestant}, {counted(threads, 'thread')}"


def variants_by_threads(
    contestants: Sequence[Variant], threads: Sequence[int], cores: Cores
) -> list[Variant]:
    """Return each contestant, and the machine's rates, with each number of threads."""
    machine = Variant(MACHINE, "the machine's rates", MACHINE_RECIPE)
    return [
        replace(variant, name=named(variant.name, number), share=cores.share(number))
        for number in threads
        for variant in (*contestants, machine)
    ]


def measure_by_threads(
    benchmark: Benchmark,
    contestants: Sequence[Variant],
    workload: Workload,
    threads: Sequence[int],
    *,
    rounds: int,
    warm_up: int,
    where: bool,
    console: Console,
) -> ByThreads:
    """Find the physical cores, then measure the contestants with each number of threads.

    Raises:
        InputError: There are fewer CPUs than threads.
        WorkerDiedError: A worker ended by itself.
    """
    with progress(console, "finding physical cores, rounds", total=None) as advance:
        cores = find_cores(threads=max(threads), advance=advance)
    results = measure(
        benchmark,
        variants_by_threads(contestants, threads, cores),
        workload,
        rounds,
        warm_up,
        console=console,
        where=where,
    )
    names = [variant.name for variant in contestants]
    return ByThreads(contestants=names, threads=threads, cores=cores, results=results)


def threads_json(measured: ByThreads, *, benchmark: str) -> dict[str, Any]:
    """Return everything for a file: that of `as_json`, the cores, and the tables."""
    return {
        **as_json(measured.results, [], benchmark=benchmark),
        "cores": measured.cores.as_json(),
        "threads": measured.steps().records(),
        "kernels": {name: measured.by_kernel(name).records() for name in measured.contestants},
    }


def print_by_threads(measured: ByThreads) -> None:
    """Print the cores, the steps, and the kernels of each contestant."""
    console = make_console(pipe_width=PIPE_WIDTH)
    print_line(console, f"{processor_name()}: {measured.cores}")
    console.print(measured.steps().for_console())
    if disturbed := disturbance(measured.results.other_cores):
        console.print(disturbed)
    for name in measured.contestants:
        console.print(measured.by_kernel(name).for_console())
    for name in measured.results.operators:
        console.print(where_table(name, measured.results).for_console())
