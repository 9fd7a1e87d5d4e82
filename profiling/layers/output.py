"""What a study of layers leaves: a table of all layers, a chart, JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from profiling.bench.environment import environment
from profiling.layers.measured import Layer, Measured
from profiling.layers.subject import Subject
from retinanet.csv_text import as_csv

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
