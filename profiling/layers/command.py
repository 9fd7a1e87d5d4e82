"""`python -m profiling layers`: time the layers of a network, print, write.

TODO-DOC The command line of `python -m profiling layers`.

TODO-DOC The chart of a network's layers (the 2017 study's Figures 3 and 5 above, 6 below).
"""

import argparse
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common.charts import new_figure
from common.cli import add_json_option, numbers, positive
from common.console import make_console, significant
from common.errors import FINISHED, OUR_BUG, InputError
from common.files import require_free_json, require_free_outputs, write_whole
from common.machine import environment
from common.processes import WorkerDiedError
from launch.limits import read_allowance
from launch.pinning import choose_cores
from profiling.bench.command import image_side
from profiling.bench.results import background_load
from profiling.bench.variant import CHOICES, huge_pages_remark, memory_remark, parse_memory
from profiling.layers.report import as_json, costliest, layers_csv, output_files, print_study
from profiling.layers.study import (
    BETWEEN,
    CLASSIFIER_SIZE,
    DEFAULT_BATCH,
    DEFAULT_SIZE,
    Configuration,
    Layer,
    Measured,
    Subject,
    require_gpu,
    run_study,
)
from profiling.onednn_log.work import DIRECTION_COLOURS

SWITCH = {"off": (False,), "on": (True,), "both": (False, True)}
SLOW_BF16 = (
    "without oneDNN, BF16 is multiplied number by number; the 2017 study's engines both computed "
    "in float32: --precision float32"
)


def layers_command(
    model: str,
    *,
    batch: int | None,
    image_size: int | None,
    precision: str,
    iterations: int,
    warm_up: int,
    onednn: str | None,
    threads: tuple[int, ...] | None,
    memory: list[str] | None,
    huge_pages: str,
    device: str,
    out: Path | None,
    overwrite: bool,
    json_file: Path | None,
) -> int:
    """Run the study, print it, write it; returns the exit code.

    Raises:
        InputError: Something asked for is not known or not here, or a file exists.
    """
    require_outputs(out, overwrite=overwrite, json_file=json_file)
    subject = subject_of(model, batch, image_size, precision=precision, device=device)
    configurations = combine(
        onednn=onednn, threads=threads, memory=memory, huge_pages=huge_pages, device=device
    )
    remarks = remarks_on(subject, configurations)
    with background_load() as others:
        try:
            measured = study(subject, configurations, remarks, counts=(iterations, warm_up))
        except WorkerDiedError as error:
            print(f"error: {error}", file=sys.stderr)
            return OUR_BUG
    print_study(make_console(), subject, measured, remarks=remarks, other_cores=others.cores)
    if json_file is not None:
        text = as_json(subject, measured, remarks=remarks, other_cores=others.cores)
        write_whole(json_file, text + "\n")
    if out is not None:
        write_files(subject, measured, out)
    return FINISHED


def study(
    subject: Subject,
    configurations: Sequence[Configuration],
    remarks: Sequence[str],
    *,
    counts: tuple[int, int],
) -> list[Measured]:
    """Tell what will have no effect, and run; `counts` are iterations that count, and warm-up."""
    console = make_console(stderr=True)
    for remark in remarks:
        console.print(remark, soft_wrap=True, markup=False)
    iterations, warm_up = counts
    return run_study(
        subject, configurations, iterations=iterations, warm_up=warm_up, console=console
    )


def require_outputs(out: Path | None, *, overwrite: bool, json_file: Path | None) -> None:
    """Refuse to replace files, before the work that fills them.

    Raises:
        InputError: Names the first.
    """
    require_free_json(json_file)
    if out is not None:
        require_free_outputs(output_files(out), overwrite=overwrite)


def subject_of(
    model: str, batch: int | None, image_size: int | None, *, precision: str, device: str
) -> Subject:
    """The network, with its usual batch where none is asked for.

    Raises:
        InputError: The network is not known.
    """
    if model not in DEFAULT_BATCH:
        names = ", ".join(DEFAULT_BATCH)
        raise InputError(f"MODEL: {model!r} is not known; choose from {names}")
    return Subject(
        model=model,
        batch=batch or DEFAULT_BATCH[model],
        image_size=image_size or DEFAULT_SIZE.get(model, CLASSIFIER_SIZE),
        precision=precision,
        device=device,
    )


def combine(
    *,
    onednn: str | None,
    threads: tuple[int, ...] | None,
    memory: list[str] | None,
    huge_pages: str,
    device: str,
) -> list[Configuration]:
    """All combinations of what is to be compared.

    Raises:
        InputError: There is no GPU or too few cores, a memory policy is not known, or a
            processor's choice was made for a GPU.
    """
    if device == "cuda" and onednn is not None:
        raise InputError("--onednn: is the processor's; leave it out with --device cuda")
    if device == "cuda":
        require_gpu()
    nodes = read_allowance().memory_nodes
    for text in memory or ():
        parse_memory(text, allowed=nodes)
    counts = threads or (choose_cores(threads=None).threads,)
    for count in counts:
        choose_cores(threads=count)
    return [
        Configuration(onednn=engine, threads=count, memory=policy, huge_pages=pages)
        for count, policy, pages, engine in product(
            counts, memory or (None,), SWITCH[huge_pages], SWITCH[onednn or "on"]
        )
    ]


