"""`python -m launch scale`: measure the throughput of training by ranks and threads.

The results follow as tables and findings for a person, JSON for programs, and a chart.
`profiling.studies.scale_study` runs the jobs.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from common.charts import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    RED,
    Column,
    Table,
    new_figure,
    save_chart,
    table_rows,
    write_in_place_of_chart,
)
from common.cli import add_command, chart_file, numbers, positive
from common.console import make_console, print_line
from common.errors import FINISHED, INTERRUPTED, InputError, format_error
from common.files import require_free
from common.machine import environment
from common.options import included, json_option, option, overrides_argument
from launch.hosts import Where
from launch.limits import read_allowance
from launch.mpirun import choose_mpirun
from launch.placement import count_ranks
from launch.topology import read_topology
from profiling.bench.job import JobFailedError, MeasuredJob
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

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DECIDED_HERE = {
    "launch.threads": "set by --threads",
    "training.batch_size": "set by --batch-size or --global-batch",
}


@dataclass(frozen=True, kw_only=True)
class ScaleOptions:
    """The options of `python -m launch scale`."""

    config: str = option(
        "a YAML file, or a name in configs/, as for train.py", default="demo.yaml", metavar="NAME"
    )
    overrides: list[str] = overrides_argument()
    ranks: tuple[int, ...] = option(
        "numbers of ranks over all hosts", default=(1, 2, 4), parse=numbers, metavar="A,B"
    )
    threads: tuple[int, ...] = option(
        "numbers of compute threads per rank", default=(1, 2, 4), parse=numbers, metavar="A,B"
    )
    batch_size: int | None = option(
        "images per rank and step (default: training.batch_size)",
        default=None,
        parse=positive,
        metavar="N",
        exclusive="images",
    )
    global_batch: int | None = option(
        "images of all ranks per step",
        default=None,
        parse=positive,
        metavar="N",
        exclusive="images",
    )
    """Where it is the same for all combinations, there is no weak scaling."""
    steps: int = option(
        "measured steps of a job; each is followed by one without exchange",
        default=5,
        parse=positive,
        metavar="N",
    )
    warm_up: int = option("warm-up steps of a job", default=3, parse=positive, metavar="N")
    rounds: int = option("jobs of each combination", default=2, parse=positive, metavar="N")
    where: Where = included(Where)
    json: Path | None = json_option("also write all results to this file, and the chart beside it")
    chart: Path | None = option(
        "write the chart (default: beside --json; scaling.png if no file is given)",
        default=None,
        parse=chart_file,
        nargs="?",
        const=Path("scaling.png"),
        metavar="FILE.png",
        writes=True,
    )


def scale_command(options: ScaleOptions) -> int:
    """Run the study, print it, write it; returns the exit code."""
    chart = options.chart
    if chart is None and options.json is not None:
        chart = options.json.with_suffix(".png")
        require_free([options.json, chart], overwrite=False, advice="give --json another file")
    for override in options.overrides:
        field = override.partition("=")[0]
        if field in DECIDED_HERE:
            raise InputError(f"{field}: {DECIDED_HERE[field]}; remove {override}")
    config = load_config(options.config, options.overrides)
    combinations = combine_here(options, config)
    study = Rounds([each for each in combinations if not each.misfit], options.rounds)
    mpirun = choose_mpirun(options.where.mpirun)
    with (
        tempfile.TemporaryDirectory(prefix="scaling-study-") as folder,
        background_load() as others,
    ):
        job = MeasuredJob(
            ranks=1,
            config=options.config,
            overrides=tuple(options.overrides),
            warm_up=options.warm_up,
            steps=options.steps,
            alternate=True,  # so that the cost of the exchange shows within one job
            scenes=Path(folder, "scenes"),  # synthetic data is drawn once for all jobs
        )
        code, ended_by = FINISHED, ""
        try:
            run_rounds(study, job, mpirun=mpirun, console=make_console())
        except JobFailedError as error:
            code, ended_by = error.code, f"{study.running}: {error}"
        except KeyboardInterrupt as error:
            code, ended_by = INTERRUPTED, format_error(error) or ""
    if study.done:
        on_hosts = any(each.hosts for each in study.combinations)
        put_out_study(
            study,
            combinations,
            options,
            config=config,
            ended_by=ended_by,
            # The load of other hosts is unknown.
            other_cores=0.0 if on_hosts else others.cores,
        )
        if chart is not None:
            title = chart_title(study.measured, config=config, global_batch=options.global_batch)
            draw_chart(study.measured, chart, title=title, weak=options.global_batch is None)
            print_line(make_console(), f"chart: {chart}")
    if ended_by:
        progress = f"; incomplete: {study.done} of {len(study.order)} jobs" if study.done else ""
        print(f"{ended_by}{progress}", file=sys.stderr)
    return code


def combine_here(options: ScaleOptions, config: Config) -> list[Combination]:
    """Return all combinations, planned on what this process may use of this host."""
    allowance = read_allowance()
    combinations = combine(
        options.ranks,
        options.threads,
        batch_size=options.batch_size or config.training.batch_size,
        global_batch=options.global_batch,
        place_on_hosts=options.where.ranks_by_host,
        allowed=read_topology().restricted(allowance.cpus),
        quota=allowance.quota,
        request=core_request(config),
    )
    if all(each.misfit for each in combinations):
        reasons = "; ".join(line.removeprefix("– ") for line in misfits(combinations))
        raise InputError(
            f"--ranks, --threads: no combination fits: {reasons}; give smaller numbers"
        )
    return combinations


ABOUT = """\
Measure the throughput of training (images/s) by number of ranks and threads.

