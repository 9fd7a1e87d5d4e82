"""`python -m launch tune`: measure or read, forecast, and choose an allocation of hosts."""

import argparse
import math
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from common.cli import (
    add_command,
    add_json_option,
    chart_file,
    number_of_ranks,
    positive,
    positive_number,
)
from common.console import make_console, print_line
from common.errors import FINISHED, OUR_BUG, InputError, WorkerDiedError
from common.files import (
    require_free,
    require_free_json,
    require_writable,
    write_atomically,
    write_json,
)
from common.options import add_overrides
from common.program import FOLDER, command_words, train_words
from profiling.bench.job import JobFailedError
from profiling.studies.tune.cluster import (
    Program,
    forecast_cluster,
    measured_program,
    read_cluster,
    require_names,
    without_each_step,
)
from profiling.studies.tune.forecast import (
    Constraints,
    Forecast,
    Plan,
    choose_allocation,
    gradient_exchange,
)
from profiling.studies.tune.gather import PlannerOptions, gathered
from profiling.studies.tune.measure import OPENIMAGES
from profiling.studies.tune.measurements import (
    Measurements,
    epochs_of_probes,
    probe_settings,
)
from profiling.studies.tune.model import (
    EpochsModel,
    Network,
    WithGroups,
    epochs_of_mlperf,
    fit_network,
)
from profiling.studies.tune.report import (
    cluster_to_dict,
    draw_landscape,
    print_cluster,
    print_plan,
)
from retinanet.mlperf.rules import NEWEST, RULES, expectation, reference_points

SLURM = FOLDER / "launch" / "recipes" / "slurm.sbatch"
LONGEST_JOB_HOURS = 24  # Longer trainings are queued again by the script itself
BITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
BITS_OF_A_BYTE = 8
ONE_HOST = Network(latency=0.0, bandwidth=math.inf, source="none: one host")
"""Stands for the network of a single host, which needs none."""
NUMBER = r"(\d+(?:\.\d+)?)"
NETWORK = re.compile(
    rf"{NUMBER}\s*([KMGT]?)(bit|bps|b|B)(?:/s)?\s*,\s*{NUMBER}\s*(us|µs|ms|s)", re.ASCII
)


def cluster_command(options: PlannerOptions, file: Path) -> int:
    """Forecast a described cluster and print it; return the exit code.

    Raises:
        InputError: The description is wrong, has no measured program, or an option does not fit.
    """
    require_free_json(options.json_file)
    refused = {
        "hosts": options.hosts > 1,
        "groups": options.groups.most > 1,
        "data": options.data not in (None, OPENIMAGES),
    }
    of_a_choice = ("network", "measure_hosts", "hostfile", "probe", "deadline", "budget")
    for field in (*of_a_choice, "chart", "slurm"):
        refused[field] = getattr(options, field) is not None
    for field in (field for field, is_given in refused.items() if is_given):
        raise InputError(
            f"--{field.replace('_', '-')}: the file of --cluster describes all hosts, which train "
            "on openimages; omit it"
        )
    cluster = read_cluster(file)
    console = make_console(pipe_width=140)
    programs = [(program, list[Program]()) for program in cluster.programs]
    if options.plan is not None:
        measured = gathered(replace(options, hosts=1), console=console)
        variants = [measured_program(fewer, options.plan) for fewer in without_each_step(measured)]
        programs.append((measured_program(measured, options.plan), variants))
        require_names([program for program, _ in programs], file)
    if not programs:
        raise InputError(
            f"{file}: programs: has no measured step; add one, or give --plan with measurements of "
            "this host"
        )
    epochs = epochs_of_mlperf(options.rules)
    forecasts = [
        forecast_cluster(program, cluster, epochs, variants=variants)
        for program, variants in programs
    ]
    print_cluster(cluster, forecasts, epochs, console=console)
    if options.json_file is not None:
        write_json(options.json_file, cluster_to_dict(cluster, forecasts, epochs))
    return FINISHED


def tune_command(options: PlannerOptions) -> int:
    """Select an allocation and print it; return the exit code."""
    if options.cluster is not None:
        return cluster_command(options, options.cluster)
    outputs = [options.chart, options.slurm, options.json_file]
    files = [file for file in outputs if file is not None]
    require_free(files, overwrite=False, advice="give another name")
    # Before the measurements, which take many minutes.
    require_writable([*files, *([options.plan] if options.plan else [])])
    console = make_console(pipe_width=140)
    try:
        measured = gathered(options, console=console)
    except JobFailedError as error:
        # The ranks have printed the reason.
        return error.code
    except WorkerDiedError as error:
        print(f"error: {error}", file=sys.stderr)
        return OUR_BUG
    if measured.probes is None:
        epochs = epochs_of_mlperf(options.rules)
    else:
        epochs = epochs_of_probes(measured.probes, config=measured.config)
    network, between = options.network, measured.between_hosts
    if network is None and between is not None:
        source = f"{between.over}; {', '.join(between.hosts)}"
        one_rank = gradient_exchange(measured, network=ONE_HOST, hosts=2, ranks=1)
        network = fit_network(between.exchanges, exchange=one_rank, source=source)
    plan = choose_allocation(
        measured,
        epochs,
        hosts=options.hosts,
        network=network or ONE_HOST,
        constraints=Constraints(deadline_hours=options.deadline, budget_core_hours=options.budget),
        with_groups=options.groups,
    )
    print_plan(
        plan, measured, epochs, given=options.network, with_groups=options.groups, console=console
    )
    write_plan(plan, measured, epochs, options=options, console=console)
    return FINISHED


