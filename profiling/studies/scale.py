"""`python -m launch scale`: measure the throughput of training by ranks and threads.

The results follow as tables and findings for a person, JSON for programs, and a chart.
`profiling.studies.scale_study` runs the jobs.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator, PercentFormatter, StrMethodFormatter
from rich.console import Console
from rich.table import Table

from common.charts import as_png, new_figure
from common.cli import add_command, add_json_option, add_overrides, numbers, positive
from common.console import make_console
from common.errors import InputError
from common.files import require_free, write_whole
from common.machine import environment
from launch.hosts import add_where
from launch.limits import read_allowance
from launch.mpirun import choose_mpirun
from launch.placement import count_ranks
from launch.run import chosen_hosts
from launch.topology import read_topology
from profiling.bench.job import MeasuredJob
from profiling.bench.report import put_out
from profiling.bench.results import background_load, disturbance
from profiling.studies.scale_study import (
    DOES_NOT_FIT,
    LARGEST_EXCHANGE,
    Combination,
    Measured,
    Rounds,
    combine,
    count_threads,
    efficiency,
    findings,
    is_standard,
    misfits,
    run_rounds,
    smallest,
)
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.placement import core_request

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
    study = Rounds([one for one in combinations if not one.misfit], rounds)
    template = MeasuredJob(
        ranks=1,
        config=config,
        overrides=tuple(overrides),
        warm_up=warm_up,
        steps=steps,
        alternate=True,  # so that the cost of the exchange shows within one job
        scenes=Path(),
    )
    run(study, template, mpirun=mpirun)
    if study.done:
        pass  # DROPPED

        put_out_study(
            study,
            combinations,
            template,
            config=settings,
            global_batch=global_batch,
            json_file=json_file,
            chart=chart,
        )
    if study.ended_by:
        so_far = f"; incomplete: {study.done} of {len(study.order)} jobs" if study.done else ""
        print(f"{study.ended_by}{so_far}", file=sys.stderr)
    return study.code


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
    """Return all combinations, planned on what this process may use of this host.

    Raises:
        InputError: None of them fits.
    """
    allowance = read_allowance()
    combinations = combine(
        ranks,
        threads,
        batch_size=batch_size or settings.training.batch_size,
        global_batch=global_batch,
        place_on_hosts=lambda count: chosen_hosts(hosts, hostfile, ranks=count),
        allowed=read_topology().restricted(allowance.cpus),
        quota=allowance.quota,
        request=core_request(settings),
    )
    if all(one.misfit for one in combinations):
        reasons = "; ".join(line.removeprefix("– ") for line in misfits(combinations))
        raise InputError(f"--ranks, --threads: no combination fits: {reasons}; give smaller ones")
    return combinations


def run(study: Rounds, template: MeasuredJob, *, mpirun: Path | None) -> None:
    """Measure; synthetic data, if the configuration has it, is drawn once for all jobs.

    Raises:
        InputError: There is no mpirun.
    """
    program = choose_mpirun(mpirun)
    with (
        tempfile.TemporaryDirectory(prefix="scaling-study-") as folder,
        background_load() as others,
    ):
        job = replace(template, scenes=Path(folder, "scenes"))
        run_rounds(study, job, mpirun=program, console=make_console())
    if not any(one.hosts for one in study.combinations):
        study.other_cores = others.cores


ABOUT = """\
The scaling study: how many images a second different numbers of ranks and threads train.

Each combination of --ranks and --threads is a job of its own, started by mpirun, with its ranks
pinned as train.py pins them. They train MLPerf's model with weights from random numbers on the
configuration's data, one job after another, in rounds. Every other step exchanges no gradients,
so that the cost of the exchange shows within one job. Combinations for which there are too few
cores are shown as –, with the reason. Use a machine on which nothing else runs.

With --batch-size each rank has as many images in a step, whatever the number of ranks: weak
scaling. With --global-batch all ranks together have as many, as in training with one recipe on
different numbers of ranks. In practice more ranks of fewer threads are often faster so."""

EXAMPLES = """\
examples:
  python -m launch scale --ranks 1,2 --threads 1,2                    # drawn scenes, minutes
  python -m launch scale --ranks 1,2,4,8 --threads 7,14,28,56 --config coco.yaml \\
      data.root=/data/coco --json scaling.json                        # and scaling.png beside it
  python -m launch scale --ranks 1,2 --threads 1,2 --global-batch 2 \\
      data.image_size=800 distributed.compress=bf16                   # the project's targets
  python -m launch scale --ranks 2,4,8 --threads 28 --hosts a,b --config coco.yaml \\
      data.root=/data/coco --chart scaling.png                        # over two hosts"""


