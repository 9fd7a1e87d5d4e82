"""A study of layers: tables and sentences of the terminal, CSV, JSON, and the chart.

The chart follows the 2017 study's Figures 3 and 5 (above) and 6 (below).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from rich.console import Console

from common.charts import (
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    Bar,
    Column,
    Piece,
    Table,
    colour_legend,
    horizontal_bars,
    new_figure,
    text_column,
)
from common.console import significant
from common.files import as_csv
from common.machine import environment
from profiling.bench.results import disturbance
from profiling.bench.variant import Subject
from profiling.layers.study import BETWEEN, Layer, Measured
from profiling.onednn_log.work import DIRECTION_COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TOP = 15  # Layers in the printed table; all are in the files of --out and --json
LEAST_PAIRS = 3  # With fewer iterations without hooks, the overhead of the hooks is lost in noise
MOST_BY_PASS = 2  # Configurations whose passes have columns of their own
PAPER = "the 2017 study found up to 83 % in AlexNet and ResNet-50"
WINOGRAD = (
    "GFLOP/s counts convolutions in their direct form; the Winograd convolutions of heads and "
    "pyramid compute less than half of that, so their rate may exceed the machine's peak"
)
PASSES = ("forward", "backward")


def print_study(
    console: Console,
    subject: Subject,
    measured: Sequence[Measured],
    *,
    remarks: Sequence[str],
    other_cores: float,
) -> None:
    """Print all tables and sentences."""
    first = measured[0]
    versions = ", ".join(f"{name} {version}" for name, version in first.facts["versions"].items())
    console.print(
        f"{subject}; {len(first.watched)} iterations of forward and backward pass; {versions}",
        soft_wrap=True,
    )
    console.print(summary_table(subject, measured).for_console())
    console.print(layers_table(measured).for_console())
    passes = "" if len(measured) <= MOST_BY_PASS else ", both passes together"
    console.print(f"average milliseconds{passes}; the rows add up to the whole iteration")
    notes = [
        f"note: {result.label}: {note}" for result in measured for note in result.facts["notes"]
    ]
    notes += [
        f"note: {result.label}: oneDNN ran nevertheless: {', '.join(result.primitives)}"
        for result in measured
        if not result.configuration.onednn and result.primitives
    ]
    for line in (*sentences(subject, measured), *remarks, *notes):
        console.print(line, soft_wrap=True, markup=False)
    disturbed = disturbance(other_cores)
    if disturbed and subject.device == "cpu":
        console.print(disturbed, soft_wrap=True)


def summary_table(subject: Subject, measured: Sequence[Measured]) -> Table:
    """Return a row for each configuration."""
    cells: list[tuple[Column, Callable[[Measured], object]]] = [
        (text_column(""), lambda result: result.label),
        (Column("forward ms", ",.1f"), lambda result: result.whole("forward").mean),
        (Column("backward ms", ",.1f"), lambda result: result.whole("backward").mean),
        (Column("both ms", ",.1f"), lambda result: result.total_ms),
        (Column("images/s", ".3g"), lambda result: subject.batch / result.total_ms * 1000),
        (Column("convolutions", ".1%"), lambda result: result.convolving_share),
        (Column("without hooks ms", ",.1f"), lambda result: result.plain_ms),
        (
            Column("hooks add", "+.1%"),
            lambda result: result.watching_cost if len(result.plain) >= LEAST_PAIRS else None,
        ),
        (Column("peak MB", ",.0f"), lambda result: result.peak_mb),
    ]
    if any(result.configuration.huge_pages for result in measured):
        cells.append((Column("huge pages MB", ",.0f"), lambda result: result.huge_pages_mb))
    rows = [[value(result) for _, value in cells] for result in measured]
    return Table("", [column for column, _ in cells], rows)


def layers_table(measured: Sequence[Measured]) -> Table:
    """Return the costliest layers in each configuration: by pass, or both passes of many."""
    by_pass = len(measured) <= MOST_BY_PASS
    is_alone = len(measured) == 1
    formats = {"forward": ",.2f", "backward": ",.2f", "share": ".1%"} if by_pass else {"ms": ",.2f"}
    columns = [text_column("layer", no_wrap=by_pass), text_column("type", no_wrap=True)]
    for result in measured:
        label = "" if is_alone else f"\n{result.label}"
        columns += [Column(f"{heading}{label}", text) for heading, text in formats.items()]
    if is_alone:
        columns.append(Column("GFLOP/s", ",.0f"))
    tables = layers_by_name(measured)

    def row(title: str, kind: str, names: Sequence[str]) -> list[object]:
        cells: list[object] = [title, kind]
        for table, result in zip(tables, measured, strict=True):
            forward, backward = (pass_ms(table, names, work) for work in PASSES)
            both = forward + backward
            # A dash: 0 ms would be a measured time.
            cells += [forward, backward or "–", both / result.total_ms] if by_pass else [both]
        rate = tables[0][names[0]].gflop_per_s if len(names) == 1 else None
        return [*cells, rate or None] if is_alone else cells

    names = costliest(tables)
    others = names[TOP:]
    return Table(
        "",
        columns,
        [row(name, tables[0][name].type, [name]) for name in names[:TOP]],
        totals=[row(f"{len(others)} others", "", others)] if others else (),
    )


def layers_by_name(measured: Sequence[Measured]) -> list[dict[str, Layer]]:
    """Return the layers of each configuration by name."""
    return [{layer.name: layer for layer in result.layers()} for result in measured]


def pass_ms(table: Mapping[str, Layer], names: Sequence[str], work: str) -> float:
    """Return the time of a pass of some layers; 0 if none of them has that pass. [ms]"""
    statistics = [getattr(table[name], work) for name in names]
    return sum(statistic.mean for statistic in statistics if statistic is not None)


def costliest(tables: Sequence[Mapping[str, Layer]]) -> list[str]:
    """Return the names of all rows, ordered by their longest time in any configuration."""
    names = dict.fromkeys(name for table in tables for name in table)
    most = {name: max(table[name].total_ms for table in tables if name in table) for name in names}
    return sorted(most, key=lambda name: -most[name])


def sentences(subject: Subject, measured: Sequence[Measured]) -> list[str]:
    """Return the comparison of engines, convolutions and frozen layers in sentences."""
    lines = comparisons(measured)
    last = measured[-1]
    is_ours = subject.model == "retinanet"
    # The torch engine computes frozen norms and the heads' activations with the convolutions.
    inside = " (including frozen norms and the heads' activations)" if is_ours else ""
    label = f" ({last.label})" if len(measured) > 1 else ""
    lines.append(
        f"convolutions take {last.convolving_share:.0%} of the iteration{label}{inside}; {PAPER}"
    )
    if len(measured) == 1 and last.facts["winograd"]:
        lines.append(WINOGRAD)
    frozen = [layer.name for layer in last.layers() if layer.backward is None]
    if frozen:
        lines.append(
            f"no backward pass (–): {len(frozen)} layers, {frozen[0]} to {frozen[-1]}, because "
            "neither they nor the layers before them are trained"
        )
    nodes = list(last.nodes().items())[:4]
    if nodes:
        parts = ", ".join(f"{name} {ms:.2f}" for name, ms in nodes)
        lines.append(f"{BETWEEN}, backward, ms{label}: {parts}")
    return lines


def comparisons(measured: Sequence[Measured]) -> list[str]:
    """Compare configurations that differ in the engine alone; if none do, all with the first."""
    pairs = [
        (default, optimized)
        for default in measured
        for optimized in measured
        if not default.configuration.onednn
        and replace(default.configuration, onednn=True) == optimized.configuration
    ]
    if not pairs:
        first = measured[0]
        return [
            f"{result.label}: {first.total_ms / result.total_ms:.2f} times as fast as {first.label}"
            for result in measured[1:]
        ]
    return [
        f"default engine (oneDNN off) {default.total_ms / 1000:.3g} s, optimized (oneDNN on) "
        f"{optimized.total_ms / 1000:.3g} s{default.label.removeprefix('default')}: "
        f"{default.total_ms / optimized.total_ms:.2f} times as fast"
        for default, optimized in pairs
    ]


STATISTICS = {"": "mean", "median_": "median", "deviation_": "deviation"}
"""Prefixes of columns, and fields of `Statistic`."""
COLUMNS = (
    *("configuration", "layer", "type", "calls"),
    *(f"{work}_{prefix}ms" for prefix in STATISTICS for work in PASSES),
    *("share", "gflop", "gflop_per_s"),
)


def layers_csv(measured: Sequence[Measured]) -> str:
    """Return a row for each layer of each configuration, in the order of the network.

    Averages over the iterations, beside medians and standard deviations; backward is empty where a
    layer has none. The averages of all rows of a configuration add up to its iteration. Numbers
    have six significant digits.
    """
    rows = []
    for result in measured:
        for layer in result.layers():
            numbers = [
                getattr(statistic, name) if statistic else None
                for name in STATISTICS.values()
                for statistic in (layer.forward, layer.backward)
            ]
            numbers += [layer.share, layer.gflop or None, layer.gflop_per_s]
            texts = ("" if number is None else f"{number:.6g}" for number in numbers)
            rows.append([result.label, layer.name, layer.type, layer.calls, *texts])
    return as_csv(COLUMNS, rows)


def as_json(
    subject: Subject, measured: Sequence[Measured], *, remarks: Sequence[str], other_cores: float
) -> dict[str, Any]:
    """Return the results as JSON values: times in milliseconds, shares from 0 to 1."""
    configurations = [
        {
            "label": result.label,
            **asdict(result.configuration),
            "versions": result.facts["versions"],
            "device": result.facts["device"],
            "notes": result.facts["notes"],
            "forward_ms": asdict(result.whole("forward")),
            "backward_ms": asdict(result.whole("backward")),
            "total_ms": result.total_ms,
            "unwatched_median_ms": result.plain_ms,
            "watching_cost": result.watching_cost,
            "convolving_share": result.convolving_share,
            "peak_mb": result.peak_mb,
            "huge_pages_mb": result.huge_pages_mb,
            "onednn_s": dict(result.primitives),
            "layers": [asdict(layer) for layer in result.layers()],
            "between_layers_backward_ms": result.nodes(),
            "iterations_ms": [[i["forward"], i["backward"]] for i in result.watched],
            "unwatched_iterations_ms": [[i["forward"], i["backward"]] for i in result.plain],
        }
        for result in measured
    ]
    return {
        "subject": asdict(subject),
        "environment": {**environment(), "cores_busy_otherwise": other_cores},
        "remarks": list(remarks),
        "configurations": configurations,
    }


LAYERS = 30  # Layers with bars of their own; the others share one
COLOURS = (GREY, GREEN, ORANGE, PURPLE, "#15aabf", "#e8590c", "#5c7cfa", "#333333")
"""Colours of configurations; passes have others."""
ROW = 0.24  # The height of a layer with one bar. [inches]
PassTimes = Mapping[tuple[int, str], float]  # Milliseconds by configuration's number and pass


def draw_layers(measured: Sequence[Measured], *, title: str) -> "Figure":
    """Draw totals above, layers below: the forward pass on the left, the backward on the right.

    If there are several configurations, each has a bar in every layer.
    """
    rows = chart_rows(measured)
    totals = 1.0 + 0.32 * len(measured)
    body = 1.1 + ROW * (0.55 + 0.45 * len(measured)) * len(rows)
    figure = new_figure(width=12, height=totals + body)
    above, below = figure.subfigures(2, 1, height_ratios=[totals, body], squeeze=False)[:, 0]
    totals_axes = above.subplots()
    bars = []
    for result in measured:
        means = {work: result.whole(work).mean for work in PASSES}
        pieces = [Piece(ms, DIRECTION_COLOURS[work], significant(ms)) for work, ms in means.items()]
        bars.append(Bar(result.label, pieces, note=f"{significant(sum(means.values()))} ms"))
    horizontal_bars(totals_axes, bars, room=1.3, thickness=0.8)
    totals_axes.set_xlabel("milliseconds per iteration")
    passes = {f"{work} pass": DIRECTION_COLOURS[work] for work in PASSES}
    colour_legend(totals_axes, passes, loc="lower right", fontsize=8)
    axes_of_passes = below.subplots(1, 2, sharey=True)
    longest = max(time for row in rows.values() for time in row.values())
    colours = [COLOURS[number % len(COLOURS)] for number in range(len(measured))]
    for axes, work in zip(axes_of_passes, PASSES, strict=True):
        draw_pass(axes, rows, work, colours if len(measured) > 1 else [DIRECTION_COLOURS[work]])
        axes.set_xlim(0, 1.16 * longest)
        axes.set_title(f"{work} pass")
    if len(measured) > 1:
        labelled = {result.label: colour for result, colour in zip(measured, colours, strict=True)}
        colour_legend(axes_of_passes[1], labelled, loc="lower right")
    figure.suptitle(f"{title}; averages of {len(measured[0].watched)} iterations")
    return figure


def chart_rows(measured: Sequence[Measured]) -> dict[str, PassTimes]:
    """Return times of each row from top to bottom; where there is no pass, they are 0."""
    tables = layers_by_name(measured)
    names = [name for name in costliest(tables) if name != BETWEEN]
    in_order = [name for name in tables[0] if name in names[:LAYERS]]
    groups = {
        # The loss has the same name and type, which is written once.
        **{" ".join(dict.fromkeys((name, tables[0][name].type))): [name] for name in in_order},
        f"{len(names[LAYERS:])} other layers": names[LAYERS:],
        BETWEEN: [BETWEEN],
    }
    return {
        title: {
            (number, work): pass_ms(table, members, work)
            for number, table in enumerate(tables)
            for work in PASSES
        }
        for title, members in groups.items()
        if members
    }


def draw_pass(
    axes: "Axes", rows: Mapping[str, PassTimes], work: str, colours: Sequence[str]
) -> None:
    """Draw a bar for each layer and configuration; a dash if there is no value."""
    bars = []
    for name, row in rows.items():
        for number, colour in enumerate(colours):
            ms = row[number, work]
            # Three significant digits, or all before the point.
            shown = f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"
            bars.append(Bar(name, [Piece(ms, colour)], note=shown if ms else "–"))
    count = len(colours)
    horizontal_bars(axes, bars, bars_a_row=count, thickness=0.8, fontsize=7, name_size=8)
    axes.set_axisbelow(True)
    axes.set_xlabel("milliseconds")
    axes.grid(axis="x", alpha=0.3)
