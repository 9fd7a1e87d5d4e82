"""All that an answer rests on: what a plan's file has, and what must be measured first.

TODO-DOC The probe runs that a plan still lacks: which, how long they take, one after another.
"""

import math
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from common.errors import InputError
from launch.mpirun import choose_mpirun
from profiling.studies.training_runs import ProbedTraining, run_probe
from profiling.studies.tune.forecast import (
    Allocation,
    PlannerOptions,
    fitted_to,
    forecast,
    host_model,
    workload_of,
)
from profiling.studies.tune.host import measure_between, named_hosts, what_to_measure
from profiling.studies.tune.measure import OPENIMAGES, fresh, measure_host, trained_data
from profiling.studies.tune.measurements import (
    Measurements,
    PartialMeasurement,
    ProbeRun,
    Probes,
    RateRule,
    read_measurements,
    require_same,
    write_measurements,
)
from profiling.studies.tune.model import EpochsModel, Network, Runs, Shape
from profiling.studies.tune.report import duration_words
from retinanet.config import Config
from retinanet.config_file import load_config


def gathered(asked: PlannerOptions, *, console: Console) -> Measurements:
    """What is known of host, network and epochs in the end.

    Each part is in the plan's file as soon as it is there.

    Args:
        asked: The command line.
        console: Where progress is shown.

    Raises:
        InputError: An option does not fit the plan, the network is not known, nobody knows the
            epochs, or a file cannot be read or written.
        JobFailedError, WorkerDiedError: What was measured could not go on.
        KeyboardInterrupt: Ctrl-C; what is kept was told.
    """
    plan, kept = asked.plan, None
    if plan is not None and plan.exists():
        kept = read_measurements(plan)
        require_same_question(asked, kept, plan)
    hosts = named_hosts(asked.measure_hosts, asked.hostfile)
    require_network(asked, kept, hosts)
    if kept is not None:  # what the command line leaves out is as it was
        asked = replace(asked, data=kept.data, overrides=list(kept.overrides))
    name = asked.data or OPENIMAGES
    probes = probes_of(asked, kept, name=name)
    if isinstance(kept, Measurements):
        console.print(f"measured before: {plan}, {kept.environment['cpu']}", soft_wrap=True)
        measured = kept
    else:
        measured = measured_here(asked, kept, name=name, console=console)
    measured = with_network(asked, measured, hosts, console=console)
    return measured if probes is None else with_probes(asked, measured, probes, console=console)


def require_same_question(
    asked: PlannerOptions, kept: Measurements | PartialMeasurement, plan: Path
) -> None:
    """Refuse a plan of another training.

    Raises:
        InputError: Names what it was measured with.
    """
    if asked.data not in (None, kept.data):
        raise InputError(
            f"{plan}: was measured with --data {kept.data}; leave --data out, or give another "
            "--plan"
        )
    if asked.overrides and tuple(asked.overrides) != kept.overrides:
        raise InputError(
            f"{plan}: was measured with {shlex.join(kept.overrides) or 'no overrides'}; leave them "
            "out, or give another --plan"
        )


def require_network(
    asked: PlannerOptions, kept: Measurements | PartialMeasurement | None, named: tuple[str, ...]
) -> None:
    """Refuse to plan for several hosts where nothing tells what joins them.

    Raises:
        InputError: Names the options that would tell.
    """
    is_measured = isinstance(kept, Measurements) and kept.between_hosts is not None
    if asked.hosts > 1 and asked.network is None and not named and not is_measured:
        raise InputError(
            f"--hosts {asked.hosts}: the network between them is not known; give --network, such "
            "as 25Gbit/s,20us, or measure it with --measure-hosts A,B"
        )


def probes_of(
    asked: PlannerOptions, kept: Measurements | PartialMeasurement | None, *, name: str
) -> Probes | None:
    """The probe runs that there are to be; None for data whose epochs MLPerf's points tell.

    Raises:
        InputError: Options of probes do not fit the data, or lack.
    """
    options = {
        "--probe": asked.probe,
        "--probe-target": asked.probe_target,
        "--probe-seeds": asked.probe_seeds,
    }
    given = [option for option, value in options.items() if value is not None]
    if name == OPENIMAGES and given:
        raise InputError(
            f"{given[0]}: the epochs of openimages are MLPerf's; leave it out, or give --data with "
            "a configuration, such as openimages.yaml"
        )
    if name == OPENIMAGES:
        return None
    if asked.plan is None:
        raise InputError(
            f"--data {name}: its probe runs take long and are kept beside the plan; give --plan "
            "FILE"
        )
    before = kept.probes if isinstance(kept, Measurements) else None
    folder = probes_folder(asked.plan)
    if before is None and folder.exists():  # they may be of other settings
        raise InputError(
            f"{folder}: has probe runs that {asked.plan} knows nothing of; move them away, or give "
            "another --plan"
        )
    return wanted_probes(asked, name=name, kept=before)


