"""The numbers of a study by hand, and what is made of them."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from profiling.bench.variant import Subject
from profiling.layers.report import COLUMNS, as_json, comparisons, layers_csv, sentences
from profiling.layers.study import BETWEEN, Configuration, Measured, labels

SUBJECT = Subject(model="alexnet", batch=4, image_size=64, precision="float32", device="cpu")


def fact(name: str, kind: str, gflop: float = 0.0) -> dict[str, Any]:
    return {
        "name": name,
        "type": kind,
        "calls": 1,
        "trains": gflop > 0,
        "gflop_forward": gflop,
        "gflop_backward": 2 * gflop,
    }


def iteration(forward: float, backward: float, **layers: tuple[float, float | None]) -> Any:
    return {
        "forward": forward,
        "backward": backward,
        "layers": {name: list(pair) for name, pair in layers.items()},
        "nodes": {"AddBackward0": 1.0},
    }


def measured(*, onednn: bool, times: float = 1.0, threads: int = 2) -> Measured:
    facts = [fact("frozen", "Conv2d", 0.5), fact("conv", "Conv2d", 1.0), fact("relu", "ReLU")]
    watched = [
        iteration(
            10 * times,
            20 * times,
            frozen=(2 * times, None),
            conv=(4 * times, 15 * times),
            relu=(times, 2 * times),
        ),
        iteration(
            14 * times,
            20 * times,
            frozen=(2 * times, None),
            conv=(8 * times, 13 * times),
            relu=(times, 2 * times),
        ),
    ]
    return Measured(
        configuration=Configuration(onednn=onednn, threads=threads),
        label="optimized" if onednn else "default",
        facts={
            "layers": facts,
            "versions": {"torch": "2.8.0"},
            "device": "cpu",
            "notes": [],
            "winograd": onednn,
        },
        watched=watched,
        plain=[{"forward": 8 * times, "backward": 16 * times}],
    )


def test_all_rows_together_are_the_iteration() -> None:
    one = measured(onednn=True)
    layers = {layer.name: layer for layer in one.layers()}
    assert list(layers) == ["frozen", "conv", "relu", BETWEEN]
    assert one.total_ms == 12 + 20
    assert sum(layer.total_ms for layer in layers.values()) == pytest.approx(one.total_ms)
    assert sum(layer.share for layer in layers.values()) == pytest.approx(1)
    between = layers[BETWEEN]
    assert between.forward.mean == 3 and between.backward and between.backward.mean == 4


def test_a_layers_numbers_by_hand() -> None:
    layers = {layer.name: layer for layer in measured(onednn=True).layers()}
    conv, frozen, relu = layers["conv"], layers["frozen"], layers["relu"]
    assert (conv.forward.mean, conv.forward.median, conv.forward.deviation) == (6, 6, 2)
    assert conv.backward and (conv.backward.mean, conv.backward.deviation) == (14, 1)
    assert conv.share == 20 / 32 and conv.gflop == 3 and conv.gflop_per_s == 3 / 0.020
    assert frozen.backward is None and frozen.gflop == 0.5 and frozen.gflop_per_s == 0.5 / 0.002
    assert relu.gflop == 0 and relu.gflop_per_s is None


def test_what_watching_adds_is_against_the_next_unwatched_iteration() -> None:
    one = measured(onednn=True)
    assert one.plain_ms == 24 and one.watching_cost == 30 / 24 - 1
    assert one.convolving_share == (2 + 20) / 32


def test_engines_are_compared_with_all_else_equal() -> None:
    study = [measured(onednn=False, times=3), measured(onednn=True)]
    assert comparisons(study) == [
        "default engine (oneDNN off) 0.096 s, optimized (oneDNN on) 0.032 s: 3.00 times as fast"
    ]
    other = measured(onednn=True, threads=1)
    assert len(comparisons([*study, other])) == 1
    assert comparisons([measured(onednn=True, times=2), other]) == [
        "optimized: 2.00 times as fast as optimized"
    ]


def test_frozen_layers_and_convolutions_are_told() -> None:
    lines = sentences(SUBJECT, [measured(onednn=True)])
    assert any("convolutions take 69% of the iteration" in line for line in lines)
    assert any("Winograd's, of heads and pyramid" in line for line in lines)
    assert any("no backward pass (–): 1 layers, frozen to frozen" in line for line in lines)


def test_the_table_of_all_layers_adds_up() -> None:
    study = [measured(onednn=False, times=3), measured(onednn=True)]
    rows = list(csv.DictReader(layers_csv(study).splitlines()))
    assert tuple(rows[0]) == COLUMNS and len(rows) == 8
    for one in study:
        own = [row for row in rows if row["configuration"] == one.label]
        total = sum(float(row["forward_ms"]) + float(row["backward_ms"] or 0) for row in own)
        assert total == pytest.approx(one.total_ms, rel=1e-4)
    assert rows[0]["backward_ms"] == "" and rows[2]["gflop_per_s"] == ""


def test_json_holds_every_iteration() -> None:
    text = as_json(SUBJECT, [measured(onednn=True)], remarks=["a remark"], other_cores=0.5)
    content = json.loads(text)
    (one,) = content["configurations"]
    assert one["iterations_ms"] == [[10, 20], [14, 20]] and one["unwatched_median_ms"] == 24
    assert content["subject"]["batch"] == 4 and content["remarks"] == ["a remark"]
    assert one["between_layers_backward_ms"] == {"AddBackward0": 1.0}
    assert [layer["name"] for layer in one["layers"]][-1] == BETWEEN


def test_names_tell_what_differs_and_nothing_else() -> None:
    both = [Configuration(onednn=engine, threads=2) for engine in (False, True)]
    assert labels(both) == ["default", "optimized"]
    assert labels(both[1:]) == ["optimized"]
    one, two = (Configuration(onednn=True, threads=count) for count in (1, 2))
    assert labels([one, two]) == ["1 thread", "2 threads"]
    mixed = [one, Configuration(onednn=False, threads=1, memory="local", huge_pages=True)]
    assert labels(mixed) == [
        "optimized, memory as it is, small pages",
        "default, memory local, huge pages",
    ]


def test_the_chart_has_a_bar_for_each_layer_and_configuration(tmp_path: Path) -> None:
    from common.charts import as_svg
    from profiling.layers.report import draw_layers

    svg = as_svg(draw_layers([measured(onednn=False), measured(onednn=True)], title="a title"))
    for text in ("frozen Conv2d", "relu ReLU", BETWEEN, "default", "optimized", "a title", "–"):
        assert text in svg
