"""A study of layers as a person reads it.

TODO-DOC What a study of layers leaves: a table of all layers, a chart, JSON.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from common.files import as_csv
from common.machine import environment
from profiling.bench.results import disturbance
from profiling.layers.study import BETWEEN, Layer, Measured, Subject

TOP = 15
"""Layers in the printed table; all are in the files of --out and --json."""

LEAST_PAIRS = 3
"""With fewer iterations that nobody watched, what watching adds is chance."""
MOST_BY_PASS = 2
"""Configurations whose passes have columns of their own."""

PAPER = "the 2017 study found up to 83 % in AlexNet and ResNet-50"
WINOGRAD = (
    "GFLOP/s counts convolutions in their direct form; Winograd's, of heads and pyramid, compute "
    "less than half of that, and may go beyond the machine's peak"
)
CONVOLUTIONS_MEAN = {
    "retinanet": " (frozen norms, and the heads' activations, are computed inside)",
}


def print_study(
    console: Console,
    subject: Subject,
    measured: Sequence[Measured],
    *,
    remarks: Sequence[str],
    other_cores: float,
) -> None:
    """All tables and sentences."""
    first = measured[0]
    versions = ", ".join(f"{name} {version}" for name, version in first.facts["versions"].items())
    console.print(
        f"{subject}; {len(first.watched)} iterations of forward and backward pass; {versions}",
        soft_wrap=True,
    )
    console.print(summary_table(subject, measured))
    console.print(layers_table(measured))
    passes = "" if len(measured) <= MOST_BY_PASS else ", both passes together"
    console.print(f"milliseconds on average{passes}; all rows are the whole iteration")
    for line in (*sentences(subject, measured), *remarks, *worker_notes(measured)):
        console.print(line, soft_wrap=True, markup=False)
    disturbed = disturbance(other_cores)
    if disturbed and subject.device == "cpu":
        console.print(disturbed, soft_wrap=True)


def summary_table(subject: Subject, measured: Sequence[Measured]) -> Table:
    """A row for each configuration."""
    table = Table()
    headings = ["", "forward ms", "backward ms", "both ms", "images/s", "convolutions",
                "unwatched ms", "watching adds", "peak MB"]  # fmt: skip
    has_huge = any(one.configuration.huge_pages for one in measured)
    for heading in [*headings, "huge pages MB"] if has_huge else headings:
        table.add_column(heading, justify="right" if heading else "left")
    for one in measured:
        cells = [
            one.label,
            f"{one.whole('forward').mean:,.1f}",
            f"{one.whole('backward').mean:,.1f}",
            f"{one.total_ms:,.1f}",
            f"{subject.batch / one.total_ms * 1000:.3g}",
            f"{one.convolving_share:.1%}",
            f"{one.plain_ms:,.1f}",
            f"{one.watching_cost:+.1%}" if len(one.plain) >= LEAST_PAIRS else "",
            f"{one.peak_mb:,.0f}",
        ]
        table.add_row(*cells, *([f"{one.huge_pages_mb:,.0f}"] if has_huge else []))
    return table


def layers_table(measured: Sequence[Measured]) -> Table:
    """The costliest layers in each configuration: by pass, or both passes where there are many."""
    by_pass = len(measured) <= MOST_BY_PASS
    table = Table()
    table.add_column("layer", no_wrap=by_pass)
    table.add_column("type", no_wrap=True)
    for one in measured:
        of = f"\n{one.label}" if len(measured) > 1 else ""
        for heading in ("forward", "backward", "share") if by_pass else ("ms",):
            table.add_column(f"{heading}{of}", justify="right")
    by_label = {one.label: {layer.name: layer for layer in one.layers()} for one in measured}
    if len(measured) == 1:
        table.add_column("GFLOP/s", justify="right")
    names = costliest(measured)
    for name in names[:TOP]:
        layers = [by_label[one.label][name] for one in measured]
        cells = [cell for layer in layers for cell in times([layer], by_pass=by_pass)]
        rate = layers[0].gflop_per_s if len(measured) == 1 else None
        table.add_row(name, layers[0].type, *cells, *([f"{rate:,.0f}"] if rate else []))
    others = names[TOP:]
    if others:
        table.add_section()
        cells = []
        for one in measured:
            cells += times([by_label[one.label][name] for name in others], by_pass=by_pass)
        table.add_row(f"{len(others)} others", "", *cells)
    return table


def times(layers: Sequence[Layer], *, by_pass: bool) -> list[str]:
    """Forward, backward and share of all of them together; or both passes alone."""
    if not by_pass:
        return [f"{sum(layer.total_ms for layer in layers):,.2f}"]
    passes = [layer.backward.mean for layer in layers if layer.backward]
    return [
        f"{sum(layer.forward.mean for layer in layers):,.2f}",
        f"{sum(passes):,.2f}" if passes else "–",
        f"{sum(layer.share for layer in layers):.1%}",
    ]


def costliest(measured: Sequence[Measured]) -> list[str]:
    """Names of all rows, by their time in the configuration where they take longest."""
    most: dict[str, float] = {}
    for one in measured:
        for layer in one.layers():
            most[layer.name] = max(most.get(layer.name, 0.0), layer.total_ms)
    return sorted(most, key=lambda name: -most[name])


def sentences(subject: Subject, measured: Sequence[Measured]) -> list[str]:
    """What the study says: the comparison of engines, convolutions, frozen layers."""
    found = comparisons(measured)
    last = measured[-1]
    inside = CONVOLUTIONS_MEAN.get(subject.model, "")
    of = f" ({last.label})" if len(measured) > 1 else ""
    found.append(
        f"convolutions take {last.convolving_share:.0%} of the iteration{of}{inside}; {PAPER}"
    )
    if len(measured) == 1 and last.facts["winograd"]:
        found.append(WINOGRAD)
    frozen = [layer.name for layer in last.layers() if layer.backward is None]
    if frozen:
        found.append(
            f"no backward pass (–): {len(frozen)} layers, {frozen[0]} to {frozen[-1]}, as neither "
            "they nor what comes before them train"
        )
    nodes = list(last.nodes().items())[:4]
    if nodes:
        parts = ", ".join(f"{name} {ms:.2f}" for name, ms in nodes)
        found.append(f"{BETWEEN}, backward, ms{of}: {parts}")
    return found


def comparisons(measured: Sequence[Measured]) -> list[str]:
    """Pairs that differ in the engine alone; where engines do not differ, all against the first."""
    pairs = [
        (one, other)
        for one in measured
        for other in measured
        if not one.configuration.onednn
        and other.configuration.onednn
        and same_otherwise(one, other)
    ]
    lines = []
    for one, other in pairs:
        where = one.label.removeprefix("default")
        lines.append(
            f"default engine (oneDNN off) {one.total_ms / 1000:.3g} s, optimized (oneDNN on) "
            f"{other.total_ms / 1000:.3g} s{where}: {one.total_ms / other.total_ms:.2f} times as "
            "fast"
        )
    if not pairs:
        first = measured[0]
        lines += [
            f"{one.label}: {first.total_ms / one.total_ms:.2f} times as fast as {first.label}"
            for one in measured[1:]
        ]
    return lines


def same_otherwise(one: Measured, other: Measured) -> bool:
    """Whether two configurations differ in nothing but the engine."""
    mine, theirs = (dict(vars(each.configuration), onednn=None) for each in (one, other))
    return mine == theirs


def worker_notes(measured: Sequence[Measured]) -> list[str]:
    """What workers said of their cores, and oneDNN where it ran though it was off."""
    lines = [f"note: {one.label}: {note}" for one in measured for note in one.facts["notes"]]
    for one in measured:
        if not one.configuration.onednn and one.primitives:
            kinds = ", ".join(one.primitives)
            lines.append(f"note: {one.label}: oneDNN ran all the same: {kinds}")
    return lines


COLUMNS = (
    "configuration",
    "layer",
    "type",
    "calls",
    "forward_ms",
    "backward_ms",
    "forward_median_ms",
    "backward_median_ms",
    "forward_deviation_ms",
    "backward_deviation_ms",
    "share",
    "gflop",
    "gflop_per_s",
)


def output_files(folder: Path) -> list[Path]:
    """What `--out` gets."""
    return [folder / f"layers.{ending}" for ending in ("csv", "png", "svg")]


def layers_csv(measured: Sequence[Measured]) -> str:
    """A row for each layer of each configuration, in the order of the network.

    Averages over the iterations, beside medians and standard deviations; backward is empty where a
    layer has none. The averages of all rows of a configuration add up to its iteration.
    """
    rows = (row_of(one.label, layer) for one in measured for layer in one.layers())
    return as_csv(COLUMNS, rows)


def row_of(label: str, layer: Layer) -> list[object]:
    """A layer of the configuration of that name."""
    forward, backward = layer.forward, layer.backward
    return [
        label,
        layer.name,
        layer.type,
        layer.calls,
        number(forward.mean),
        number(backward.mean if backward else None),
        number(forward.median),
        number(backward.median if backward else None),
        number(forward.deviation),
        number(backward.deviation if backward else None),
        number(layer.share),
        number(layer.gflop or None),
        number(layer.gflop_per_s),
    ]


def number(value: float | None) -> str:
    """With six significant digits; empty for None."""
    return "" if value is None else f"{value:.6g}"


def as_json(
    subject: Subject, measured: Sequence[Measured], *, remarks: Sequence[str], other_cores: float
) -> str:
    """Everything for programs; times in milliseconds, shares 0 to 1."""
    content: dict[str, Any] = {
        "subject": asdict(subject),
        "environment": {**environment(), "cores_busy_otherwise": other_cores},
        "remarks": list(remarks),
        "configurations": [configuration_json(one) for one in measured],
    }
    return json.dumps(content, indent=1, ensure_ascii=False)


def configuration_json(one: Measured) -> dict[str, Any]:
    """One configuration: totals, layers, and the totals of each iteration."""
    return {
        "label": one.label,
        **asdict(one.configuration),
        "versions": one.facts["versions"],
        "device": one.facts["device"],
        "notes": one.facts["notes"],
        "forward_ms": asdict(one.whole("forward")),
        "backward_ms": asdict(one.whole("backward")),
        "total_ms": one.total_ms,
        "unwatched_median_ms": one.plain_ms,
        "watching_cost": one.watching_cost,
        "convolving_share": one.convolving_share,
        "peak_mb": one.peak_mb,
        "huge_pages_mb": one.huge_pages_mb,
        "onednn_s": dict(one.primitives),
        "layers": [asdict(layer) for layer in one.layers()],
        "between_layers_backward_ms": one.nodes(),
        "iterations_ms": [[i["forward"], i["backward"]] for i in one.watched],
        "unwatched_iterations_ms": [[i["forward"], i["backward"]] for i in one.plain],
    }
