"""The options of `launch tune`, and the measurements of a plan that they name.

Measurements are read from the plan's file, or measured or trained first.

Each part is in the plan's file as soon as it is there, so that the same command continues after an
interruption: the measurements of this host, the network between named hosts, and the probe runs,
which are trainings one after another in a folder beside the file.
"""

import argparse
import math
import re
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from common.cli import chart_file, number_of_ranks, positive, positive_number
from common.console import print_line
from common.errors import InputError
from common.files import read_json_lines
from common.options import json_option, option, overrides_argument
from launch.mpirun import choose_mpirun
from profiling.studies.rounds import Shape
from profiling.studies.tune.forecast import Allocation, HostModel, forecast, format_hours
from profiling.studies.tune.measure import (
    OPENIMAGES,
    ROUNDS,
    measure_between,
    measure_host,
    named_hosts,
    trained_data,
    what_to_measure,
)
from profiling.studies.tune.measurements import (
    Evaluated,
    Measurements,
    PartialMeasurement,
    ProbeRun,
    Probes,
    RateRule,
    probe_settings,
    read_measurements,
    require_same,
    write_measurements,
)
from profiling.studies.tune.model import EpochsModel, Network, Runs, WithGroups, fitted_to
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.mlperf.rules import NEWEST, RULES, Rules
from retinanet.training_job import train_until

SEEDS = 2  # Probe runs of each batch size: the least that show a spread

BITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
BITS_OF_A_BYTE = 8
NUMBER = r"(\d+(?:\.\d+)?)"
NETWORK = re.compile(
    rf"{NUMBER}\s*([KMGT]?)(bit|bps|b|B)(?:/s)?\s*,\s*{NUMBER}\s*(us|µs|ms|s)", re.ASCII
)


def parse_network(text: str) -> Network:
    """Parse a network such as `25Gbit/s,20us`: bandwidth per host, and latency of a message."""
    match = NETWORK.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(
            "expected each host's bandwidth and a message's latency, such as 25Gbit/s,20us or "
            f"1.2GB/s,50us; found {text!r}"
        )
    per_second = float(match[1]) * BITS[match[2]]
    # Only a capital B means bytes.
    bandwidth = per_second if match[3] == "B" else per_second / BITS_OF_A_BYTE
    return Network(
        latency=float(match[4]) * SECONDS[match[5]], bandwidth=bandwidth, source=f"given: {text}"
    )


def batch_sizes(text: str) -> tuple[int, ...]:
    """Parse at least two distinct batch sizes; return them in ascending order."""
    sizes = tuple(sorted({positive(size) for size in text.split(",")}))
    if len(sizes) < 2:
        raise argparse.ArgumentTypeError(
            f"expected at least two global batch sizes, such as 8,16,32, found {text!r}"
        )
    return sizes


def share(text: str) -> float:
    """Parse a number above 0 and at most 1."""
    value = positive_number(text)
    if value > 1:
        raise argparse.ArgumentTypeError(
            f"expected an mAP between 0 and 1, such as 0.3, found {text!r}"
        )
    return value


def groups_of(text: str) -> WithGroups:
    """Parse a number of groups and their factor on the epochs, such as `4,1.2`."""
    most, comma, times = text.partition(",")
    if not comma:
        raise argparse.ArgumentTypeError(
            f"expected a number of groups and a factor, such as 4,1.2, found {text!r}"
        )
    return WithGroups(most=positive(most), epochs=positive_number(times))


