"""`retinanet launch scale`: measure the throughput of training by ranks and threads.

Every shape that fits the hosts is a job of its own (`profiling.studies.rounds`). Tables, JSON and
chart are made from one record for each requested shape.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from common.charts import (
    BLUE,
    ORANGE,
    PALETTE,
    Column,
    Table,
    new_figure,
    save_chart,
    write_in_place_of_chart,
)
from common.cli import add_command, chart_file, numbers, positive
from common.console import make_console, print_line
from common.errors import FINISHED, INTERRUPTED, InputError, format_error
from common.files import require_free
from common.machine import environment
from common.options import included, json_option, option, overrides_argument
from common.wording import counted
from data.annotations import shown_size
from launch.hosts import Where
from launch.limits import read_allowance
from launch.mpirun import Hosts, choose_mpirun
from launch.placement import Misfit, fit_ranks
from launch.topology import Topology, list_sockets_of_ranks, read_topology
from profiling.bench.job import JobFailedError, MeasuredJob
from profiling.bench.report import put_out
from profiling.bench.results import Finding, background_load
from profiling.bench.variant import Ratio
from profiling.studies.rounds import Measured, Rounds, Shape, run_rounds
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
    """The options of `retinanet launch scale`."""

    config: str = option(
        "a YAML file, or a name in configs/, as for train", default="demo.yaml", metavar="NAME"
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
    allowance = read_allowance()
    allowed = read_topology().restricted(allowance.cpus)
    misfits, hosts = combine(options, config, allowed=allowed, quota=allowance.quota)
    if all(misfits.values()):
        reasons = "; ".join(line.removeprefix("– ") for line in misfit_lines(misfits))
        raise InputError(
            f"--ranks, --threads: no combination fits: {reasons}; give smaller numbers"
        )
    fitting = [shape for shape, misfit in misfits.items() if not misfit]
    study = Rounds(fitting, options.rounds, title="scaling study, steps", hosts=hosts)
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
        # The load of other hosts is unknown.
        load = 0.0 if any(map(hosts.get, hosts)) else others.cores
        put_out_study(
            study, misfits, replace(options, chart=chart), config, ended_by=ended_by, load=load
        )
    if ended_by:
        progress = f"; incomplete: {study.done} of {len(study.order)} jobs" if study.done else ""
        print(f"{ended_by}{progress}", file=sys.stderr)
    return code


def combine(
    options: ScaleOptions, config: Config, *, allowed: Topology, quota: float | None
) -> tuple[dict[Shape, str], dict[int, Hosts]]:
    """Return every requested shape with why it does not fit, and the hosts by number of ranks.

    The reason is empty if it fits. `allowed` are the CPUs of each host that ranks may use, `quota`
    CPUs' worth of time for each host.
    """
    misfits: dict[Shape, str] = {}
    hosts: dict[int, Hosts] = {}
    sockets, whole = list_sockets_of_ranks(allowed), options.global_batch
    for ranks in options.ranks:
        hosts[ranks], no_place = (), ""
        try:
            hosts[ranks] = options.where.ranks_by_host(ranks)
        except InputError as error:
            no_place = str(error)
        batch_size = options.batch_size or config.training.batch_size
        if whole is not None:
            batch_size = whole // ranks
            if whole % ranks:
                no_place = f"{whole} images do not divide evenly among {counted(ranks, 'rank')}"
        # Hosts are alike, so each number of ranks on a host is checked once.
        counts = dict.fromkeys([on_host for _, on_host in hosts[ranks]] or [ranks])
        for threads in options.threads:
            request = replace(core_request(config), threads=threads)
            fits = (fit_ranks(sockets, ranks=n, request=request, quota=quota) for n in counts)
            why = next((fit.why for fit in fits if isinstance(fit, Misfit)), "")
            shape = Shape(ranks=ranks, threads=threads, batch_size=batch_size)
            misfits[shape] = no_place or why
    return misfits, hosts


def by_text(texts: Iterable[tuple[str, Shape]]) -> dict[str, str]:
    """Return for each text the shapes that have it, such as `1 × 1, 2 × 1`."""
    shapes: dict[str, dict[str, None]] = {}
    for text, shape in texts:
        shapes.setdefault(text, {})[shape.short_name] = None
    return {text: ", ".join(names) for text, names in shapes.items()}


def misfit_lines(misfits: Mapping[Shape, str]) -> list[str]:
    """Return a line for each reason why shapes do not fit."""
    reasons = by_text((why, shape) for shape, why in misfits.items() if why)
    return [f"{DOES_NOT_FIT} {names}: {why}" for why, names in reasons.items()]


ABOUT = """\
Measure the throughput of training (images/s) by number of ranks and threads.