def write_plan(
    plan: Plan,
    measured: Measurements,
    epochs: EpochsModel,
    *,
    options: PlannerOptions,
    console: Console,
) -> None:
    """Print the command of the best allocation, and write the requested files."""
    winner, batch_size = plan.winner, plan.winner.allocation.global_batch
    if measured.probes is None:
        # The epochs are of reference runs with this learning rate and warm-up.
        expected = expectation(reference_points(options.rules), batch_size)
        of_batch = [
            f"training.learning_rate={expected.learning_rate:.3g}",
            f"training.warmup_epochs={expected.warmup_epochs:g}",
            f"training.warmup_factor={expected.warmup_factor:g}",
        ]
    else:
        of_batch = probe_settings(measured.probes, batch_size=batch_size)
    settings = [*measured.overrides, *of_batch]
    arguments = training_arguments(winner, config=measured.config, settings=settings)
    print_line(console, f"command: {launch_command(winner, arguments)}")
    if options.slurm is not None:
        write_atomically(options.slurm, slurm_script(winner, arguments))
        print_line(console, f"Slurm: sbatch {options.slurm}")
    if options.chart is not None:
        size = measured.image_size
        title = (
            f"RetinaNet to {epochs.target}, {size}×{size}, {measured.precision}; hosts with "
            f"{measured.cores} cores, {measured.environment['cpu']}"
        )
        draw_landscape(plan.forecasts, winner, options.chart, title=title)
        print_line(console, f"chart: {options.chart}")
    if options.json_file is not None:
        content = {
            "epochs": asdict(epochs),
            "model": asdict(plan.fitted.model),
            "largest_error": plan.fitted.largest_error,
            "network": asdict(plan.network) if math.isfinite(plan.network.bandwidth) else None,
            "winner": asdict(winner),
            "obvious": asdict(plan.obvious) if plan.obvious else None,
            "ranking": list(map(asdict, plan.ranking)),
        }
        write_json(options.json_file, content)


ABOUT = """\
Choose the hosts, ranks, threads and images that reach the target fastest, or at the lowest cost.

More ranks train more images per second, but their larger batches need more epochs. This command
measures this host in minutes: steps by ranks, threads and local batch, evaluation, peak rates. It
fits a model to two thirds of the measurements and reports its error on the other third. With the
epochs that each global batch size needs, it then forecasts the time to the target of every
allocation of up to --hosts hosts like this one.

The epochs on OpenImages are those of MLPerf's reference runs. For other data (--data CONFIG.yaml),
train.py is run to --probe-target with each global batch size of --probe and several seeds. This
takes as long as these trainings take here. They are written to a folder beside the plan.

The network is given by --network, or measured with one rank on each host of --measure-hosts or
--hostfile, whose gradients take the same way as those of train.py.

--cluster FILE.yaml forecasts one configuration of hosts that cannot be measured, from their cores,
memory bandwidth, peak rate and network, beside published times.

--plan FILE stores all measurements as soon as they are made. After Ctrl-C, repeat the command to
continue. Stored measurements are not repeated: other options take a second, also on a laptop."""

EXAMPLES = """\
examples:
  python -m launch tune --plan here.json                                    # this host only
  python -m launch tune --plan here.json --hosts 64 --network 25Gbit/s,20us
  python -m launch tune --plan here.json --hosts 64 --network 25Gbit/s,20us --deadline 24
  python -m launch tune --plan here.json --hosts 64 --network 25Gbit/s,20us --budget 20000 \\
      --chart landscape.png --slurm job.sbatch
  python -m launch tune --plan here.json --hosts 64 --measure-hosts node1,node2
  python -m launch tune --cluster launch/recipes/16-hosts.yaml              # described hosts
  python -m launch tune --plan coco.json --data coco.yaml data.root=/data/coco \\
      --probe 16,32,64 --probe-target 0.3                                   # days"""


