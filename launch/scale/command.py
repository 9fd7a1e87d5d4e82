"""`python -m launch scale`: throughput of training by ranks and threads."""

import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from launch.host.allowance import read_allowance
from launch.host.topology import read_topology
from launch.scale.combination_job import job_of_combination
from launch.scale.combinations import Combination, combine
from launch.scale.output import Asked, put_out_study
from launch.scale.report import misfits
from launch.scale.rounds import Rounds, run_rounds
from launch.start.command import chosen_hosts
from launch.start.mpirun import choose_mpirun
from profiling.bench.other_load import other_load
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.configured_place import core_request
from retinanet.errors import InputError
from retinanet.output_files import require_free
from retinanet.terminal import make_console

DECIDED_HERE = {
    "launch.threads": "--threads decides it",
    "training.batch_size": "give --batch-size or --global-batch instead",
}


def scale_command(
    *,
    config: str,
    overrides: list[str],
    ranks: tuple[int, ...],
    threads: tuple[int, ...],
    batch_size: int | None,
    global_batch: int | None,
    steps: int,
    warm_up: int,
    rounds: int,
    hosts: str | None,
    hostfile: Path | None,
    mpirun: Path | None,
    json_file: Path | None,
    chart: Path | None,
) -> int:
    """Run the study, print it, write it; returns the exit code.

    Raises:
        InputError: Nothing fits, there is no mpirun, or a file cannot be read or written.
    """
    chart = chart or (json_file.with_suffix(".png") if json_file else None)
    outputs = [file for file in (json_file, chart) if file is not None]
    require_free(outputs, overwrite=False, advice="give --json or --chart another file")
    require_undecided(overrides)
    settings = load_config(config, overrides)
    combinations = combine_here(
        settings,
        ranks=ranks,
        threads=threads,
        batch_size=batch_size,
        global_batch=global_batch,
        hosts=hosts,
        hostfile=hostfile,
    )
    asked = Asked(
        config_name=config,
        overrides=overrides,
        config=settings,
        global_batch=global_batch,
        steps=steps,
        warm_up=warm_up,
        rounds=rounds,
    )
    study = Rounds([one for one in combinations if not one.misfit], rounds)
    run(study, asked, mpirun=mpirun)
    return conclude(study, combinations, asked, json_file=json_file, chart=chart)


def require_undecided(overrides: Sequence[str]) -> None:
    """Refuse fields that the study sets itself.

    Raises:
        InputError: Names the first of them.
    """
    for override in overrides:
        field = override.partition("=")[0]
        if field in DECIDED_HERE:
            raise InputError(f"{field}: {DECIDED_HERE[field]}; leave {override} out")


def combine_here(
    settings: Config,
    *,
    ranks: Sequence[int],
    threads: Sequence[int],
    batch_size: int | None,
    global_batch: int | None,
    hosts: str | None,
    hostfile: Path | None,
) -> list[Combination]:
    """All combinations, planned on what this process may use of this host.

    Raises:
        InputError: None of them fits.
    """
    allowance = read_allowance()
    found = combine(
        ranks,
        threads,
        batch_size=batch_size or settings.training.batch_size,
        global_batch=global_batch,
        place_on_hosts=lambda count: chosen_hosts(hosts, hostfile, ranks=count),
        allowed=read_topology().restricted(allowance.cpus),
        quota=allowance.quota,
        request=core_request(settings),
    )
    if all(one.misfit for one in found):
        reasons = "; ".join(line.removeprefix("– ") for line in misfits(found))
        raise InputError(f"--ranks, --threads: no combination fits: {reasons}; give smaller ones")
    return found


def run(study: Rounds, asked: Asked, *, mpirun: Path | None) -> None:
    """Measure, with scenes drawn once for all jobs if there are to be any.

    Raises:
        InputError: There is no mpirun.
    """
    program = choose_mpirun(mpirun)
    with tempfile.TemporaryDirectory(prefix="scaling-study-") as folder, other_load() as others:
        job_of = partial(
            job_of_combination,
            config=asked.config_name,
            overrides=asked.overrides,
            warm_up=asked.warm_up,
            steps=asked.steps,
            scenes=Path(folder, "scenes"),
        )
        run_rounds(study, job_of, mpirun=program, console=make_console())
    if not any(one.hosts for one in study.combinations):
        study.other_cores = others.cores


def conclude(
    study: Rounds,
    combinations: Sequence[Combination],
    asked: Asked,
    *,
    json_file: Path | None,
    chart: Path | None,
) -> int:
    """Put out what there is, and say if it is not all; returns the exit code."""
    if study.done:
        console = make_console()
        if any(one.hosts for one in combinations):
            console.print("note: what fits was planned for hosts like this one", soft_wrap=True)
        put_out_study(study, combinations, asked, console=console, json_file=json_file, chart=chart)
    if study.ended_by:
        so_far = f"; incomplete: {study.done} of {len(study.order)} jobs" if study.done else ""
        print(f"{study.ended_by}{so_far}", file=sys.stderr)
    return study.code