@dataclass(frozen=True, kw_only=True)
class PlannerOptions:
    """The options of `retinanet launch tune`, by their names."""

    hosts: int = option("available hosts", default=1, parse=number_of_ranks, metavar="H")
    network: Network | None = option(
        "bandwidth per host and latency, such as 25Gbit/s,20us; overrides a measured network",
        default=None,
        parse=parse_network,
        metavar="BANDWIDTH,LATENCY",
    )
    measure_hosts: str | None = option(
        "measure the network between these hosts, reached by ssh as for launch run --hosts",
        default=None,
        metavar="A,B",
        exclusive="hosts",
    )
    hostfile: Path | None = option(
        "measure the network between the hosts of this file, as for launch run",
        default=None,
        metavar="FILE",
        exclusive="hosts",
    )
    cluster: Path | None = option(
        "forecast the training on described hosts instead, from steps that were measured elsewhere "
        "and, with --plan, on this host",
        default=None,
        metavar="FILE.yaml",
    )
    data: str | None = option(
        "training data: openimages (default; epochs from MLPerf's reference runs), or a "
        "configuration such as coco.yaml, with --probe",
        default=None,
        metavar="NAME",
    )
    rules: Rules = option(
        "version of MLPerf's rules for the reference runs", default=NEWEST, choices=RULES
    )
    probe: tuple[int, ...] | None = option(
        "train to the target with these global batch sizes (at least two)",
        default=None,
        parse=batch_sizes,
        metavar="B,B",
    )
    probe_target: float | None = option(
        "target of --probe and of the plan (default: training.target_map)",
        default=None,
        parse=share,
        metavar="mAP",
    )
    probe_seeds: int | None = option(
        "trainings per batch size, whose spread gives the range (default: 2)",
        default=None,
        parse=positive,
        metavar="N",
    )
    overrides: list[str] = overrides_argument()
    groups: WithGroups = option(
        "also consider up to G compute groups, which need TIMES the epochs of plain training at a "
        "group's batch size, such as 4,1.2; launch groups --whole measures this factor (default: "
        "none)",
        default=WithGroups(),
        parse=groups_of,
        metavar="G,TIMES",
    )
    deadline: float | None = option(
        "choose the cheapest allocation that finishes within HOURS even in the worst case",
        default=None,
        parse=positive_number,
        metavar="HOURS",
    )
    budget: float | None = option(
        "choose the fastest allocation within CORE-HOURS even in the worst case",
        default=None,
        parse=positive_number,
        metavar="CORE-HOURS",
    )
    plan: Path | None = option(
        "file of the measurements; read if it exists, else written", default=None, metavar="FILE"
    )
    chart: Path | None = option(
        "draw time and cost by number of hosts",
        default=None,
        parse=chart_file,
        metavar="FILE.png",
        writes=True,
    )
    slurm: Path | None = option(
        "write a Slurm script for the chosen allocation",
        default=None,
        metavar="FILE",
        writes=True,
    )
    json: Path | None = json_option("also write the forecasts of all allocations to this file")
    mpirun: Path | None = option(
        "mpirun to use (default: the first one found)", default=None, metavar="PATH"
    )

    def write(self, content: Measurements | PartialMeasurement) -> None:
        """Write measurements to the plan's file, if there is one."""
        if self.plan is not None:
            write_measurements(self.plan, content)


Stored = Measurements | PartialMeasurement | None
"""The content of the plan's file; None: there is none."""


def gathered(options: PlannerOptions, *, console: Console) -> Measurements:
    """Return the measurements of host, network and epochs that the options need.

    Raises:
        InputError: An option does not fit the plan, the network or the epochs are not known, or a
            file cannot be read or written.
        JobFailedError, WorkerDiedError: A measurement failed.
        KeyboardInterrupt: Ctrl-C, after a line about the stored results.
    """
    plan = options.plan
    stored = read_measurements(plan) if plan is not None and plan.exists() else None
    if stored is not None and options.data not in (None, stored.data):
        raise InputError(
            f"{plan}: was measured with --data {stored.data}; omit --data, or give another --plan"
        )
    if stored is not None and tuple(options.overrides) not in ((), stored.overrides):
        raise InputError(
            f"{plan}: was measured with {shlex.join(stored.overrides) or 'no overrides'}; omit "
            "overrides, or give another --plan"
        )
    hosts = named_hosts(options.measure_hosts, options.hostfile)
    is_measured = isinstance(stored, Measurements) and stored.between_hosts is not None
    # Refused before any measurement, which would take minutes.
    if options.hosts > 1 and options.network is None and not hosts and not is_measured:
        raise InputError(
            f"--hosts {options.hosts}: the network between the hosts is unknown; give --network, "
            "such as 25Gbit/s,20us, or measure it with --measure-hosts A,B"
        )
    if stored is not None:
        # What the command line leaves out is as it was.
        options = replace(options, data=stored.data, overrides=list(stored.overrides))
    name = options.data or OPENIMAGES
    probes = wanted_probes(options, stored, name=name)
    if isinstance(stored, Measurements):
        print_line(console, f"measurements: {plan}, {stored.environment['cpu']}")
        measured = stored
    else:
        measured = measured_here(options, stored, name=name, console=console)
    before = measured.between_hosts
    if hosts and (before is None or before.hosts != hosts):
        print_line(console, f"exchanges of gradients between {', '.join(hosts)} …")
        config = load_config(measured.config, measured.overrides)
        between = measure_between(hosts, config=config, mpirun=choose_mpirun(options.mpirun))
        measured = replace(measured, between_hosts=between)
        options.write(measured)
    return measured if probes is None else with_probes(options, measured, probes, console=console)