Each combination of --ranks and --threads is a separate job, started by mpirun, with ranks pinned
as in a training. The jobs train MLPerf's model with random weights on the configuration's data, one
after another, in rounds. Every other step exchanges no gradients, so that the cost of the exchange
is measured within one job. Combinations that need more cores than there are appear as –, with the
reason. Run it on an otherwise idle machine.

With --batch-size each rank has a fixed number of images per step (weak scaling). With --global-
batch all ranks together have a fixed number, as in training with one recipe on different numbers
of ranks. More ranks with fewer threads are then often faster."""

EXAMPLES = """\
examples:
  retinanet launch scale --ranks 1,2 --threads 1,2                    # synthetic data, minutes
  retinanet launch scale --ranks 1,2,4,8 --threads 7,14,28,56 --config coco.yaml \\
      data.root=/data/coco --json scaling.json                        # also writes scaling.png
  retinanet launch scale --ranks 1,2 --threads 1,2 --global-batch 2 \\
      data.image_size=800 distributed.compress=bf16                   # the project's targets
  retinanet launch scale --ranks 2,4,8 --threads 28 --hosts a,b --config coco.yaml \\
      data.root=/data/coco --chart scaling.png                        # over two hosts"""


def add_scale(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `scale` to the commands of a command line."""
    add_command(
        commands, "scale", about=ABOUT, examples=EXAMPLES, options=ScaleOptions, run=scale_command
    )


DOES_NOT_FIT, NOT_MEASURED = "–", "?"
LARGEST_EXCHANGE = 0.05
"""Target for the share of a step that communication takes, with gradients in BF16."""
STANDARD_SIZE, STANDARD_BATCH = 800, 2

MEANING = """\
waiting for data: share of the step until the images of a rank were ready
waiting for gradients: share of the step between the last gradient and the average over all ranks
exchange adds: how much longer the step is than the next one without exchange, including the
  slowdown of the computation during the exchange. Values around 0 are noise"""
WEAK = (
    "efficiency: throughput per rank relative to the fewest ranks with the same number of threads"
)

LARGEST_SHARE_SHOWN = 0.10
"""The axis of shares reaches this far at least, so that small ones look small."""
ROOM = 1.4  # The axis beyond the highest bar, for the legend
BAR = 0.36  # Width of a bar, of the distance between two combinations


def put_out_study(
    study: Rounds,
    misfits: Mapping[Shape, str],
    options: ScaleOptions,
    config: Config,
    *,
    ended_by: str,
    load: float,
) -> None:
    """Print the measurements, write the JSON, draw the chart.

    `misfits` has all requested shapes; `load` is the number of cores of this host that other
    processes kept busy, if all ranks ran here.
    """
    console = make_console()
    measured, weak = study.measured, options.global_batch is None
    records = shape_records(misfits, study.hosts, measured, weak=weak)
    if any(record["hosts"] for record in records):
        print_line(console, "note: all hosts are assumed to have the cores of this one")
    print_study(console, records, misfits, measured, weak=weak)
    ways = sorted({job[0].way for each in measured for job in each.jobs if len(job) > 1})
    workload = {
        "config": options.config,
        "overrides": options.overrides,
        "image_size": config.data.image_size,
        "precision": config.engine.precision,
        "exchange": ways,
        "compress": config.distributed.compress,
        "global_batch": options.global_batch,
        "steps": options.steps,
        "warm_up": options.warm_up,
        "rounds": study.rounds,
        "cores_busy_otherwise": load,
        "complete": study.done == len(study.order),
        "ended_by": ended_by or None,
        "combinations": records,
    }
    put_out(
        findings(measured, config=config, global_batch=options.global_batch),
        benchmark="scale",
        workload=workload,
        with_targets=is_standard(config),
        json_file=options.json,
    )
    if options.chart is not None:
        images = f"{measured[0].shape.batch_size} images per rank and step"
        if options.global_batch:
            images = f"{options.global_batch} images per step"
        size, dtype = shown_size(config.data.image_size), "float32"
        if config.distributed.compress == "bf16":
            dtype = "BF16"
        title = (
            f"{images} of {size}, {config.engine.precision}; gradients in {dtype} via "
            f"{' and '.join(ways) or 'none'}; {environment()['cpu']}"
        )
        draw_chart(measured, options.chart, title=title, weak=weak)
        print_line(console, f"chart: {options.chart}")


def shape_records(
    misfits: Mapping[Shape, str],
    hosts: Mapping[int, Hosts],
    measured: Sequence[Measured],
    *,
    weak: bool,
) -> list[dict[str, Any]]:
    """Return for each shape whether it fits, its numbers if it has run, every rank's steps.

    Times are in seconds, shares of a step from 0 to 1, jobs in the order of rounds; `normalized` is
    relative to the smallest shape's throughput. `weak`: whether each rank had as many images, so
    that efficiencies mean something.
    """
    base = smallest(measured).images_per_second
    numbers = {
        result.shape: {
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
            "ranks": shape.ranks,
            "threads": shape.threads,
            "batch_size": shape.batch_size,
            "images_a_step": shape.images,
            "fits": not misfit,
            "why_not": misfit or None,
            "hosts": dict(hosts.get(shape.ranks, ())),
            **numbers.get(shape, {}),
        }
        for shape, misfit in misfits.items()
    ]


STEP_COLUMNS = (
    Column("ranks"),
    Column("threads\nper rank", name="threads"),
    Column("images\nper step", name="images_a_step"),
    Column("step", ".3g", name="step_s", unit=" s"),
    Column("images/s", ".3g", name="images_per_s"),
    Column("efficiency", ".1%", name="weak_scaling_efficiency"),
    Column("waiting\nfor data", ".1%", name="data_share"),
    Column("waiting for\ngradients", ".1%", name="exchange_exposed_share"),
    Column("exchange\nadds", ".1%", name="exchange_added_share"),
)
"""Of the table of steps; names are those of `shape_records`."""


def print_study(
    console: Console,
    records: Sequence[Mapping[str, Any]],
    misfits: Mapping[Shape, str],
    measured: Sequence[Measured],
    *,
    weak: bool,
) -> None:
    """Print both tables, what their headings mean, what did not fit, and the ranks' notes."""
    base = smallest(measured)
    name = f"{base.shape.name}, {base.images_per_second:.3g} images/s"
    print_line(console, f"throughput relative to {name}")
    # The paper's Table 3: threads down, ranks across, 1.00 for the smallest shape.
    rows: dict[int, list[object]] = {}
    for each in records:
        cell = each.get("normalized", NOT_MEASURED) if each["fits"] else DOES_NOT_FIT
        rows.setdefault(each["threads"], [each["threads"]]).append(cell)
    counts = dict.fromkeys(each["ranks"] for each in records)
    columns = [Column("threads/rank"), *(Column(counted(count, "rank"), ".2f") for count in counts)]
    console.print(Table("", columns, list(rows.values())).for_console())
    columns = [each for each in STEP_COLUMNS if weak or each.field != "weak_scaling_efficiency"]
    steps = [[each[column.field] for column in columns] for each in records if "jobs" in each]
    console.print(Table("", columns, steps).for_console(vertical="bottom"))
    print_line(console, f"{WEAK}\n{MEANING}" if weak else MEANING)
    notes = by_text(
        (note, each.shape)
        for each in measured
        for job in each.jobs
        for rank in job
        for note in rank.notes
    )
    lines = [f"note: {names}: {note}" for note, names in notes.items()]
    for line in (*misfit_lines(misfits), *lines):
        print_line(console, line)


def smallest(measured: Sequence[Measured]) -> Measured:
    """Return that with the fewest ranks, then the fewest threads: 1.00 in the table."""
    return min(measured, key=lambda each: each.shape)


def efficiency(result: Measured, measured: Sequence[Measured]) -> float | None:
    """Return the weak-scaling efficiency; 1 is ideal.

    The reference is the throughput of the fewest ranks with the same number of threads, scaled to
    this number of ranks. None if no such shape with fewer ranks was measured.
    """
    base = smallest([each for each in measured if each.shape.threads == result.shape.threads])
    times = result.shape.ranks / base.shape.ranks
    return result.images_per_second / (times * base.images_per_second) if times > 1 else None


def times_the_throughput(result: Measured, other: Measured) -> Ratio:
    """Return the ratio of the median steps, with the lowest and the highest ratio of a round."""
    rounds = [
        replace(result, jobs=(job,)).images_per_second
        / replace(other, jobs=(other_job,)).images_per_second
        # After an interruption, one of them may lack a round.
        for job, other_job in zip(result.jobs, other.jobs, strict=False)
    ]
    ratio = result.images_per_second / other.images_per_second
    return Ratio(ratio, min(rounds), max(rounds))


def is_standard(config: Config) -> bool:
    """Return whether the targets apply to this workload."""
    return config.data.image_size == STANDARD_SIZE and config.engine.precision == "bf16"


def findings(
    measured: Sequence[Measured], *, config: Config, global_batch: int | None
) -> list[Finding]:
    """Compare numbers of ranks on equal cores, and find the largest communication shares.

    `global_batch` are the images of all ranks in a step, where it is the same for all shapes.
    """
    standard = is_standard(config)
    compared = []
    for result in measured if global_batch is not None else ():
        # With that of the fewest ranks and as many compute threads in all.
        this = result.shape
        cores = this.ranks * this.threads
        base = smallest(
            [each for each in measured if each.shape.ranks * each.shape.threads == cores]
        )
        if base is result:
            continue
        other = base.shape
        # The target is for one comparison: two ranks of one thread with one rank of two.
        is_target = (this.ranks, this.threads, other.ranks, other.threads) == (2, 1, 1, 2)
        has_target = standard and global_batch == STANDARD_BATCH and is_target
        ratio = times_the_throughput(result, base)
        compared.append(
            Finding(
                what=f"{this.name} against {other.name}, both {global_batch} images per step",
                value=ratio.median,
                shown=ratio.shown(" times as fast"),
                at_least=1.0 if has_target else None,
            )
        )
    at_most = LARGEST_EXCHANGE if standard and config.distributed.compress == "bf16" else None
    for what, name in (
        ("waiting for gradients", "exposed_share"),
        ("added by the exchange", "added_share"),
    ):
        shares = [(getattr(each, name), each.shape.name) for each in measured]
        if some := [share for share in shares if share[0] is not None]:
            value, largest = max(some)
            shown = f"{value:.4f} ({largest})"
            title = f"{what}, largest share of a step"
            compared.append(Finding(title, value, shown, at_most=at_most))
    return compared


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
    if several := [result for result in measured if result.shape.ranks > 1]:
        draw_communication(communication, several)
    else:
        write_in_place_of_chart(communication, "no exchange with one rank")
    save_chart(figure, file)


def draw_throughput(axes: "Axes", measured: Sequence[Measured]) -> None:
    """Draw a line for each number of threads; dashed, its first point if all scaled ideally.

    On both axes twice as much is the same distance everywhere, so that ideal lines are parallel.
    """
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter  # noqa: PLC0415

    for place, threads in enumerate(sorted({result.shape.threads for result in measured})):
        line = [result for result in measured if result.shape.threads == threads]
        line.sort(key=lambda result: result.shape.ranks)
        colour = PALETTE[place % len(PALETTE)]
        ranks = [result.shape.ranks for result in line]
        rates = [result.images_per_second for result in line]
        axes.plot(
            ranks,
            rates,
            color=colour,
            marker="o",
            label=f"{counted(threads, 'thread')} per rank",
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
    counts = sorted({result.shape.ranks for result in measured})
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
    axes.set_xticks(range(len(several)), [each.shape.short_name for each in several])
    axes.set_xlabel("ranks × threads")
    axes.set_xlim(-0.8, max(1, len(several)) - 0.2)
    axes.set_ylim(top=max(LARGEST_SHARE_SHOWN, ROOM * axes.get_ylim()[1]))
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="upper left")
