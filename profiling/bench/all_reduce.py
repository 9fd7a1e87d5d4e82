"""`python -m profiling bench all-reduce`: gradients between hosts, simulated on this machine.

The hosts are network namespaces with links of a given rate (`profiling.bench.simulated_hosts`), and
ranks on them average gradients in two levels and by gloo over all ranks, in turn. Beside each time
stands its bound: the bytes that a host must send, by the rate. With `--steps` the ranks also train.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from common.charts import Column, Table, text_column
from common.cli import add_json_option, positive
from common.console import make_console, print_line, progress
from common.errors import FINISHED, InputError
from common.files import require_free_json
from common.program import module_command
from launch.mpirun import Family, Mpirun, choose_mpirun
from profiling.bench.exchange_rank import LEVELS
from profiling.bench.job import (
    JobFailedError,
    MeasuredJob,
    RankSteps,
    exposed,
    measure_ranks,
    rank_messages,
    slowest,
)
from profiling.bench.report import put_out
from profiling.bench.results import Benchmarks, Finding, add_benchmark, add_counts
from profiling.bench.simulated_hosts import (
    MOST_HOSTS,
    Link,
    NoSimulatedHostsError,
    SimulatedHosts,
    simulated_hosts,
)

ABOUT = """\
Makes hosts of this machine's cores, connects them by links of each rate, and averages gradients of
the detector's size between their ranks: in two levels as train.py does, and by gloo over all ranks.
With --steps the ranks then train on synthetic images, with the backward pass beside the exchange.
Needs root. On few cores, the time of the processor is measured more than that of the links."""
EXAMPLES = """\
examples:
  python -m profiling bench all-reduce                            # 2 hosts of 2 ranks, minutes
  python -m profiling bench all-reduce --hosts 4 --ranks 1 --rates 1,25 --json exchange.json
  python -m profiling bench all-reduce --ranks 1 --rates 10 --steps 5     # what training waits for
  python -m profiling bench all-reduce --gradients 1000000 --rates 1   # less than a minute"""
DELAY_S = 50e-6
GRADIENTS = 36_000_000
"""About as many as MLPerf's model trains."""
WIRES = {"float32": 4, "bf16": 2}  # Bytes of a gradient on the way
MOST_OF_FLAT = {(2, 2): 0.6, (2, 1): 1.0}
"""Targets: the time of two levels by that of gloo over all ranks, for hosts and ranks of each."""
MOST_OF_BOUND, RATE_OF_BOUND = 1.3, 1.0  # The target holds for this rate. [Gbit/s]
MOST_OF_STEP, RATE_OF_STEP = 0.05, 10.0
"""Target for the share of a step in which ranks wait for gradients, at this rate. [Gbit/s]"""
WARM_UP = 2
TRAINING = ("data.image_size=800", "training.batch_size=2", "distributed.compress=bf16")
"""The configuration of `--steps`, beside MLPerf's model."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The times of an exchange over links of a rate, in each of its rounds."""

    rate: float  # [Gbit/s]
    way: str
    wire: str
    seconds: list[float]
    bound_s: float
    error: float
    are_equal: bool
    """Whether all ranks had the same bits."""

    @property
    def median(self) -> float:
        """The median of the rounds. [s]"""
        return median(self.seconds)


def add_all_reduce_benchmark(kinds: Benchmarks) -> None:
    """Add `all-reduce` to the benchmarks of a command line."""
    about = "gradients between several hosts, simulated on this machine"
    parser = add_benchmark(
        kinds, "all-reduce", all_reduce_command, about=about, text=ABOUT, epilog=EXAMPLES
    )
    add_counts(
        parser,
        ("--hosts", 2, "number of hosts"),
        ("--ranks", 2, "ranks of each host"),
        ("--rounds", 5, "measured exchanges of each kind"),
        ("--gradients", GRADIENTS, "gradients of each rank"),
    )
    parser.add_argument(
        "--rates",
        default="1,10",
        metavar="A,B",
        help="rates of the links; one run for each [Gbit/s] (default: 1,10)",
    )
    parser.add_argument(
        "--mpirun", type=Path, metavar="PATH", help="mpirun to use (default: the first one found)"
    )
    parser.add_argument(
        "--steps",
        type=positive,
        metavar="N",
        help="also train N steps of 2 images of 800x800 on each rank, gradients in BF16, and "
        "print the share of a step that waits for gradients",
    )
    add_json_option(parser)