Each combination of --ranks and --threads is a separate job, started by mpirun, with ranks pinned
as in train.py. The jobs train MLPerf's model with random weights on the configuration's data, one
after another, in rounds. Every other step exchanges no gradients, so that the cost of the exchange
is measured within one job. Combinations that need more cores than there are appear as –, with the
reason. Run it on an otherwise idle machine.

With --batch-size each rank has a fixed number of images per step (weak scaling). With --global-
batch all ranks together have a fixed number, as in training with one recipe on different numbers
of ranks. More ranks with fewer threads are then often faster."""

EXAMPLES = """\
examples:
  python -m launch scale --ranks 1,2 --threads 1,2                    # synthetic data, minutes
  python -m launch scale --ranks 1,2,4,8 --threads 7,14,28,56 --config coco.yaml \\
      data.root=/data/coco --json scaling.json                        # also writes scaling.png
  python -m launch scale --ranks 1,2 --threads 1,2 --global-batch 2 \\
      data.image_size=800 distributed.compress=bf16                   # the project's targets
  python -m launch scale --ranks 2,4,8 --threads 28 --hosts a,b --config coco.yaml \\
      data.root=/data/coco --chart scaling.png                        # over two hosts"""


def add_scale(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `scale` to the commands of a command line."""
    add_command(
        commands, "scale", about=ABOUT, examples=EXAMPLES, options=ScaleOptions, run=scale_command
    )


NOT_MEASURED = "?"

MEANING = """\
waiting for data: share of the step until the images of a rank were ready
waiting for gradients: share of the step between the last gradient and the average over all ranks
exchange adds: how much longer the step is than the next one without exchange, including the
  slowdown of the computation during the exchange. Values around 0 are noise"""
WEAK = (
    "efficiency: throughput per rank relative to the fewest ranks with the same number of threads"
)

COLOURS = (BLUE, RED, GREEN, ORANGE, PURPLE, "#333333")
LARGEST_SHARE_SHOWN = 0.10
"""The axis of shares reaches this far at least, so that small ones look small."""
ROOM = 1.4  # The axis beyond the highest bar, for the legend
BAR = 0.36  # Width of a bar, of the distance between two combinations


def put_out_study(
    study: Rounds,
    combinations: Sequence[Combination],
    options: ScaleOptions,
    *,
    config: Config,
    ended_by: str,
    other_cores: float,
) -> None:
    """Print the measurements and write the JSON.

    `combinations` are all requested ones; `other_cores` is the number of cores of this host that
    other processes kept busy, if all ranks ran here.
    """
    console = make_console()
    measured, weak = study.measured, options.global_batch is None
    if any(each.hosts for each in combinations):
        print_line(console, "note: all hosts are assumed to have the cores of this one")
    print_study(console, combinations, measured, weak=weak)
    if disturbed := disturbance(other_cores):
        print_line(console, disturbed)
    workload = {
        "config": options.config,
        "overrides": options.overrides,
        "image_size": config.data.image_size,
        "precision": config.engine.precision,
        "exchange": ways(measured),
        "compress": config.distributed.compress,
        "global_batch": options.global_batch,
        "steps": options.steps,
        "warm_up": options.warm_up,
        "rounds": study.rounds,
        "cores_busy_otherwise": other_cores,
        "complete": study.done == len(study.order),
        "ended_by": ended_by or None,
        "combinations": combinations_json(combinations, measured, weak=weak),
    }
    put_out(
        findings(measured, config=config, global_batch=options.global_batch),
        benchmark="scale",
        workload=workload,
        with_targets=is_standard(config),
        json_file=options.json,
    )


def print_study(
    console: Console,
    combinations: Sequence[Combination],
    measured: Sequence[Measured],
    *,
    weak: bool,
) -> None:
    """Print both tables, what their headings mean, what did not fit, and the ranks' notes.

    `weak`: whether each rank had as many images, so that efficiencies mean something.
    """
    base = smallest(measured)
    name = f"{base.combination.name}, {base.images_per_second:.3g} images/s"
    print_line(console, f"throughput relative to {name}")
    # The paper's Table 3: threads down, ranks across, 1.00 for the smallest combination.
    rates = {each.combination: each.images_per_second / base.images_per_second for each in measured}
    counts = dict.fromkeys(each.ranks for each in combinations)
    rows: dict[int, list[object]] = {}
    for each in combinations:
        cell = DOES_NOT_FIT if each.misfit else rates.get(each, NOT_MEASURED)
        rows.setdefault(each.threads, [each.threads]).append(cell)
    columns = [Column("threads/rank"), *(Column(count_ranks(count), ".2f") for count in counts)]
    console.print(Table("", columns, list(rows.values())).for_console())
    console.print(step_table(measured, weak=weak).for_console(vertical="bottom"))
    print_line(console, f"{WEAK}\n{MEANING}" if weak else MEANING)
    # A line for each note that ranks made on their placement, with the combinations.
    shapes: dict[str, dict[str, None]] = {}
    for result in measured:
        for note in (note for job in result.jobs for rank in job for note in rank.notes):
            shapes.setdefault(note, {})[result.combination.shape] = None
    notes = [f"note: {', '.join(names)}: {note}" for note, names in shapes.items()]
    for line in (*misfits(combinations), *notes):
        print_line(console, line)


def step_table(measured: Sequence[Measured], *, weak: bool) -> Table:
    """Return a table with a row for each combination that has run."""
    columns = [
        Column("ranks", name="combination.ranks"),
        Column("threads\nper rank", name="combination.threads"),
        Column("images\nper step", name="combination.images"),
        Column("step", ".3g", name="step_seconds", unit=" s"),
        Column("images/s", ".3g", name="images_per_second"),
        Column("waiting\nfor data", ".1%", name="data_share"),
        Column("waiting for\ngradients", ".1%", name="exposed_share"),
        Column("exchange\nadds", ".1%", name="added_share"),
    ]
    rows: list[tuple[object, ...]] = list(table_rows(columns, measured))
    if weak:
        columns.insert(5, Column("efficiency", ".1%"))
        shares = [efficiency(result, measured) for result in measured]
        rows = [(*row[:5], share, *row[5:]) for row, share in zip(rows, shares, strict=True)]
    return Table("", columns, rows)


def ways(measured: Sequence[Measured]) -> list[str]:
    """Return the gradient exchanges of all combinations of several ranks."""
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
            "jobs": [list(map(asdict, job)) for job in result.jobs],
        }
        for result in measured
    }
    return [
        {
            "ranks": each.ranks,
            "threads": each.threads,
            "batch_size": each.batch_size,
            "images_a_step": each.images,
            "fits": not each.misfit,
            "why_not": each.misfit or None,
            "hosts": dict(each.hosts),
            **numbers.get(each, {}),
        }
        for each in combinations
    ]


def chart_title(measured: Sequence[Measured], *, config: Config, global_batch: int | None) -> str:
    """Return the title of the chart: what was measured, and on which processor."""
    images = f"{measured[0].combination.batch_size} images per rank and step"
    if global_batch:
        images = f"{global_batch} images per step"
    size = config.data.image_size
    dtype = "BF16" if config.distributed.compress == "bf16" else "float32"
    return (
        f"{images} of {size}×{size}, {config.engine.precision}; gradients in {dtype} via "
        f"{' and '.join(ways(measured)) or 'none'}; {environment()['cpu']}"
    )


def draw_chart(measured: Sequence[Measured], file: Path, *, title: str, weak: bool) -> None:
    """Write a PNG: throughput by ranks (left), the share of a step in communication (right).

    `weak`: whether each rank had as many images; else all together had.
    """
    figure = new_figure(width=12, height=4.8)
    throughput, communication = figure.subplots(1, 2)
    figure.suptitle(title)
    draw_throughput(throughput, measured)
    throughput.set_title(f"throughput, fixed number of images {'per rank' if weak else 'in total'}")
    communication.set_title("communication, share of a step")
    if several := [result for result in measured if result.combination.ranks > 1]:
        draw_communication(communication, several)
    else:
        write_in_place_of_chart(communication, "no exchange with one rank")
    save_chart(figure, file)


def draw_throughput(axes: "Axes", measured: Sequence[Measured]) -> None:
    """Draw a line for each number of threads; dashed, its first point if all scaled ideally.

    On both axes twice as much is the same distance everywhere, so that ideal lines are parallel.
    """
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter  # noqa: PLC0415

    for place, threads in enumerate(sorted({result.combination.threads for result in measured})):
        line = [result for result in measured if result.combination.threads == threads]
        line.sort(key=lambda result: result.combination.ranks)
        colour = COLOURS[place % len(COLOURS)]
        ranks = [result.combination.ranks for result in line]
        rates = [result.images_per_second for result in line]
        axes.plot(
            ranks, rates, color=colour, marker="o", label=f"{count_threads(threads)} per rank"
        )
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
    axes.set_xticks(counts, list(map(str, counts)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(base=2, subs=(1.0, 1.5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set(xlabel="ranks", ylabel="images/s")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")


def draw_communication(axes: "Axes", several: Sequence[Measured]) -> None:
    """Draw for each combination of several ranks the time spent waiting, and what exchange adds."""
    from matplotlib.ticker import PercentFormatter  # noqa: PLC0415

    for side, label, colour, shares in (
        (-0.5, "waiting for gradients", BLUE, [each.exposed_share for each in several]),
        (0.5, "added by the exchange", ORANGE, [each.added_share for each in several]),
    ):
        heights = [share or 0.0 for share in shares]
        places = [index + side * BAR for index in range(len(several))]
        bars = axes.bar(places, heights, width=BAR, color=colour, label=label)
        axes.bar_label(bars, [f"{height:.1%}" for height in heights], fontsize=8, padding=2)
    target = LARGEST_EXCHANGE
    axes.axhline(
        target, color="#777777", linestyle="--", linewidth=0.8, label=f"target: below {target:.0%}"
    )
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(several)), [each.combination.shape for each in several])
    axes.set_xlabel("ranks × threads")
    axes.set_xlim(-0.8, max(1, len(several)) - 0.2)
    axes.set_ylim(top=max(LARGEST_SHARE_SHOWN, ROOM * axes.get_ylim()[1]))
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="upper left")
