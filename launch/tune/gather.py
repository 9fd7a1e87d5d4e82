"""All that an answer rests on: what a plan's file has, and what must be measured first."""

import shlex
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from launch.start.mpirun import choose_mpirun
from launch.tune.measure_host import fresh, measure_host
from launch.tune.measurements import Measurements, read_measurements, write_measurements
from launch.tune.named_hosts import measure_between, named_hosts
from launch.tune.probed import Probes
from launch.tune.probing import probes_folder, run_probes, wanted_probes
from launch.tune.question import Question
from launch.tune.this_host import what_to_measure
from launch.tune.trained_data import OPENIMAGES, trained_data
from launch.tune.unfinished import Unfinished, require_same
from retinanet.errors import InputError


def gathered(asked: Question, *, console: Console) -> Measurements:
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


def require_same_question(asked: Question, kept: Measurements | Unfinished, plan: Path) -> None:
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
    asked: Question, kept: Measurements | Unfinished | None, named: tuple[str, ...]
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
    asked: Question, kept: Measurements | Unfinished | None, *, name: str
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
    asked: Question, begun: Unfinished | None, *, name: str, console: Console
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

    def keep(now: Unfinished) -> None:
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


def progress_words(begun: Unfinished, rounds: int) -> str:
    """How much of the measurement is there."""
    return f"{begun.done} of {rounds * len(begun.measured)} jobs"


def with_network(
    asked: Question, measured: Measurements, hosts: tuple[str, ...], *, console: Console
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
    asked: Question, measured: Measurements, probes: Probes, *, console: Console
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


def write(plan: Path | None, content: Measurements | Unfinished) -> None:
    """Keep it, where there is a file for it.

    Raises:
        InputError: It cannot be written.
    """
    if plan is not None:
        write_measurements(plan, content)
