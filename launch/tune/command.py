"""`python -m launch tune`: measure or read, forecast, choose."""

import json
import math
import sys
from dataclasses import asdict

from rich.console import Console

from launch.tune.answer import Answer, answer
from launch.tune.choice import why_it_loses
from launch.tune.convergence import (
    Convergence,
    convergence_of_mlperf,
    convergence_of_probes,
)
from launch.tune.epochs import EpochsModel
from launch.tune.gather import gathered
from launch.tune.measurements import Measurements
from launch.tune.network import Network, fit_network
from launch.tune.question import Question
from launch.tune.recipe import run_command, slurm_script, training_words
from launch.tune.report import (
    choice_table,
    epochs_words,
    fit_table,
    fit_words,
    groups_words,
    network_table,
    network_words,
    rows_shown,
    turning_words,
)
from profiling.bench.measured_job import JobFailedError
from profiling.bench.other_load import disturbance
from profiling.bench.worker_process import WorkerDiedError
from retinanet.exit_codes import FINISHED, OUR_BUG
from retinanet.mlperf.rules import Rules
from retinanet.output_files import require_free, write_whole
from retinanet.terminal import make_console

BEST_SHOWN = 5


def tune_command(asked: Question) -> int:
    """Answer which allocation to take; returns the exit code.

    Raises:
        InputError: The network between hosts is not known, an output exists, the plan is another
            file, a probe run did not reach its target, or nothing keeps to the wish.
    """
    require_free(asked.outputs, overwrite=False, advice="give another name")
    console = make_console(pipe_width=140)
    try:
        measured = gathered(asked, console=console)
    except JobFailedError as error:  # its ranks have said why
        return error.code
    except WorkerDiedError as error:
        print(f"error: {error}", file=sys.stderr)
        return OUR_BUG
    convergence = convergence_of(measured, rules=asked.rules)
    network = asked.network or measured_network(measured)
    found = answer(
        measured,
        convergence.epochs,
        hosts=asked.hosts,
        network=network,
        wish=asked.wish,
        with_groups=asked.groups,
    )
    say(found, measured, convergence.epochs, given=asked.network, console=console)
    if asked.groups.most > 1:
        console.print(groups_words(asked.groups), soft_wrap=True)
    put_out(found, measured, convergence, asked=asked, console=console)
    return FINISHED


def convergence_of(measured: Measurements, *, rules: Rules) -> Convergence:
    """From the probe runs where there are some, else from MLPerf's points.

    Raises:
        InputError: A probe run did not reach the target.
    """
    if measured.probes is None:
        return convergence_of_mlperf(rules)
    return convergence_of_probes(measured.probes, config=measured.config)


def measured_network(measured: Measurements) -> Network:
    """Between the hosts that were named, else between ranks of one host."""
    between = measured.between_hosts
    if between is None and not measured.all_reduces:  # one core, and no need of a network
        return Network(latency=0.0, bandwidth=math.inf, source="none: one core")
    if between is None:
        return fit_network(measured.all_reduces, source=measured.all_reduces_over)
    source = f"{between.over}: {', '.join(between.hosts)}"
    return fit_network(between.all_reduces, source=source)


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
    if given is None:
        between = measured.between_hosts
        times = between.all_reduces if between is not None else measured.all_reduces
        if times:
            console.print(network_table(times, found.network))
    if math.isfinite(found.network.bandwidth):
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


def put_out(
    found: Answer,
    measured: Measurements,
    convergence: Convergence,
    *,
    asked: Question,
    console: Console,
) -> None:
    """The winner's command, and the files that were asked for.

    Raises:
        InputError: A file cannot be written.
    """
    words = words_of_winner(found, measured, convergence)
    console.print(f"command: {run_command(found.winner, words)}", soft_wrap=True)
    if asked.slurm is not None:
        write_whole(asked.slurm, slurm_script(found.winner, words))
        console.print(f"Slurm: sbatch {asked.slurm}", soft_wrap=True)
    if asked.chart is not None:
        from launch.tune.chart import landscape  # noqa: PLC0415 - matplotlib: 1 s

        title = (
            f"RetinaNet until {convergence.epochs.target}, {measured.image_size}×"
            f"{measured.image_size}, {measured.precision}; hosts of {measured.cores} cores, "
            f"{measured.environment['cpu']}"
        )
        write_whole(asked.chart, landscape(found.forecasts, found.winner, title=title))
        console.print(f"chart: {asked.chart}", soft_wrap=True)
    if asked.json_file is not None:
        content = json.dumps(answer_json(found, convergence.epochs), indent=1, ensure_ascii=False)
        write_whole(asked.json_file, content)


def words_of_winner(found: Answer, measured: Measurements, convergence: Convergence) -> list[str]:
    """What the winner's `train.py` is told."""
    winner = found.winner
    settings = [*measured.overrides, *convergence.settings(winner.allocation.global_batch)]
    return training_words(winner, config=measured.config, settings=settings)


def answer_json(found: Answer, epochs: EpochsModel) -> dict[str, object]:
    """Everything, as programs read it."""
    return {
        "epochs": asdict(epochs),
        "model": asdict(found.fitted.model),
        "largest_error": found.fitted.largest_error,
        "network": asdict(found.network),
        "winner": asdict(found.winner),
        "obvious": asdict(found.obvious) if found.obvious else None,
        "ranking": [asdict(one) for one in found.ranking],
    }