def add_tune(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `tune` to the commands of a command line."""
    parser = add_command(commands, "tune", about=ABOUT, examples=EXAMPLES)
    parser.add_argument(
        "--hosts",
        type=number_of_ranks,
        default=1,
        metavar="H",
        help="available hosts (default: 1)",
    )
    parser.add_argument(
        "--network",
        type=parse_network,
        metavar="BANDWIDTH,LATENCY",
        help="bandwidth per host and latency, such as 25Gbit/s,20us; overrides a measured network",
    )
    hosts = parser.add_mutually_exclusive_group()
    hosts.add_argument(
        "--measure-hosts",
        metavar="A,B",
        help="measure the network between these hosts, reached by ssh as for launch run --hosts",
    )
    hosts.add_argument(
        "--hostfile",
        type=Path,
        metavar="FILE",
        help="measure the network between the hosts of this file, as for launch run",
    )
    parser.add_argument(
        "--cluster",
        type=Path,
        metavar="FILE.yaml",
        help="forecast the training on described hosts instead, from steps that were measured "
        "elsewhere and, with --plan, on this host",
    )
    add_data_and_limits(parser)
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="FILE",
        help="file of the measurements; read if it exists, else written",
    )
    parser.add_argument(
        "--chart", type=chart_file, metavar="FILE.png", help="draw time and cost by number of hosts"
    )
    parser.add_argument(
        "--slurm", type=Path, metavar="FILE", help="write a Slurm script for the chosen allocation"
    )
    add_json_option(parser, "also write the forecasts of all allocations to this file")
    parser.add_argument(
        "--mpirun", type=Path, metavar="PATH", help="mpirun to use (default: the first one found)"
    )
    parser.set_defaults(run=lambda **options: tune_command(PlannerOptions(**options)))


def add_data_and_limits(parser: argparse.ArgumentParser) -> None:
    """Add what is trained, where its epochs come from, and the limits of the choice."""
    parser.add_argument(
        "--data",
        metavar="NAME",
        help="training data: openimages (default; epochs from MLPerf's reference runs), or a "
        "configuration of train.py such as coco.yaml, with --probe",
    )
    parser.add_argument(
        "--rules",
        choices=RULES,
        default=NEWEST,
        help=f"version of MLPerf's rules for the reference runs (default: {NEWEST})",
    )
    parser.add_argument(
        "--probe",
        type=batch_sizes,
        metavar="B,B",
        help="train to the target with these global batch sizes (at least two)",
    )
    parser.add_argument(
        "--probe-target",
        type=share,
        metavar="mAP",
        help="target of --probe and of the plan (default: training.target_map)",
    )
    parser.add_argument(
        "--probe-seeds",
        type=positive,
        metavar="N",
        help="trainings per batch size, whose spread gives the range (default: 2)",
    )
    add_overrides(parser)
    parser.add_argument(
        "--groups",
        type=groups,
        default=WithGroups(),
        metavar="G,TIMES",
        help="also consider up to G compute groups, which need TIMES the epochs of plain training "
        "at a group's batch size, such as 4,1.2; launch groups --whole measures this factor",
    )
    parser.add_argument(
        "--deadline",
        type=positive_number,
        metavar="HOURS",
        help="choose the cheapest allocation that finishes within HOURS even in the worst case",
    )
    parser.add_argument(
        "--budget",
        type=positive_number,
        metavar="CORE-HOURS",
        help="choose the fastest allocation within CORE-HOURS even in the worst case",
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


def groups(text: str) -> WithGroups:
    """Parse a number of groups and their factor on the epochs, such as `4,1.2`."""
    most, comma, times = text.partition(",")
    if not comma:
        raise argparse.ArgumentTypeError(
            f"expected a number of groups and a factor, such as 4,1.2, found {text!r}"
        )
    return WithGroups(most=positive(most), epochs=positive_number(times))


def training_arguments(winner: Forecast, *, config: str, settings: Sequence[str]) -> list[str]:
    """Return the arguments of `train.py`; `settings` are further `section.field=value`."""
    shape, count = winner.allocation.on_host, winner.allocation.groups
    return [
        "--config",
        config,
        f"training.batch_size={shape.batch_size}",
        f"launch.threads={shape.threads}",
        *([f"distributed.groups={count}"] if count > 1 else []),
        *settings,
    ]


def launch_command(winner: Forecast, arguments: Sequence[str]) -> str:
    """Return a `python -m launch run` command, on hosts that a file names."""
    hosts = ["--hostfile", "hosts"] if winner.allocation.hosts > 1 else []
    ranks = ["--np", str(winner.allocation.ranks), *hosts]
    return shlex.join([*command_words("launch"), "run", *ranks, "--", *train_words(), *arguments])


def slurm_script(winner: Forecast, arguments: Sequence[str]) -> str:
    """Return the project's recipe for Slurm with the numbers of this allocation."""
    allocation = winner.allocation
    # The worst case: Slurm ends a job at its time limit.
    hours = min(LONGEST_JOB_HOURS, max(1, math.ceil(winner.hours.high)))
    lines = {
        r"#SBATCH --nodes=": f"{allocation.hosts}",
        r"#SBATCH --ntasks-per-node=": f"{allocation.on_host.ranks}",
        r"#SBATCH --time=": f"{hours}:00:00",
        r"# (?=OpenImages on )": f"{allocation.name}: chosen by python -m launch tune.",
        r"\[ \$# -gt 0 \] \|\| set -- ": shlex.join(arguments),
    }
    text = SLURM.read_text(encoding="utf-8")
    for start, value in lines.items():
        # In a replacement text of `re`, a backslash begins an escape.
        escaped = value.replace("\\", r"\\")
        text, count = re.subn(f"(?m)^({start}).*$", rf"\g<1>{escaped}", text)
        # Each line is in the recipe once; else the recipe has changed, and this table has not.
        assert count == 1, start
    return text