def measured_here(
    asked: PlannerOptions, begun: PartialMeasurement | None, *, name: str, console: Console
) -> Measurements:
    """Measure this host, or what an earlier command has left to measure.

    Raises:
        InputError: What was begun is of another machine, other packages or another training.
        JobFailedError, WorkerDiedError: What was measured could not go on.
        KeyboardInterrupt: Ctrl-C; what is kept was told.
    """
    mpirun = choose_mpirun(asked.mpirun)
    data = trained_data(name, asked.overrides, console=console)
    wanted = what_to_measure(data, overrides=asked.overrides)
    start = fresh(wanted)
    if begun is not None:
        assert asked.plan is not None
        require_same(asked.plan, begun, start)
        start = begun
        console.print(f"going on: {asked.plan}, {progress_words(start, wanted.rounds)}")
    latest = start

    def keep(now: PartialMeasurement) -> None:
        nonlocal latest
        latest = now
        write(asked.plan, now)

    try:
        measured = measure_host(wanted, start, keep=keep, mpirun=mpirun, console=console)
    except KeyboardInterrupt:
        kept = f"{asked.plan} has {progress_words(latest, wanted.rounds)}; the same command goes on"
        none = "nothing is kept without --plan FILE"
        console.print(f"stopped: {kept if asked.plan else none}", soft_wrap=True)
        raise
    write(asked.plan, measured)
    if asked.plan is not None:
        console.print(f"measured: {asked.plan}", soft_wrap=True)
    return measured


def progress_words(begun: PartialMeasurement, rounds: int) -> str:
    """How much of the measurement is there."""
    return f"{begun.done} of {rounds * len(begun.measured)} jobs"


def with_network(
    asked: PlannerOptions, measured: Measurements, hosts: tuple[str, ...], *, console: Console
) -> Measurements:
    """With the network between the hosts that were named, if others were measured before.

    Raises:
        InputError: It could not be measured.
    """
    before = measured.between_hosts
    if not hosts or (before is not None and before.hosts == hosts):
        return measured
    console.print(f"all-reduces between {', '.join(hosts)} …", soft_wrap=True)
    found = measure_between(hosts, mpirun=choose_mpirun(asked.mpirun))
    measured = replace(measured, between_hosts=found)
    write(asked.plan, measured)
    return measured


def with_probes(
    asked: PlannerOptions, measured: Measurements, probes: Probes, *, console: Console
) -> Measurements:
    """With all probe runs that are wanted.

    Raises:
        InputError: Some are missing and `--probe` is not given, or the configuration is not there
            any more.
        JobFailedError: A training did not end well; it has said why.
        KeyboardInterrupt: Ctrl-C; what is kept was told.
    """
    assert asked.plan is not None
    lacking = len(probes.missing)
    if lacking and asked.probe is None:  # a question on a laptop shall not begin to train
        sizes = ",".join(map(str, probes.batch_sizes))
        raise InputError(
            f"{asked.plan}: {lacking} of {len(probes.wanted)} probe runs have not trained until "
            f"mAP {probes.target_map:g}; give --probe {sizes} to have them do so"
        )
    if probes != measured.probes:
        measured = replace(measured, probes=probes)
        write(asked.plan, measured)
    if not lacking:
        return measured
    folder = probes_folder(asked.plan)

    def keep(now: Probes) -> None:
        write(asked.plan, replace(measured, probes=now))

    try:
        found = run_probes(probes, measured, folder=folder, keep=keep, console=console)
    except KeyboardInterrupt:
        console.print(f"stopped: {folder} has the trainings; the same command goes on")
        raise
    console.print(f"probe runs: {folder}; nothing reads it any more but further probes")
    return replace(measured, probes=found)


def write(plan: Path | None, content: Measurements | PartialMeasurement) -> None:
    """Keep it, where there is a file for it.

    Raises:
        InputError: It cannot be written.
    """
    if plan is not None:
        write_measurements(plan, content)


SEEDS = 2
"""Of each batch size: the least that show a spread."""