def all_reduce_command(
    *,
    hosts: int,
    ranks: int,
    rounds: int,
    gradients: int,
    rates: str,
    mpirun: Path | None,
    steps: int | None,
    json_file: Path | None,
) -> int:
    """Run the benchmark; return the exit code."""
    require_free_json(json_file)
    if not 2 <= hosts <= MOST_HOSTS:
        raise InputError(f"--hosts: expected 2 to {MOST_HOSTS}, found {hosts}")
    # All of them before the first is measured, which takes minutes.
    chosen_rates = [rate_of(text) for text in rates.split(",")]
    chosen = choose_mpirun(mpirun)
    results: list[Measured] = []
    trained: dict[float, list[RankSteps]] = {}  # By rate
    for rate in chosen_rates:
        try:
            with hosts_with_links(rate, hosts=hosts) as simulated:
                results += measure(
                    rate, simulated, ranks=ranks, rounds=rounds, gradients=gradients, mpirun=chosen
                )
                if steps:
                    trained[rate] = train(simulated, ranks=ranks, steps=steps, mpirun=chosen)
        except JobFailedError as error:
            return error.code
        except NoSimulatedHostsError as error:
            raise InputError(f"--hosts: {error}") from error
    make_console().print(results_table(results, family=chosen.family).for_console())
    workload = {
        "hosts": hosts,
        "ranks_of_a_host": ranks,
        "gradients": gradients,
        "rounds": rounds,
        "mpirun": chosen.family,
        "load_of_a_minute": os.getloadavg()[0],
        "runs": [vars(result) for result in results],
        "trained": {f"{rate:g}": list(map(asdict, job)) for rate, job in trained.items()},
    }
    findings = list(compare(results, targets=MOST_OF_FLAT.get((hosts, ranks))))
    for rate, job in trained.items():
        findings += waiting(job, rate=rate, has_target=(hosts, ranks, rate) == (2, 1, RATE_OF_STEP))
    standard = gradients == GRADIENTS
    put_out(findings, "all-reduce", workload, with_targets=standard, json_file=json_file)
    return FINISHED


def rate_of(text: str) -> float:
    """Return a rate. [Gbit/s]"""
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0.01 <= rate <= 1000:
        raise InputError(f"--rates: expected Gbit/s such as 1,10, found {text!r}")
    return rate


@contextmanager
def hosts_with_links(rate: float, *, hosts: int) -> Iterator[SimulatedHosts]:
    """Make hosts with links of a rate while the context lasts. [Gbit/s]

    Raises:
        NoSimulatedHostsError: They cannot be made.
    """
    names = [f"host{number}" for number in range(hosts)]
    link = Link(bits_per_second=rate * 1e9, delay_s=DELAY_S)
    with (
        tempfile.TemporaryDirectory(prefix="hosts-") as folder,
        simulated_hosts(names, Path(folder), link=link) as simulated,
    ):
        if not simulated.has_delay:
            note = "note: this kernel cannot delay packets (sch_netem): links have a rate only"
            print_line(make_console(stderr=True), note)
        yield simulated


def measure(
    rate: float,
    simulated: SimulatedHosts,
    *,
    ranks: int,
    rounds: int,
    gradients: int,
    mpirun: Mpirun,
) -> Iterator[Measured]:
    """Measure exchanges of `ranks` of each host over links of a rate.

    Raises:
        JobFailedError: A rank failed; it has printed the reason.
    """
    hosts = len(simulated.names)
    options = ["--gradients", str(gradients), "--rounds", str(rounds), "--backend", "auto"]
    messages: list[dict[str, Any]] = list(
        rank_messages(
            [*module_command("profiling.bench.exchange_rank"), *options],
            ranks=hosts * ranks,
            hosts=[(name, ranks) for name in simulated.names],
            mpirun=mpirun,
            print_line=partial(print_line, make_console(stderr=True)),
            enter=simulated.enter[0],
            variables=simulated.launcher_variables(),
        )
    )
    if not messages:
        raise JobFailedError(1)
    [message] = messages
    for name, seconds in message["seconds"].items():
        kind, wire = name.split(" ")
        sent = 2 * (hosts - 1) / hosts * gradients * WIRES[wire]
        yield Measured(
            rate=rate,
            way=f"two levels ({message['way']})" if kind == LEVELS else "gloo over all ranks",
            wire=wire,
            seconds=seconds,
            bound_s=sent * 8 / (rate * 1e9),
            error=message["errors"][name],
            are_equal=message["are_equal"][name],
        )


