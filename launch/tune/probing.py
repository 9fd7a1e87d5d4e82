"""The probe runs that a plan still lacks: which, how long they take, one after another."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from launch.tune.allocation import Allocation
from launch.tune.epochs import EpochsModel, Runs
from launch.tune.fitted import fitted_to, host_model, workload_of
from launch.tune.forecast import forecast
from launch.tune.measurements import Measurements
from launch.tune.network import Network
from launch.tune.probe_run import ProbedTraining, run_probe
from launch.tune.probed import Probed, Probes, RateRule
from launch.tune.question import Question
from launch.tune.report import duration_words
from launch.tune.step_time import Shape
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.errors import InputError

SEEDS = 2
"""Of each batch size: the least that show a spread."""


def wanted_probes(asked: Question, *, name: str, kept: Probes | None) -> Probes:
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


def first_probes(asked: Question, *, name: str) -> Probes:
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


def with_run(runs: tuple[Probed, ...], found: Probed) -> tuple[Probed, ...]:
    """The runs with this one, which takes the place of an earlier state of itself."""
    others = (one for one in runs if (one.batch_size, one.seed) != (found.batch_size, found.seed))
    return (*others, found)


def outcome_words(one: Probed, target: float) -> str:
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