def wanted_probes(asked: PlannerOptions, *, name: str, kept: Probes | None) -> Probes:
    """What there is to know in the end, with the runs that are there.

    Args:
        asked: The command line; what it leaves open is as it was kept, or as configured.
        name: Of the configuration.
        kept: Of earlier commands.

    Raises:
        InputError: There are no batch sizes, or no target.
    """
    if kept is None:
        return first_probes(asked, name=name)
    return replace(
        kept,
        target_map=asked.probe_target or kept.target_map,
        batch_sizes=asked.probe or kept.batch_sizes,
        seeds=asked.probe_seeds or kept.seeds,
    )


def first_probes(asked: PlannerOptions, *, name: str) -> Probes:
    """Those of a plan that has none.

    Raises:
        InputError: There are no batch sizes, or no target.
    """
    if asked.probe is None:
        raise InputError(
            f"--data {name}: nobody knows its epochs yet; give --probe 8,16,32, the global batch "
            "sizes to train with until --probe-target"
        )
    training = load_config(name, asked.overrides).training
    target = asked.probe_target or training.target_map
    if target is None:
        raise InputError(
            f"--probe-target: is missing, and {name} has no training.target_map; give the mAP to "
            "train to, such as --probe-target 0.3"
        )
    rule = RateRule(
        rate=training.learning_rate,
        batch_size=training.batch_size,
        is_linear=training.optimizer == "sgd",
    )
    return Probes(
        target_map=target,
        batch_sizes=asked.probe,
        seeds=asked.probe_seeds or SEEDS,
        rule=rule,
    )


def probes_folder(plan: Path) -> Path:
    """Where the runs of a plan are: beside its file."""
    return plan.with_name(f"{plan.stem}-probes")


def run_probes(
    probes: Probes,
    measured: Measurements,
    *,
    folder: Path,
    keep: Callable[[Probes], None],
    console: Console,
) -> Probes:
    """Run those that are missing; each is handed on as soon as it is there.

    Args:
        probes: All that are wanted.
        measured: Of the host that they run on; tells how long they take.
        folder: Of the runs.
        keep: Told after each.
        console: Where progress is shown.

    Raises:
        InputError: The configuration is not there any more.
        JobFailedError: A training did not end well; it has said why.
        KeyboardInterrupt: Ctrl-C; the training has written a checkpoint.
    """
    config = load_config(measured.config, measured.overrides)
    training = ProbedTraining(
        config=measured.config,
        overrides=measured.overrides,
        local_batch=config.training.batch_size,
        folder=folder,
    )
    missing, total = probes.missing, len(probes.wanted)
    most = longest_hours(measured, config)

    def say(line: str) -> None:
        console.print(line, soft_wrap=True)

    for number, (size, seed) in enumerate(missing):
        place = total - len(missing) + number + 1
        left = duration_words((len(missing) - number) * most)
        say(
            f"probe {place} of {total}: global batch {size}, seed {seed}; those that are left take "
            f"up to {left} for all their epochs ({config.training.epochs})"
        )
        found = run_probe(training, probes, batch_size=size, seed=seed, say=say)
        probes = replace(probes, runs=with_run(probes.runs, found))
        keep(probes)
        say(f"  {outcome_words(found, probes.target_map)}")
    return probes


def with_run(runs: tuple[ProbeRun, ...], found: ProbeRun) -> tuple[ProbeRun, ...]:
    """The runs with this one, which takes the place of an earlier state of itself."""
    others = (one for one in runs if (one.batch_size, one.seed) != (found.batch_size, found.seed))
    return (*others, found)


def outcome_words(one: ProbeRun, target: float) -> str:
    """How one training ended."""
    epochs, took = one.epochs_until(target), duration_words(one.seconds / 3600)
    if math.isinf(epochs):
        return f"{one.name}: mAP {target:g} not reached, at best {one.best:.3f} ({took})"
    return f"{one.name}: {epochs:.2f} epochs to mAP {target:g} ({took})"


def longest_hours(measured: Measurements, config: Config) -> float:
    """Of a probe run that trains all its epochs, by the measured steps: one rank on this host."""
    batch_size = config.training.batch_size
    threads = max(one.threads for one in measured.shapes if one.ranks == 1)
    host = host_model(
        measured,
        fitted_to(measured.steps, cores=measured.cores),
        Network(latency=0.0, bandwidth=math.inf, source="one host"),
    )
    all_epochs = EpochsModel(
        runs=(Runs(batch_size=batch_size, epochs=(float(config.training.epochs),)),),
        target="the last epoch",
        source="the configuration",
    )
    found = forecast(
        Allocation(hosts=1, on_host=Shape(ranks=1, threads=threads, batch_size=batch_size)),
        host=host,
        epochs=all_epochs,
        workload=replace(workload_of(measured), every=1),
    )
    return found.hours.middle