def train(simulated: SimulatedHosts, *, ranks: int, steps: int, mpirun: Mpirun) -> list[RankSteps]:
    """Train steps on `ranks` of each host; return those of each rank.

    Raises:
        JobFailedError: A rank failed; it has printed the reason.
    """
    count = len(simulated.names) * ranks
    threads = max(1, len(os.sched_getaffinity(0)) // count)
    placement = ("launch.pin=false", f"launch.threads={threads}")  # ranks may share a core
    console = make_console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="scenes-") as folder:
        job = MeasuredJob(
            ranks=count,
            hosts=[(name, ranks) for name in simulated.names],
            config="demo.yaml",
            overrides=(
                *TRAINING,
                *placement,
                f"data.scenes.train={4 * count}",
                "data.scenes.validation=1",
            ),
            warm_up=WARM_UP,
            steps=steps,
            alternate=False,
            scenes=Path(folder, "scenes"),
        )
        with progress(console, "training, steps", total=job.all_steps) as advance:
            return measure_ranks(
                job,
                mpirun=mpirun,
                advance=lambda step: advance(step, ""),
                print_line=partial(print_line, console),
                enter=simulated.enter[0],
                variables=simulated.launcher_variables(),
            )


def waiting(job: Sequence[RankSteps], *, rate: float, has_target: bool) -> Iterator[Finding]:
    """Yield the time of a step, and the share of it in which ranks only wait for gradients."""
    seconds = slowest(job)
    shares = [part / whole for part, whole in zip(exposed(job), seconds, strict=True)]
    what = f"{rate:g} Gbit/s, bf16: training step of 2 images a rank"
    yield Finding(f"{what} [s]", median(seconds), f"{median(seconds):.2f}")
    shown = f"{median(shares):.2%} ({min(shares):.2%}–{max(shares):.2%})"
    most = MOST_OF_STEP if has_target else None
    yield Finding(f"{what}, share waiting for gradients", median(shares), shown, at_most=most)


def results_table(results: Sequence[Measured], *, family: Family) -> Table:
    """Return a row for each exchange."""
    columns = (
        Column("Gbit/s"),
        text_column("gradients"),
        text_column("wire"),
        Column("median [s]"),
        Column("range [s]"),
        Column("bound [s]"),
        Column("error"),
        text_column("equal bits"),
    )
    rows = [
        (
            f"{result.rate:g}",
            result.way,
            result.wire,
            f"{result.median:.3f}",
            f"{min(result.seconds):.3f}–{max(result.seconds):.3f}",
            f"{result.bound_s:.3f}",
            f"{result.error:.1e}",
            "yes" if result.are_equal else "NO",
        )
        for result in results
    ]
    title = f"exchange of gradients between hosts, ranks started by {family}"
    return Table(title, columns, rows)


def compare(results: Sequence[Measured], *, targets: float | None) -> Iterator[Finding]:
    """Yield the time of two levels by gloo's, round by round, and by its bound."""
    by_kind = {(result.rate, result.wire, result.way.split(" ")[0]): result for result in results}
    for (rate, wire, way), levels in by_kind.items():
        flat = by_kind.get((rate, wire, "gloo"))
        if way != "two" or flat is None:
            continue
        pairs = zip(levels.seconds, flat.seconds, strict=True)
        ratio = median(mine / its for mine, its in pairs)
        what = f"{rate:g} Gbit/s, {wire}: two levels by gloo over all ranks"
        yield Finding(what, ratio, f"{ratio:.2f}", at_most=targets)
        share = levels.median / levels.bound_s
        most = MOST_OF_BOUND if rate == RATE_OF_BOUND else None
        what = f"{rate:g} Gbit/s, {wire}: two levels by their bound"
        yield Finding(what, share, f"{share:.2f}", at_most=most)