def add_scale(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `scale` to the commands of a command line."""
    parser = add_command(commands, "scale", about=ABOUT, examples=EXAMPLES)
    parser.add_argument(
        "--config",
        default="demo.yaml",
        metavar="NAME",
        help="a YAML file, or a name in configs/, as train.py takes it (default: demo.yaml)",
    )
    add_overrides(parser)
    for name, what in (
        ("--ranks", "numbers of ranks over all hosts"),
        ("--threads", "numbers of compute threads of each rank"),
    ):
        parser.add_argument(
            name, type=numbers, default=(1, 2, 4), metavar="A,B", help=f"{what} (default: 1,2,4)"
        )
    add_workload_options(parser)
    add_where(parser, hosts_help="hosts that share the ranks evenly; all are alike")
    add_json_option(parser, "write everything here too, and the chart beside it")
    parser.add_argument(
        "--chart",
        type=chart_file,
        nargs="?",
        const=Path("scaling.png"),
        metavar="FILE.png",
        help="draw the chart (default: beside --json, or scaling.png where no file is given)",
    )
    parser.set_defaults(run=scale_command)


def add_workload_options(parser: argparse.ArgumentParser) -> None:
    """Add how much each job does."""
    images = parser.add_mutually_exclusive_group()
    images.add_argument(
        "--batch-size",
        type=positive,
        metavar="N",
        help="images of each rank in a step (default: training.batch_size)",
    )
    images.add_argument(
        "--global-batch", type=positive, metavar="N", help="images of all ranks in a step"
    )
    for name, default, what in (
        ("--steps", 5, "steps of a job that count; beside each is one without exchange"),
        ("--warm-up", 3, "steps before them"),
        ("--rounds", 2, "jobs of each combination"),
    ):
        help_text = f"{what} (default: {default})"
        parser.add_argument(name, type=positive, default=default, metavar="N", help=help_text)


def chart_file(text: str) -> Path:
    """Return a path whose name ends in .png."""
    if not text.endswith(".png"):
        raise argparse.ArgumentTypeError(f"expected a name that ends in .png, found {text!r}")
    return Path(text)


NOT_MEASURED = "?"

MEANING = """\
waiting for data: of the step, until a rank had its images
waiting for gradients: of the step, between the last gradient and the average over all ranks
exchange adds: how much longer the step is than its neighbour in which no gradients were exchanged;
  also what the exchange takes from the computing beside it. Around 0: too little to see"""
WEAK = "efficiency: throughput against that of the fewest ranks of as many threads, times as many"

COLOURS = ("#3c8ddc", "#e6194b", "#2f9e44", "#f08c00", "#9c36b5", "#333333")
LARGEST_SHARE_SHOWN = 0.10
"""The axis of shares reaches this far at least, so that small ones look small."""
ROOM = 1.4
"""The axis beyond the highest bar, for the legend."""
BAR = 0.36
"""Width of a bar, of the distance between two combinations."""


def put_out_study(
    study: Rounds,
    combinations: Sequence[Combination],
    job: MeasuredJob,
    *,
    config: Config,
    global_batch: int | None,
    json_file: Path | None,
    chart: Path | None,
) -> None:
    """Print what was measured, of which there is something, and write the files.

    Args:
        study: The jobs that have run.
        combinations: All that were asked for.
        job: What all jobs have in common.
        config: What they ran.
        global_batch: Images of all ranks in a step, where it is the same for all combinations.
        json_file: Where the numbers go.
        chart: Where the chart goes.

    Raises:
        InputError: A file cannot be written.
    """
    console = make_console()
    measured, weak = study.measured, global_batch is None
    if any(one.hosts for one in combinations):
        console.print("note: what fits was planned for hosts like this one", soft_wrap=True)
    print_study(console, combinations, measured, weak=weak)
    disturbed = disturbance(study.other_cores)
    if disturbed:
        console.print(disturbed, soft_wrap=True)
    workload = {
        "config": job.config,
        "overrides": list(job.overrides),
        "image_size": config.data.image_size,
        "precision": config.engine.precision,
        "exchange": ways(measured),
        "compress": config.distributed.compress,
        "global_batch": global_batch,
        "steps": job.steps,
        "warm_up": job.warm_up,
        "rounds": study.rounds,
        "cores_busy_otherwise": study.other_cores,
        "complete": study.done == len(study.order),
        "ended_by": study.ended_by or None,
        "combinations": combinations_json(combinations, measured, weak=weak),
    }
    put_out(
        findings(measured, config=config, global_batch=global_batch),
        benchmark="scale",
        workload=workload,
        with_targets=is_standard(config),
        json_file=json_file,
    )
    if chart is not None:
        title = chart_title(measured, config=config, global_batch=global_batch)
        draw_chart(measured, chart, title=title, weak=weak)
        console.print(f"chart: {chart}", soft_wrap=True)


def print_study(
    console: Console,
    combinations: Sequence[Combination],
    measured: Sequence[Measured],
    *,
    weak: bool,
) -> None:
    """Print both tables, what their headings mean, what did not fit, and the ranks' notes.

    Args:
        console: Where to.
        combinations: All that were asked for.
        measured: Those that have run.
        weak: Whether each rank had as many images, so that efficiencies mean something.
    """
    base = smallest(measured)
    smallest_name = f"{base.combination.name}, {base.images_per_second:.3g} images/s"
    console.print(f"throughput; 1.00: {smallest_name}", soft_wrap=True)
    console.print(throughput_table(combinations, measured))
    console.print(step_table(measured, weak=weak))
    console.print(f"{WEAK}\n{MEANING}" if weak else MEANING, soft_wrap=True)
    for line in (*misfits(combinations), *notes(measured)):
        console.print(line, soft_wrap=True, markup=False)


def throughput_table(combinations: Sequence[Combination], measured: Sequence[Measured]) -> Table:
    """Return the paper's Table 3: threads down, ranks across, 1.00 for the smallest combination."""
    base = smallest(measured).images_per_second
    table = Table()
    table.add_column("threads a rank", justify="right")
    for count in dict.fromkeys(one.ranks for one in combinations):
        table.add_column(count_ranks(count), justify="right")
    rates = {one.combination: f"{one.images_per_second / base:.2f}" for one in measured}
    for threads in dict.fromkeys(one.threads for one in combinations):
        cells = [
            DOES_NOT_FIT if one.misfit else rates.get(one, NOT_MEASURED)
            for one in combinations
            if one.threads == threads
        ]
        table.add_row(str(threads), *cells)
    return table


def step_table(measured: Sequence[Measured], *, weak: bool) -> Table:
    """Return a table with a row for each combination that has run."""
    table = Table()
    headings = ("ranks", "threads\na rank", "images\na step", "step", "images/s", "efficiency",
                "waiting\nfor data", "waiting for\ngradients", "exchange\nadds")  # fmt: skip
    for heading in headings:
        if weak or heading != "efficiency":
            table.add_column(heading, justify="right", vertical="bottom")
    for result in measured:
        of_ideal = [percent(efficiency(result, measured))] if weak else []
        table.add_row(
            str(result.combination.ranks),
            str(result.combination.threads),
            str(result.combination.images),
            f"{result.step_seconds:.3g} s",
            f"{result.images_per_second:.3g}",
            *of_ideal,
            percent(result.data_share),
            percent(result.exposed_share),
            percent(result.added_share),
        )
    return table


def percent(share: float | None) -> str:
    """Return a share with one decimal; empty where there is none."""
    return "" if share is None else f"{share:.1%}"


def notes(measured: Sequence[Measured]) -> list[str]:
    """Return a line for each note that ranks made on their placement, with the combinations."""
    shapes: dict[str, dict[str, None]] = {}
    for result in measured:
        shape = f"{result.combination.ranks} × {result.combination.threads}"
        for note in (note for job in result.jobs for rank in job for note in rank.notes):
            shapes.setdefault(note, {})[shape] = None
    return [f"note: {', '.join(names)}: {note}" for note, names in shapes.items()]


def ways(measured: Sequence[Measured]) -> list[str]:
    """Return how gradients travelled, over all combinations of several ranks."""
    return sorted({job[0].way for result in measured for job in result.jobs if len(job) > 1})


def combinations_json(
    combinations: Sequence[Combination], measured: Sequence[Measured], *, weak: bool
) -> list[dict[str, Any]]:
    """Return for each combination whether it fits, its numbers if it has run, every rank's steps.

    Times are in seconds, shares of a step from 0 to 1, jobs in the order of rounds; `normalized` is
    relative to the smallest combination's throughput.
    """
    base = smallest(measured).images_per_second
    numbers = {
        result.combination: {
            "step_s": result.step_seconds,
            "images_per_s": result.images_per_second,
            "normalized": result.images_per_second / base,
            "weak_scaling_efficiency": efficiency(result, measured) if weak else None,
            "data_share": result.data_share,
            "exchange_exposed_share": result.exposed_share,
            "exchange_added_share": result.added_share,
            "jobs": [[asdict(rank) for rank in job] for job in result.jobs],
        }
        for result in measured
    }
    return [
        {
            "ranks": one.ranks,
            "threads": one.threads,
            "batch_size": one.batch_size,
            "images_a_step": one.images,
            "fits": not one.misfit,
            "why_not": one.misfit or None,
            "hosts": dict(one.hosts),
            **numbers.get(one, {}),
        }
        for one in combinations
    ]


def chart_title(measured: Sequence[Measured], *, config: Config, global_batch: int | None) -> str:
    """Return what was measured, on what."""
    images = (
        f"{global_batch} images a step"
        if global_batch
        else f"{measured[0].combination.batch_size} images a rank and step"
    )
    size = config.data.image_size
    travels = "BF16" if config.distributed.compress == "bf16" else "float32"
    return (
        f"{images} of {size}×{size}, {config.engine.precision}; gradients travel in {travels} by "
        f"{' and '.join(ways(measured)) or 'none'}; {environment()['cpu']}"
    )


def draw_chart(measured: Sequence[Measured], file: Path, *, title: str, weak: bool) -> None:
    """Write a PNG: throughput by ranks (left), the share of a step in communication (right).

    Args:
        measured: The combinations that have run.
        file: Where to.
        title: What was measured, on what.
        weak: Whether each rank had as many images; else all together had.

    Raises:
        InputError: The file cannot be written.
    """
    figure = new_figure(width=12, height=4.8)
    throughput, communication = figure.subplots(1, 2)
    figure.suptitle(title)
    draw_throughput(throughput, measured)
    throughput.set_title(f"throughput, the same number of images {'a rank' if weak else 'in all'}")
    draw_communication(communication, measured)
    write_whole(file, as_png(figure))


def draw_throughput(axes: Axes, measured: Sequence[Measured]) -> None:
    """Draw a line for each number of threads; dashed, its first point if all scaled ideally.

    On both axes twice as much is the same distance everywhere, so that ideal lines are parallel.
    """
    by_threads: dict[int, list[Measured]] = {}
    for result in sorted(
        measured, key=lambda one: (one.combination.threads, one.combination.ranks)
    ):
        by_threads.setdefault(result.combination.threads, []).append(result)
    for place, (threads, line) in enumerate(by_threads.items()):
        colour = COLOURS[place % len(COLOURS)]
        ranks = [result.combination.ranks for result in line]
        rates = [result.images_per_second for result in line]
        axes.plot(ranks, rates, color=colour, marker="o", label=f"{count_threads(threads)} a rank")
        if len(line) > 1:
            ideal = [rates[0] * count / ranks[0] for count in ranks]
            axes.plot(ranks, ideal, color=colour, linestyle="--", linewidth=0.8)
        for x, rate in zip(ranks, rates, strict=True):
            axes.annotate(
                f"{rate:.3g}", (x, rate), xytext=(6, -12), textcoords="offset points", fontsize=8
            )
    axes.plot([], [], color="#777777", linestyle="--", linewidth=0.8, label="ideal")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.margins(x=0.12, y=0.12)
    counts = sorted({result.combination.ranks for result in measured})
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(base=2, subs=(1.0, 1.5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set(xlabel="ranks", ylabel="images/s")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")


def draw_communication(axes: Axes, measured: Sequence[Measured]) -> None:
    """Draw for each combination of several ranks the time spent waiting, and what exchange adds."""
    axes.set_title("communication, share of a step")
    several = [result for result in measured if result.combination.ranks > 1]
    if not several:
        axes.text(0.5, 0.5, "one rank exchanges nothing", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    for place, (label, colour, shares) in enumerate(
        (
            ("ranks wait for gradients", COLOURS[0], [one.exposed_share for one in several]),
            ("the exchange makes it longer by", COLOURS[3], [one.added_share for one in several]),
        )
    ):
        heights = [share or 0.0 for share in shares]
        places = [index + (place - 0.5) * BAR for index in range(len(several))]
        bars = axes.bar(places, heights, width=BAR, color=colour, label=label)
        axes.bar_label(bars, [f"{height:.1%}" for height in heights], fontsize=8, padding=2)
    aim = LARGEST_EXCHANGE
    axes.axhline(aim, color="#777777", linestyle="--", linewidth=0.8, label=f"aim: below {aim:.0%}")
    axes.axhline(0, color="black", linewidth=0.8)
    names = [f"{one.combination.ranks} × {one.combination.threads}" for one in several]
    axes.set_xticks(range(len(several)), names)
    axes.set_xlabel("ranks × threads")
    axes.set_xlim(-0.8, max(1, len(several)) - 0.2)
    axes.set_ylim(top=max(LARGEST_SHARE_SHOWN, ROOM * axes.get_ylim()[1]))
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="upper left")
