"""`python -m launch tune`: measure or read, forecast, choose."""

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from launch.start.mpirun import choose_mpirun
from launch.tune.answer import Answer, answer
from launch.tune.choice import Wish, why_it_loses
from launch.tune.epochs import EpochsModel
from launch.tune.measure_host import measure_host
from launch.tune.measurements import Measurements, read_measurements, write_measurements
from launch.tune.network import Network, fit_network
from launch.tune.recipe import run_command, slurm_script, training_words
from launch.tune.report import (
    choice_table,
    epochs_words,
    fit_table,
    fit_words,
    network_table,
    network_words,
    rows_shown,
    turning_words,
)
from launch.tune.this_host import what_to_measure
from launch.tune.trained_data import TrainedData, openimages
from profiling.bench.measured_job import JobFailedError
from profiling.bench.other_load import disturbance
from profiling.bench.worker_process import WorkerDiedError
from retinanet.config_file import load_config
from retinanet.errors import InputError
from retinanet.exit_codes import FINISHED, OUR_BUG
from retinanet.mlperf.rules import Rules
from retinanet.output_files import require_free, write_whole
from retinanet.terminal import make_console

BEST_SHOWN = 5


def tune_command(
    *,
    hosts: int,
    network: Network | None,
    data: str,
    rules: Rules,
    overrides: list[str],
    deadline: float | None,
    budget: float | None,
    plan: Path | None,
    chart: Path | None,
    slurm: Path | None,
    json_file: Path | None,
    mpirun: Path | None,
) -> int:
    """Answer which allocation to take; returns the exit code.

    Raises:
        InputError: The network between hosts is not known, an output exists, the plan is another
            file, or nothing keeps to the wish.
    """
    assert data == "openimages"
    outputs = [file for file in (chart, slurm, json_file) if file is not None]
    require_free(outputs, overwrite=False, advice="give another name")
    if hosts > 1 and network is None:
        raise InputError(
            f"--hosts {hosts}: the network between them is not known; give --network, such as "
            "25Gbit/s,20us"
        )
    console = make_console(pipe_width=140)
    trained = openimages(rules)
    try:
        measured = measured_or_read(
            plan, trained, overrides=overrides, mpirun=mpirun, console=console
        )
    except JobFailedError as error:  # its ranks have said why
        return error.code
    except WorkerDiedError as error:
        print(f"error: {error}", file=sys.stderr)
        return OUR_BUG
    config = load_config(trained.config, measured.overrides)
    found = answer(
        measured,
        trained,
        hosts=hosts,
        network=network or fit_network(measured.all_reduces, source=measured.all_reduces_over),
        wish=Wish(deadline_hours=deadline, budget_core_hours=budget),
        batch_size=config.training.batch_size,
        every=config.evaluation.every,
    )
    say(found, measured, trained.epochs, given=network, console=console)
    winner = words_of_winner(found, measured, trained)
    console.print(f"command: {run_command(found.winner, winner)}", soft_wrap=True)
    if slurm is not None:
        write_whole(slurm, slurm_script(found.winner, winner))
        console.print(f"Slurm: sbatch {slurm}", soft_wrap=True)
    put_out(found, measured, chart=chart, json_file=json_file, console=console)
    return FINISHED


def measured_or_read(
    plan: Path | None,
    data: TrainedData,
    *,
    overrides: Sequence[str],
    mpirun: Path | None,
    console: Console,
) -> Measurements:
    """What the plan's file has, else what measuring gives, which then is in the file.

    Raises:
        InputError: The file is another one, or of another training.
        JobFailedError, WorkerDiedError: What was measured could not go on.
    """
    if plan is not None and plan.exists():
        found = read_measurements(plan)
        if overrides and tuple(overrides) != found.overrides:
            raise InputError(
                f"{plan}: was measured with {shlex.join(found.overrides) or 'no overrides'}; leave "
                "them out, or give another --plan"
            )
        console.print(f"measured before: {plan}, {found.environment['cpu']}", soft_wrap=True)
        return found
    asked = what_to_measure(data, overrides=overrides)
    measured = measure_host(asked, mpirun=choose_mpirun(mpirun), console=console)
    if plan is not None:
        write_measurements(plan, measured)
        console.print(f"measured: {plan}", soft_wrap=True)
    return measured


def say(
    found: Answer,
    measured: Measurements,
    epochs: EpochsModel,
    *,
    given: Network | None,
    console: Console,
) -> None:
    """Print fit, forecasts and choice."""
    console.print(fit_table(found.fitted))
    console.print(fit_words(found.fitted), soft_wrap=True)
    if given is None and measured.all_reduces:
        console.print(network_table(measured.all_reduces, found.network))
    console.print(network_words(found.network), soft_wrap=True)
    disturbed = disturbance(measured.busy_cores)
    if disturbed:
        console.print(disturbed, soft_wrap=True)
    console.print(choice_table(rows_shown(found.ranking, wanted=BEST_SHOWN), target=epochs.target))
    console.print(epochs_words(epochs), soft_wrap=True)
    console.print(f"\ntake {found.winner.allocation.name}", soft_wrap=True)
    if found.obvious is not None and found.obvious is not found.winner:
        one = found.obvious
        reasons = why_it_loses(one, found.winner)
        console.print(f"not {one.allocation.name}: {reasons}", soft_wrap=True)
    for line in turning_words(found.forecasts, found.winner):
        console.print(line, soft_wrap=True)


def words_of_winner(found: Answer, measured: Measurements, data: TrainedData) -> list[str]:
    """What the winner's `train.py` is told."""
    winner = found.winner
    settings = [*measured.overrides, *data.settings(winner.allocation.global_batch)]
    return training_words(winner, config=measured.config, settings=settings)


def put_out(
    found: Answer,
    measured: Measurements,
    *,
    chart: Path | None,
    json_file: Path | None,
    console: Console,
) -> None:
    """The landscape and the numbers, where they were asked for.

    Raises:
        InputError: A file cannot be written.
    """
    if chart is not None:
        from launch.tune.chart import landscape  # noqa: PLC0415 - matplotlib: 1 s

        title = (
            f"RetinaNet until the target, {measured.image_size}×{measured.image_size}, "
            f"{measured.precision}; hosts of {measured.cores} cores, {measured.environment['cpu']}"
        )
        write_whole(chart, landscape(found.forecasts, found.winner, title=title))
        console.print(f"chart: {chart}", soft_wrap=True)
    if json_file is not None:
        write_whole(json_file, json.dumps(answer_json(found), indent=1, ensure_ascii=False))


def answer_json(found: Answer) -> dict[str, object]:
    """Everything, as programs read it."""
    return {
        "model": asdict(found.fitted.model),
        "largest_error": found.fitted.largest_error,
        "network": asdict(found.network),
        "winner": asdict(found.winner),
        "obvious": asdict(found.obvious) if found.obvious else None,
        "ranking": [asdict(one) for one in found.ranking],
    }