def wanted_probes(options: PlannerOptions, stored: Stored, *, name: str) -> Probes | None:
    """Return the required probe runs; None for data with MLPerf's reference points.

    Values that the options do not set are the stored or configured ones.
    """
    if name == OPENIMAGES:
        for field in ("probe", "probe_target", "probe_seeds"):
            if getattr(options, field) is not None:
                raise InputError(
                    f"--{field.replace('_', '-')}: the epochs of openimages are MLPerf's; "
                    "omit it, or give a configuration such as --data openimages.yaml"
                )
        return None
    if options.plan is None:
        raise InputError(
            f"--data {name}: probe runs take long and are stored beside the plan; give --plan FILE"
        )
    before = stored.probes if isinstance(stored, Measurements) else None
    if before is not None:
        return replace(
            before,
            target_map=options.probe_target or before.target_map,
            batch_sizes=options.probe or before.batch_sizes,
            seeds=options.probe_seeds or before.seeds,
        )
    folder = probes_folder(options.plan)
    if folder.exists():
        # The runs in it may be of other settings.
        raise InputError(
            f"{folder}: has probe runs that are not from {options.plan}; move them, or give "
            "another --plan"
        )
    if options.probe is None:
        raise InputError(
            f"--data {name}: the number of epochs is unknown; give global batch sizes to train "
            "with until --probe-target, such as --probe 8,16,32"
        )
    training = load_config(name, options.overrides).training
    target = options.probe_target or training.target_map
    if target is None:
        raise InputError(
            f"--probe-target: is missing, and {name} has no training.target_map; give a target, "
            "such as --probe-target 0.3"
        )
    return Probes(
        target_map=target,
        batch_sizes=options.probe,
        seeds=options.probe_seeds or SEEDS,
        rule=RateRule(
            rate=training.learning_rate,
            batch_size=training.batch_size,
            is_linear=training.optimizer == "sgd",
        ),
    )


def probes_folder(plan: Path) -> Path:
    """Return the folder of a plan's probe runs, beside its file."""
    return plan.with_name(f"{plan.stem}-probes")


def measured_here(
    options: PlannerOptions, begun: PartialMeasurement | None, *, name: str, console: Console
) -> Measurements:
    """Measure this host, or complete an earlier measurement."""
    mpirun = choose_mpirun(options.mpirun)
    data = trained_data(name, options.overrides, console=console)
    latest = what_to_measure(data, overrides=options.overrides)

    def done() -> str:
        return f"{latest.done} of {ROUNDS * len(latest.measured)} jobs"

    if begun is not None:
        assert options.plan is not None
        require_same(options.plan, begun, latest)
        latest = begun
        console.print(f"continuing: {options.plan}, {done()}")

    def keep(now: PartialMeasurement) -> None:
        nonlocal latest
        latest = now
        options.write(now)

    try:
        measured = measure_host(latest, keep=keep, mpirun=mpirun, console=console)
    except KeyboardInterrupt:
        stored = f"{options.plan} has {done()}; repeat the command to continue"
        lost = "nothing is stored without --plan FILE"
        print_line(console, f"stopped: {stored if options.plan else lost}")
        raise
    options.write(measured)
    if options.plan is not None:
        print_line(console, f"measured: {options.plan}")
    return measured