def remarks_on(subject: Subject, configurations: Sequence[Configuration]) -> list[str]:
    """Sentences about choices that have no effect here, or not the one that is expected."""
    nodes = read_allowance().memory_nodes
    policies = dict.fromkeys(one.memory for one in configurations if one.memory)
    found = [memory_remark(text, allowed=nodes) for text in policies]
    if any(one.huge_pages for one in configurations):
        found.append(huge_pages_remark())
    if subject.precision == "bf16" and any(not one.onednn for one in configurations):
        found.append(SLOW_BF16)
    return [f"note: {line}" for line in found if line]


def write_files(subject: Subject, measured: Sequence[Measured], folder: Path) -> None:
    """The table and the chart, and say where they are.

    Raises:
        InputError: They cannot be written.
    """
    # Here, because matplotlib is slow to load, and printing needs none.
    from common.charts import chart_files, save_chart  # noqa: PLC0415

    pass  # DROPPED

    write_whole(folder / "layers.csv", layers_csv(measured))
    device = measured[0].facts["device"]
    name = environment()["cpu"] if device == "cpu" else device
    figure = draw_layers(measured, title=f"{subject}; {name}")
    save_chart(figure, *chart_files(folder, "layers"))
    make_console().print(f"table and chart: {folder}", soft_wrap=True)


ABOUT = """\
Time each layer of a network, forward and backward, as `caffe time` does: iterations on one batch
of random images, without an optimizer, averaged. Then the layer-wise study of Awan et al., "An
In-depth Performance Characterization of CPU- and GPU-based DNN Training on Modern Architectures"
(2017): the default engine against the optimized one, threads, memory, forward against backward.

MODEL is retinanet (ours, as train.py runs it, 264 classes), alexnet, resnet50 or resnext50
(torchvision's), with weights from random numbers. A layer is a module that has no modules inside;
one that runs several times in an iteration shows the sum. What no layer does, such as residual
sums, is the row `between layers`, so that all rows add up to the iteration.

Configurations that are compared run in turn, each in a process of its own. Use a machine on which
nothing else runs."""

EXAMPLES = """\
examples:
  python -m profiling layers alexnet                                   # about a minute
  python -m profiling layers alexnet --onednn both --precision float32 --out alexnet
  python -m profiling layers retinanet --iterations 10 --out layers    # table and chart
  python -m profiling layers resnet50 --threads 1,2 --json resnet50.json
  python -m profiling layers resnet50 --memory local --memory interleave --huge-pages both"""


