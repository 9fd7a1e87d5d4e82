"""`retinanet launch tune`: measure or read, forecast, and choose an allocation of hosts."""

import argparse
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from common.cli import add_command
from common.console import make_console, print_line
from common.errors import FINISHED, InputError
from common.files import require_writable, write_atomically, write_json
from common.program import FOLDER, command_words
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
from profiling.studies.tune.measurements import epochs_of_probes, probe_settings
from profiling.studies.tune.model import Network, epochs_of_mlperf, fit_network
from profiling.studies.tune.report import draw_landscape, print_cluster, print_plan
from retinanet.config_file import load_config
from retinanet.mlperf.rules import broken_rules, expectation, reference_points

SLURM = FOLDER / "launch" / "recipes" / "slurm.sbatch"
LONGEST_JOB_HOURS = 24  # Longer trainings are queued again by the script itself
ONE_HOST = Network(latency=0.0, bandwidth=math.inf, source="none: one host")
"""Stands for the network of a single host, which needs none."""


def cluster_command(options: PlannerOptions, file: Path) -> int:
    """Forecast a described cluster and print it; return the exit code.

    Raises:
        InputError: The description is wrong, has no measured program, or an option does not fit.
    """
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
    if options.json is not None:
        content = [asdict(result) | {"program": result.program.name} for result in forecasts]
        described = {"cluster": asdict(cluster), "epochs": asdict(epochs)}
        write_json(options.json, described | {"forecasts": content})
    return FINISHED


def tune_command(options: PlannerOptions) -> int:
    """Select an allocation and print it; return the exit code."""
    if options.cluster is not None:
        return cluster_command(options, options.cluster)
    # Before the measurements, which take many minutes.
    require_writable([options.plan] if options.plan else [])
    console = make_console(pipe_width=140)
    measured = gathered(options, console=console)
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
    print_plan(plan, given=options.network, with_groups=options.groups, console=console)
    if measured.probes is None:
        # The precision that was measured, which this host need not have.
        settings = [f"engine.precision={measured.precision}", *measured.overrides]
        if broken := broken_rules(vars(load_config(measured.config, settings))):
            print_line(console, f"note: MLPerf's epochs may not hold: {'; '.join(broken)}")
    write_plan(plan, options=options, console=console)
    return FINISHED


def write_plan(plan: Plan, *, options: PlannerOptions, console: Console) -> None:
    """Print the command of the best allocation, and write the requested files."""
    measured, epochs, network = plan.host.measured, plan.epochs, plan.host.network
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
    if options.json is not None:
        content = {
            "epochs": asdict(epochs),
            "model": asdict(plan.host.fitted.model),
            "largest_error": plan.host.fitted.largest_error,
            "network": asdict(network) if math.isfinite(network.bandwidth) else None,
            "winner": asdict(winner),
            "obvious": asdict(plan.obvious) if plan.obvious else None,
            "ranking": list(map(asdict, plan.ranking)),
        }
        write_json(options.json, content)


ABOUT = """\
Choose the hosts, ranks, threads and images that reach the target fastest, or at the lowest cost.

More ranks train more images per second, but their larger batches need more epochs. This command
measures this host in minutes: steps by ranks, threads and local batch, evaluation, peak rates. It
fits a model to two thirds of the measurements and reports its error on the other third. With the
epochs that each global batch size needs, it then forecasts the time to the target of every
allocation of up to --hosts hosts like this one.

The epochs on OpenImages are those of MLPerf's reference runs. For other data (--data CONFIG.yaml),
a training runs to --probe-target with each global batch size of --probe and several seeds. This
takes as long as these trainings take here. They are written to a folder beside the plan.

The network is given by --network, or measured with one rank on each host of --measure-hosts or
--hostfile, whose gradients take the same way as those of a training.

--cluster FILE.yaml forecasts one configuration of hosts that cannot be measured, from their cores,
memory bandwidth, peak rate and network, beside published times.

--plan FILE stores all measurements as soon as they are made. After Ctrl-C, repeat the command to
continue. Stored measurements are not repeated: other options take a second, also on a laptop."""

EXAMPLES = """\
examples:
  retinanet launch tune --plan here.json                                    # this host only
  retinanet launch tune --plan here.json --hosts 64 --network 25Gbit/s,20us
  retinanet launch tune --plan here.json --hosts 64 --network 25Gbit/s,20us --deadline 24
  retinanet launch tune --plan here.json --hosts 64 --network 25Gbit/s,20us --budget 20000 \\
      --chart landscape.png --slurm job.sbatch
  retinanet launch tune --plan here.json --hosts 64 --measure-hosts node1,node2
  retinanet launch tune --cluster launch/recipes/16-hosts.yaml              # described hosts
  retinanet launch tune --plan coco.json --data coco.yaml data.root=/data/coco \\
      --probe 16,32,64 --probe-target 0.3                                   # days"""


def add_tune(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `tune` to the commands of a command line."""
    add_command(
        commands, "tune", about=ABOUT, examples=EXAMPLES, options=PlannerOptions, run=tune_command
    )


def training_arguments(winner: Forecast, *, config: str, settings: Sequence[str]) -> list[str]:
    """Return the arguments of `retinanet train`; `settings` are further `section.field=value`.

    The allocation's own values replace those among them: the last one of a field counts.
    """
    shape, count = winner.allocation.on_host, winner.allocation.groups
    chosen = {"training.batch_size": shape.batch_size, "launch.threads": shape.threads}
    chosen |= {"distributed.groups": count} if count > 1 else {}
    replaced = {*chosen, "distributed.groups", "distributed.batch_split"}
    others = [setting for setting in settings if setting.partition("=")[0] not in replaced]
    return ["--config", config, *(f"{name}={value}" for name, value in chosen.items()), *others]


def launch_command(winner: Forecast, arguments: Sequence[str]) -> str:
    """Return a `retinanet launch run` command, on hosts that a file names."""
    hosts = ["--hostfile", "hosts"] if winner.allocation.hosts > 1 else []
    ranks = ["--np", str(winner.allocation.ranks), *hosts]
    train = [*command_words("train"), *arguments]
    return shlex.join([*command_words("launch"), "run", *ranks, "--", *train])


def slurm_script(winner: Forecast, arguments: Sequence[str]) -> str:
    """Return the project's recipe for Slurm with the numbers of this allocation."""
    allocation = winner.allocation
    # The worst case: Slurm ends a job at its time limit.
    hours = min(LONGEST_JOB_HOURS, max(1, math.ceil(winner.hours.high)))
    lines = {
        r"#SBATCH --nodes=": f"{allocation.hosts}",
        r"#SBATCH --ntasks-per-node=": f"{allocation.on_host.ranks}",
        r"#SBATCH --time=": f"{hours}:00:00",
        r"# (?=OpenImages on )": f"{allocation.name}: chosen by retinanet launch tune.",
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
