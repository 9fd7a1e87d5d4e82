"""`python -m launch tune`: measure or read, forecast, choose.

TODO-DOC The command line of `python -m launch tune`.

TODO-DOC A network as a user writes it: `25Gbit/s,20us`.

TODO-DOC The winner as commands: one for `launch run`, and a Slurm file.
"""

import argparse
import json
import math
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from common.cli import add_json_option, add_overrides, number_of_ranks, positive
from common.console import make_console
from common.errors import FINISHED, OUR_BUG
from common.files import require_free, write_whole
from common.processes import WorkerDiedError
from profiling.bench.job import JobFailedError
from profiling.bench.results import disturbance
from profiling.studies.tune.forecast import (
    Convergence,
    Forecast,
    Plan,
    PlannerOptions,
    answer,
    convergence_of_mlperf,
    convergence_of_probes,
    why_it_loses,
)
from profiling.studies.tune.gather import gathered
from profiling.studies.tune.measurements import Measurements
from profiling.studies.tune.model import EpochsModel, Network, WithGroups, fit_network
from profiling.studies.tune.report import (
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
from retinanet.mlperf.rules import NEWEST, RULES, Rules

BEST_SHOWN = 5


def tune_command(asked: PlannerOptions) -> int:
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
    found: Plan,
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
    found: Plan,
    measured: Measurements,
    convergence: Convergence,
    *,
    asked: PlannerOptions,
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
        from profiling.studies.tune.report import landscape  # noqa: PLC0415

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


def words_of_winner(found: Plan, measured: Measurements, convergence: Convergence) -> list[str]:
    """What the winner's `train.py` is told."""
    winner = found.winner
    settings = [*measured.overrides, *convergence.settings(winner.allocation.global_batch)]
    return training_words(winner, config=measured.config, settings=settings)


def answer_json(found: Plan, epochs: EpochsModel) -> dict[str, object]:
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


ABOUT = """\
Choose how many hosts, ranks, threads and images reach the target soonest, or cheapest.

More ranks train more images a second, but their larger batches need more epochs. This command
measures this host in minutes: steps by ranks, threads and local batch, evaluation, all-reduces. It
fits a model, predicts a third of the measurements without having seen them, and says how wrong it
was. With the epochs that the target takes at each global batch size it then forecasts the time
until the target of every allocation of up to --hosts hosts like this one.

The epochs on OpenImages are those of MLPerf's reference runs. With other data, --data CONFIG.yaml,
train.py itself is run until --probe-target with each global batch size of --probe, from several
seeds; that takes as long as such trainings take here, in a folder beside the plan's file.

What joins the hosts is told by --network, or measured between hosts that --measure-hosts or
--hostfile names, by one rank on each.

--plan FILE keeps what was measured, while it is measured: after Ctrl-C the same command goes on.
What the file has is not measured again: another question takes a second, on a laptop too."""

EXAMPLES = """\
examples:
  python -m launch tune --plan here.json                                    # this host alone
  python -m launch tune --plan here.json --hosts 64 --network 25Gbit/s,20us
  python -m launch tune --plan here.json --hosts 64 --network 25Gbit/s,20us --deadline 24
  python -m launch tune --plan here.json --hosts 64 --network 25Gbit/s,20us --budget 20000 \\
      --chart landscape.png --slurm job.sbatch
  python -m launch tune --plan here.json --hosts 64 --measure-hosts node1,node2
  python -m launch tune --plan coco.json --data coco.yaml data.root=/data/coco \\
      --probe 16,32,64 --probe-target 0.3                                   # days, see above"""


def add_tune(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `tune` to the commands of a command line."""
    parser = commands.add_parser(
        "tune",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--hosts",
        type=number_of_ranks,
        default=1,
        metavar="H",
        help="hosts that there are (default: 1)",
    )
    add_network(parser)
    add_data(parser)
    add_overrides(parser)
    add_wishes(parser)
    add_outputs(parser)
    parser.set_defaults(run=run)


def run(**chosen: Any) -> int:
    """`tune_command`, loaded where it runs: other commands need not wait for numpy."""
    return tune_command(PlannerOptions(**chosen))


def add_network(parser: argparse.ArgumentParser) -> None:
    """What joins the hosts: told, or measured."""
    parser.add_argument(
        "--network",
        type=network,
        metavar="BANDWIDTH,LATENCY",
        help="of each host's link and of a message, such as 25Gbit/s,20us; counts more than what "
        "was measured",
    )
    hosts = parser.add_mutually_exclusive_group()
    hosts.add_argument(
        "--measure-hosts",
        metavar="A,B",
        help="measure it between these hosts, which ssh reaches as for launch run --hosts",
    )
    hosts.add_argument(
        "--hostfile",
        type=Path,
        metavar="FILE",
        help="the same with the hosts of a file, as for launch run",
    )


def add_data(parser: argparse.ArgumentParser) -> None:
    """What is trained, and how its epochs become known."""
    parser.add_argument(
        "--data",
        metavar="NAME",
        help="what is trained: openimages (default), with the epochs of MLPerf's reference runs, "
        "or a configuration of train.py, such as coco.yaml, with --probe",
    )
    parser.add_argument(
        "--rules",
        choices=RULES,
        default=NEWEST,
        help=f"MLPerf's rule set whose reference runs count (default: {NEWEST})",
    )
    parser.add_argument(
        "--probe",
        type=batch_sizes,
        metavar="B,B",
        help="train with these global batch sizes until the target, at least two",
    )
    parser.add_argument(
        "--probe-target",
        type=share,
        metavar="mAP",
        help="the target of --probe and of the plan (default: training.target_map)",
    )
    parser.add_argument(
        "--probe-seeds",
        type=positive,
        metavar="N",
        help="trainings of each batch size, whose spread becomes the range (default: 2)",
    )


def add_wishes(parser: argparse.ArgumentParser) -> None:
    """What may be chosen, and what the choice has to keep to."""
    parser.add_argument(
        "--groups",
        type=groups,
        default=WithGroups(),
        metavar="G,TIMES",
        help="also up to so many compute groups, which need so many times the epochs of plain "
        "training at a group's batch, such as 4,1.2; launch groups --whole trains with both",
    )
    parser.add_argument(
        "--deadline",
        type=amount,
        metavar="HOURS",
        help="the cheapest allocation that even at its worst is done in so many hours",
    )
    parser.add_argument(
        "--budget",
        type=amount,
        metavar="CORE-HOURS",
        help="the soonest that even at its worst takes no more core-hours",
    )


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Where measurements and answers go."""
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="FILE",
        help="what was measured goes here, and comes from here where it exists",
    )
    parser.add_argument("--chart", type=Path, metavar="FILE.png", help="draw the landscape")
    parser.add_argument("--slurm", type=Path, metavar="FILE", help="write the winner's Slurm file")
    add_json_option(parser, "write every allocation's forecast here too")
    parser.add_argument(
        "--mpirun", type=Path, metavar="PATH", help="this one, and not the first that is found"
    )


def network(text: str) -> Network:
    """See `parse_network`."""
    try:
        return parse_network(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def batch_sizes(text: str) -> tuple[int, ...]:
    """At least two different ones, ascending."""
    found = sorted({positive(word) for word in text.split(",")})
    if len(found) < 2:
        raise argparse.ArgumentTypeError(
            f"expected two global batch sizes or more, such as 8,16,32, found {text!r}"
        )
    return tuple(found)


def share(text: str) -> float:
    """Above 0, and at most 1."""
    found = amount(text)
    if found > 1:
        raise argparse.ArgumentTypeError(f"expected an mAP of 0 to 1, such as 0.3, found {text!r}")
    return found


def groups(text: str) -> WithGroups:
    """`4,1.2`."""
    most, comma, times = text.partition(",")
    if not comma:
        raise argparse.ArgumentTypeError(
            f"expected groups and times, such as 4,1.2, found {text!r}"
        )
    return WithGroups(most=positive(most), epochs=amount(times))


def amount(text: str) -> float:
    """A positive number."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a positive number, found {text!r}")
    return found


BITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
BITS_OF_A_BYTE = 8
NUMBER = r"(\d+(?:\.\d+)?)"
PATTERN = re.compile(
    rf"{NUMBER}\s*([KMGT]?)(bit|bps|b|B)(?:/s)?\s*,\s*{NUMBER}\s*(us|µs|ms|s)",
    re.ASCII,
)


def parse_network(text: str) -> Network:
    """The link of each host, and the latency of a message.

    Raises:
        ValueError: It is written differently; the message says how.
    """
    match = PATTERN.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise ValueError(
            f"expected each host's bandwidth and a message's latency, such as 25Gbit/s,20us or "
            f"1.2GB/s,50us; found {text!r}"
        )
    per_second = float(match[1]) * BITS[match[2]]
    bandwidth = per_second if match[3] == "B" else per_second / BITS_OF_A_BYTE
    return Network(
        latency=float(match[4]) * SECONDS[match[5]], bandwidth=bandwidth, source=f"given: {text}"
    )


SLURM = Path(__file__).parents[3] / "launch" / "recipes" / "slurm.sbatch"
LONGEST_JOB_HOURS = 24
"""Longer trainings are queued again by the script itself."""


def training_words(one: Forecast, *, config: str, settings: Sequence[str]) -> list[str]:
    """What `train.py` is told.

    Args:
        one: The allocation.
        config: The configuration's name.
        settings: Further `section.field=value`, such as the learning rate for its global batch.
    """
    shape, groups = one.allocation.on_host, one.allocation.groups
    return [
        "--config",
        config,
        f"training.batch_size={shape.batch_size}",
        f"launch.threads={shape.threads}",
        *([f"distributed.groups={groups}"] if groups > 1 else []),
        *settings,
    ]


def run_command(one: Forecast, words: Sequence[str]) -> str:
    """For `python -m launch run`, on hosts that a file names."""
    hosts = ["--hostfile", "hosts"] if one.allocation.hosts > 1 else []
    start = ["python", "-m", "launch", "run", "--np", str(one.allocation.ranks), *hosts, "--"]
    return shlex.join([*start, "train.py", *words])


def slurm_script(one: Forecast, words: Sequence[str]) -> str:
    """The project's recipe for Slurm with the numbers of this allocation."""
    hours = min(LONGEST_JOB_HOURS, max(1, math.ceil(one.hours.high)))
    values = {
        "nodes": str(one.allocation.hosts),
        "ntasks-per-node": str(one.allocation.on_host.ranks),
        "time": f"{hours}:00:00",
    }
    text = SLURM.read_text(encoding="utf-8")
    for name, value in values.items():
        text, count = re.subn(rf"(?m)^(#SBATCH --{name}=).*$", rf"\g<1>{value}", text)
        assert count == 1, name
    first = f"# {one.allocation.name}: chosen by python -m launch tune."
    text, count = re.subn(r"(?m)^# OpenImages on .*$", first, text)
    assert count == 1
    text, count = re.subn(
        r"(?m)^(\[ \$# -gt 0 \] \|\| set -- ).*$", lambda found: found[1] + shlex.join(words), text
    )
    assert count == 1
    return text