def add_layers(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `layers` to the commands of a command line."""
    parser = commands.add_parser(
        "layers",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_subject_options(parser)
    add_configuration_options(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="write layers.csv, layers.png and layers.svg here",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace files of an earlier call in DIR"
    )
    add_json_option(parser)
    parser.set_defaults(run=layers_command)


def add_subject_options(parser: argparse.ArgumentParser) -> None:
    """What is timed, and how often."""
    parser.add_argument("model", metavar="MODEL", help=", ".join(DEFAULT_BATCH))
    batches = ", ".join(f"{name} {count}" for name, count in DEFAULT_BATCH.items())
    parser.add_argument(
        "--batch", type=positive, metavar="N", help=f"images in the batch (default: {batches})"
    )
    parser.add_argument(
        "--image-size",
        type=image_side,
        metavar="N",
        help="their height and width (default: 800 for retinanet, else 224)",
    )
    parser.add_argument(
        "--precision",
        choices=("bf16", "float32"),
        default="bf16",
        help="of convolutions and matrix products (default: bf16, by autocast)",
    )
    for name, default, what in (
        ("--iterations", 50, "iterations that count"),
        ("--warm-up", 3, "iterations before them"),
    ):
        help_text = f"{what} (default: {default})"
        parser.add_argument(name, type=positive, default=default, metavar="N", help=help_text)


def add_configuration_options(parser: argparse.ArgumentParser) -> None:
    """What is compared."""
    parser.add_argument(
        "--onednn",
        choices=tuple(SWITCH),
        help="off: the default engine, torch's operators without oneDNN and without ours; "
        "on: the optimized one; both: one against the other (default: on)",
    )
    parser.add_argument(
        "--threads",
        type=numbers,
        metavar="A,B",
        help="numbers of compute threads, one a core (default: all cores)",
    )
    parser.add_argument(
        "--memory",
        action="append",
        metavar="POLICY",
        help=f"memory policy, as numactl's: {CHOICES}; give it again to compare",
    )
    parser.add_argument(
        "--huge-pages",
        nargs="?",
        choices=tuple(SWITCH),
        const="on",
        default="off",
        help="have the C library ask for transparent huge pages; both: with and without",
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="cuda: the first GPU (default: cpu)",
    )


LAYERS = 30
"""With bars of their own; the others share one."""
COLOURS = ("#868e96", "#2f9e44", "#f08c00", "#9c36b5", "#15aabf", "#e8590c", "#5c7cfa", "#333333")
"""Of configurations; those of passes are others."""
ROW = 0.24
"""Inches for a layer with one bar."""
BARS = 0.8
"""Of the distance between layers, all bars of a layer together."""


def draw_layers(measured: Sequence[Measured], *, title: str) -> Figure:
    """Totals above, layers below: the forward pass on the left, the backward pass on the right.

    Where there are several configurations, each has a bar in every layer.
    """
    rows = layer_rows(measured)
    thickness = ROW * (0.55 + 0.45 * len(measured))
    totals = 1.0 + 0.32 * len(measured)
    body = 1.1 + thickness * len(rows)
    figure = new_figure(width=12, height=totals + body)
    above, below = figure.subfigures(2, 1, height_ratios=[totals, body], squeeze=False)[:, 0]
    draw_totals(above.subplots(), measured)
    left, right = below.subplots(1, 2, sharey=True)
    longest = max(max(one.get((name, work), 0.0) for one in rows.values())
                  for name in range(len(measured)) for work in ("forward", "backward"))  # fmt: skip
    for axes, work in ((left, "forward"), (right, "backward")):
        draw_pass(axes, rows, measured, work=work)
        axes.set_xlim(0, 1.16 * longest)
        axes.set_title(f"{work} pass")
    left.set_yticks(range(len(rows)), list(rows), fontsize=8)
    left.set_ylim(len(rows) - 0.4, -0.6)
    if len(measured) > 1:
        right.legend(loc="lower right")
    figure.suptitle(f"{title}; averages of {len(measured[0].watched)} iterations")
    return figure


def layer_rows(measured: Sequence[Measured]) -> dict[str, dict[tuple[int, str], float]]:
    """Milliseconds by configuration's number and pass, for each row from top to bottom."""
    names = [name for name in costliest(measured) if name != BETWEEN]
    in_order = [layer.name for layer in measured[0].layers() if layer.name in names[:LAYERS]]
    tables = [{layer.name: layer for layer in one.layers()} for one in measured]
    groups = {
        **{" ".join(dict.fromkeys((name, tables[0][name].type))): [name] for name in in_order},
        f"{len(names[LAYERS:])} other layers": names[LAYERS:],
        BETWEEN: [BETWEEN],
    }
    return {
        title: {
            (number, work): sum(milliseconds(table[name], work) for name in members)
            for number, table in enumerate(tables)
            for work in ("forward", "backward")
        }
        for title, members in groups.items()
        if members
    }


def milliseconds(layer: Layer, work: str) -> float:
    """Of one pass, on average; 0 where there is none."""
    found = layer.forward if work == "forward" else layer.backward
    return found.mean if found else 0.0


def draw_totals(axes: Axes, measured: Sequence[Measured]) -> None:
    """A bar for each configuration, forward and backward pass one after the other."""
    for place, one in enumerate(measured):
        start = 0.0
        for work in ("forward", "backward"):
            mean = one.whole(work).mean
            label = f"{work} pass" if place == 0 else None
            axes.barh(place, mean, left=start, color=DIRECTION_COLOURS[work], label=label)
            axes.text(start + mean / 2, place, significant(mean), ha="center", va="center",
                      color="white", fontsize=9)  # fmt: skip
            start += mean
        axes.text(start, place, f"  {significant(start)} ms", va="center", fontsize=9)
    axes.set_yticks(range(len(measured)), [one.label for one in measured])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.3 * max(one.total_ms for one in measured))
    axes.set_xlabel("milliseconds an iteration")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", fontsize=8)


def draw_pass(
    axes: Axes,
    rows: dict[str, dict[tuple[int, str], float]],
    measured: Sequence[Measured],
    *,
    work: str,
) -> None:
    """A bar for each layer and configuration."""
    height = BARS / len(measured)
    for number, one in enumerate(measured):
        several = len(measured) > 1
        colour = COLOURS[number % len(COLOURS)] if several else DIRECTION_COLOURS[work]
        places = [place + (number + 0.5) * height - BARS / 2 for place in range(len(rows))]
        values = [row[number, work] for row in rows.values()]
        bars = axes.barh(places, values, height=height, color=colour, label=one.label)
        axes.bar_label(bars, [short_or_dash(value) for value in values],
                       fontsize=7, padding=2)  # fmt: skip
    axes.set_axisbelow(True)
    axes.set_xlabel("milliseconds")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.3)


def short_or_dash(milliseconds: float) -> str:
    """A dash where there is nothing."""
    return significant(milliseconds, 3) if milliseconds else "–"
