"""A study of known numbers, and its tables, sentences and chart."""

import csv
from typing import Any

import pytest

from common.charts import as_svg
from profiling.bench.variant import Subject
from profiling.layers.report import (
    COLUMNS,
    as_json,
    comparisons,
    draw_layers,
    layers_csv,
    sentences,
)
from profiling.layers.study import BETWEEN, Configuration, Measured, labels

SUBJECT = Subject(model="alexnet", batch=4, image_size=64, precision="float32", device="cpu")


def make_fact(name: str, kind: str, gflop: float = 0.0) -> dict[str, Any]:
    return {
        "name": name,
        "type": kind,
        "calls": 1,
        "trains": gflop > 0,
        "gflop_forward": gflop,
        "gflop_backward": 2 * gflop,
    }


def make_iteration(
    forward: float, backward: float, conv: tuple[float, float], factor: float
) -> dict[str, Any]:
    layers = {"frozen": (2, None), "conv": conv, "relu": (1, 2)}
    return {
        "forward": forward * factor,
        "backward": backward * factor,
        "layers": {
            name: [ms if ms is None else ms * factor for ms in pair]
            for name, pair in layers.items()
        },
        "nodes": {"AddBackward0": 1.0},
    }


def measured(*, onednn: bool, factor: float = 1.0, threads: int = 2) -> Measured:
    """Return two iterations, all of whose times are multiplied by a factor."""
    layers = [
        make_fact("frozen", "Conv2d", 0.5),
        make_fact("conv", "Conv2d", 1.0),
        make_fact("relu", "ReLU"),
    ]
    return Measured(
        configuration=Configuration(onednn=onednn, threads=threads),
        label="optimized" if onednn else "default",
        facts={
            "layers": layers,
            "versions": {"torch": "2.8.0"},
            "device": "cpu",
            "notes": [],
            "winograd": onednn,
        },
        watched=[
            make_iteration(10, 20, (4, 15), factor),
            make_iteration(14, 20, (8, 13), factor),
        ],
        plain=[{"forward": 8 * factor, "backward": 16 * factor}],
    )


def test_rows_add_up_to_the_iteration() -> None:
    result = measured(onednn=True)
    layers = {layer.name: layer for layer in result.layers()}
    assert list(layers) == ["frozen", "conv", "relu", BETWEEN]
    assert result.total_ms == 12 + 20
    assert sum(layer.total_ms for layer in layers.values()) == pytest.approx(result.total_ms)
    assert sum(layer.share for layer in layers.values()) == pytest.approx(1)
    between = layers[BETWEEN]
    assert between.forward.mean == 3 and between.backward and between.backward.mean == 4


def test_numbers_of_a_layer() -> None:
    layers = {layer.name: layer for layer in measured(onednn=True).layers()}
    conv, frozen, relu = layers["conv"], layers["frozen"], layers["relu"]
    assert (conv.forward.mean, conv.forward.median, conv.forward.deviation) == (6, 6, 2)
    assert conv.backward and (conv.backward.mean, conv.backward.deviation) == (14, 1)
    assert conv.share == 20 / 32 and conv.gflop == 3 and conv.gflop_per_s == 3 / 0.020
    assert frozen.backward is None and frozen.gflop == 0.5 and frozen.gflop_per_s == 0.5 / 0.002
    assert relu.gflop == 0 and relu.gflop_per_s is None


def test_overhead_of_hooks_is_relative_to_the_next_iteration_without() -> None:
    result = measured(onednn=True)
    assert result.plain_ms == 24 and result.watching_cost == 30 / 24 - 1
    assert result.convolving_share == (2 + 20) / 32


def test_engines_are_compared_if_all_else_is_equal() -> None:
    study = [measured(onednn=False, factor=3), measured(onednn=True)]
    (line,) = comparisons(study)
    assert "0.096 s" in line and "0.032 s" in line and "3.00 times as fast" in line
    other = measured(onednn=True, threads=1)
    assert len(comparisons([*study, other])) == 1
    (line,) = comparisons([measured(onednn=True, factor=2), other])
    assert "2.00 times as fast" in line


def test_sentences_name_convolutions_winograd_and_frozen_layers() -> None:
    text = "\n".join(sentences(SUBJECT, [measured(onednn=True)]))
    assert "convolutions take 69%" in text and "Winograd" in text
    assert "1 layers, frozen to frozen" in text


def test_table_of_all_layers_adds_up() -> None:
    study = [measured(onednn=False, factor=3), measured(onednn=True)]
    rows = list(csv.DictReader(layers_csv(study).splitlines()))
    assert tuple(rows[0]) == COLUMNS and len(rows) == 8
    for result in study:
        layers = [row for row in rows if row["configuration"] == result.label]
        total = sum(float(row["forward_ms"]) + float(row["backward_ms"] or 0) for row in layers)
        assert total == pytest.approx(result.total_ms, rel=1e-4)
    assert rows[0]["backward_ms"] == "" and rows[2]["gflop_per_s"] == ""


def test_json_has_every_iteration() -> None:
    content = as_json(SUBJECT, [measured(onednn=True)], remarks=["a remark"], other_cores=0.5)
    (study,) = content["configurations"]
    assert study["iterations_ms"] == [[10, 20], [14, 20]] and study["unwatched_median_ms"] == 24
    assert content["subject"]["batch"] == 4 and content["remarks"] == ["a remark"]
    assert study["between_layers_backward_ms"] == {"AddBackward0": 1.0}
    assert [layer["name"] for layer in study["layers"]][-1] == BETWEEN


def test_labels_name_only_what_differs() -> None:
    both = [Configuration(onednn=engine, threads=2) for engine in (False, True)]
    assert labels(both) == ["default", "optimized"]
    assert labels(both[1:]) == ["optimized"]
    single, double = (Configuration(onednn=True, threads=count) for count in (1, 2))
    assert labels([single, double]) == ["1 thread", "2 threads"]
    mixed = [single, Configuration(onednn=False, threads=1, memory="local", huge_pages=True)]
    assert labels(mixed) == [
        "optimized, memory default, small pages",
        "default, memory local, huge pages",
    ]


@pytest.mark.slow
def test_chart_has_a_bar_for_each_layer_and_configuration() -> None:
    svg = as_svg(draw_layers([measured(onednn=False), measured(onednn=True)], title="a title"))
    for text in ("frozen Conv2d", "relu ReLU", BETWEEN, "default", "optimized", "a title", "–"):
        assert text in svg