def with_probes(
    options: PlannerOptions, measured: Measurements, probes: Probes, *, console: Console
) -> Measurements:
    """Return the measurements with all required probe runs."""
    assert options.plan is not None
    missing = probes.missing
    if missing and options.probe is None:
        # Trainings start with --probe only: a stored plan is also read on a laptop.
        sizes = ",".join(map(str, probes.batch_sizes))
        raise InputError(
            f"{options.plan}: {len(missing)} of {len(probes.wanted)} probe runs have not trained "
            f"to mAP {probes.target_map:g}; give --probe {sizes} to train them"
        )
    if probes != measured.probes:
        measured = replace(measured, probes=probes)
        options.write(measured)
    if not missing:
        return measured

    show = partial(print_line, console)
    config = load_config(measured.config, measured.overrides)
    folder, total = probes_folder(options.plan), len(probes.wanted)
    most = longest_hours(measured, config)
    try:
        for number, (size, seed) in enumerate(missing):
            remaining = format_hours((len(missing) - number) * most)
            show(
                f"probe {total - len(missing) + number + 1} of {total}: global batch {size}, seed "
                f"{seed}; the remaining runs take up to {remaining} for all "
                f"{config.training.epochs} epochs"
            )
            run = train_probe(
                probes, measured, config, folder=folder, size=size, seed=seed, show=show
            )
            # A run that continues replaces its shorter self.
            others = [other for other in probes.runs if other.name != run.name]
            probes = replace(probes, runs=(*others, run))
            measured = replace(measured, probes=probes)
            options.write(measured)
            took = format_hours(run.seconds / 3600)
            epochs, target = run.epochs_until(probes.target_map), f"mAP {probes.target_map:g}"
            outcome = f"{epochs:.2f} epochs to {target}"
            if math.isinf(epochs):
                outcome = f"{target} not reached, best {run.best:.3f}"
            show(f"  {run.name}: {outcome} ({took})")
    except KeyboardInterrupt:
        console.print(f"stopped: {folder} has the trainings; repeat the command to continue")
        raise
    console.print(f"probe runs: {folder}; only needed for further probes")
    return measured


def train_probe(
    probes: Probes,
    measured: Measurements,
    config: Config,
    *,
    folder: Path,
    size: int,
    seed: int,
    show: Callable[[str], None],
) -> ProbeRun:
    """Train with a global batch size, or resume an earlier run.

    Raises as `train_until`.
    """
    began, name = time.monotonic(), f"batch-{size}-seed-{seed}"
    # A large batch is accumulated from several of the configuration's size or less.
    local_batch = math.gcd(config.training.batch_size, size)
    overrides = (
        *measured.overrides,
        f"run.seed={seed}",
        f"training.batch_size={local_batch}",
        f"training.gradient_accumulation={size // local_batch}",
        *probe_settings(probes, batch_size=size),
        "evaluation.every=1",
        "evaluation.pictures=0",
        "checkpoint.keep=1",
    )

    def show_evaluation(record: Mapping[str, Any]) -> None:
        if record["kind"] == "evaluation":
            show(f"  epoch {record['epoch']:g}: mAP {record['map'] or 0:.3f}")

    options = ("--config", measured.config, "--auto-resume", *overrides)
    train_until(show_evaluation, folder / name, options)
    # A metric that does not exist counts as 0.
    evaluations = tuple(
        Evaluated(epoch=float(record["epoch"]), score=float(record["map"] or 0.0))
        for record in read_json_lines(folder / name / "metrics.jsonl")
        if record["kind"] == "evaluation"
    )
    return ProbeRun(
        batch_size=size,
        seed=seed,
        evaluations=evaluations,
        # A run that has not reached the target has trained all its epochs.
        is_over=all(evaluated.score < probes.target_map for evaluated in evaluations),
        seconds=time.monotonic() - began,
    )


def longest_hours(measured: Measurements, config: Config) -> float:
    """Return the time of a probe run that trains all epochs: one rank on this host."""
    batch_size = config.training.batch_size
    threads = max(shape.threads for shape in measured.shapes if shape.ranks == 1)
    all_epochs = Runs(batch_size=batch_size, epochs=(float(config.training.epochs),))
    result = forecast(
        Allocation(hosts=1, on_host=Shape(ranks=1, threads=threads, batch_size=batch_size)),
        host=HostModel(
            # Probe runs evaluate after every epoch, whatever the configuration has.
            measured=replace(measured, every=1),
            fitted=fitted_to(measured.steps, cores=measured.cores),
            network=Network(latency=0.0, bandwidth=math.inf, source="one host"),
        ),
        epochs=EpochsModel(runs=(all_epochs,), target="the last epoch", source="the configuration"),
    )
    return result.hours.middle
