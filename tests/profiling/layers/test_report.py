"""A study of known numbers, and its tables, sentences and chart."""

import csv
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from common.charts import as_svg
from common.console import make_console
from profiling.bench.variant import Run, Subject, Variant
from profiling.bench.worker_pool import WorkerPool
from profiling.layers import study
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
    results = [measured(onednn=False, factor=3), measured(onednn=True)]
    (line,) = comparisons(results)
    assert "0.096 s" in line and "0.032 s" in line and "3.00 times as fast" in line
    other = measured(onednn=True, threads=1)
    assert len(comparisons([*results, other])) == 1
    (line,) = comparisons([measured(onednn=True, factor=2), other])
    assert "2.00 times as fast" in line


def test_sentences_name_convolutions_winograd_and_frozen_layers() -> None:
    text = "\n".join(sentences(SUBJECT, [measured(onednn=True)]))
    assert "convolutions take 69%" in text and "Winograd" in text
    assert "1 layers, frozen to frozen" in text


def test_table_of_all_layers_adds_up() -> None:
    results = [measured(onednn=False, factor=3), measured(onednn=True)]
    rows = list(csv.DictReader(layers_csv(results).splitlines()))
    assert tuple(rows[0]) == COLUMNS and len(rows) == 8
    for result in results:
        layers = [row for row in rows if row["configuration"] == result.label]
        total = sum(float(row["forward_ms"]) + float(row["backward_ms"] or 0) for row in layers)
        assert total == pytest.approx(result.total_ms, rel=1e-4)
    assert rows[0]["backward_ms"] == "" and rows[2]["gflop_per_s"] == ""


def test_json_has_every_iteration() -> None:
    content = as_json(SUBJECT, [measured(onednn=True)], remarks=["a remark"], other_cores=0.5)
    (only,) = content["configurations"]
    assert only["iterations_ms"] == [[10, 20], [14, 20]] and only["unwatched_median_ms"] == 24
    assert content["subject"]["batch"] == 4 and content["remarks"] == ["a remark"]
    assert only["between_layers_backward_ms"] == {"AddBackward0": 1.0}
    assert [layer["name"] for layer in only["layers"]][-1] == BETWEEN


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


class StandIn:
    """A worker whose iterations take 4 s with hooks and 3 s without, and need all memory."""

    rss_mb = 100.0
    facts: Mapping[str, Any] = {}

    def __init__(self, asked: list[tuple[str, str]], variant: Variant) -> None:
        self.asked, self.name = asked, variant.name
        asked.append((self.name, "start"))

    def run(self) -> Run:
        self.asked.append((self.name, "run"))
        return Run(seconds=3.0, page_faults=0, rss_mb=100.0, peak_rss_mb=200.0, details={})

    def ask(self, question: str) -> dict[str, Any]:
        self.asked.append((self.name, question))
        if question == "primitives":
            return {"seconds": {"reorder": 0.5}}
        done, count = map(int, question.removeprefix("measure ").split())
        plain = [{"forward": 1000, "backward": 2000}] * len(range(-done % 5, count, 5))
        watched = [make_iteration(1500, 2500, (1, 1), 1)] * count
        return {"watched": watched, "plain": plain, "peak_mb": 9.0, "huge_pages_mb": 0.0}

    def close(self) -> None:
        self.asked.append((self.name, "end"))


def test_configurations_take_turns_and_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(study, "start", lambda s, n, variant, w: StandIn(asked, variant))
    monkeypatch.setattr(study, "WorkerPool", partial(WorkerPool, available=lambda: 0.0))
    both = [Configuration(onednn=engine, threads=2) for engine in (False, True)]
    results = study.run_study(SUBJECT, both, 6, 1, make_console(quiet=True))
    for result in results:
        assert len(result.watched) == 6 and result.primitives == {"reorder": 0.5}
        # Of the first and of the sixth iteration, whichever worker took them.
        assert len(result.plain) == 2 and result.watching_cost == pytest.approx(1 / 3)
    questions = [question for name, question in asked if name == "default"]
    turn = ["start", "run", "run"]  # warm-up, then one after the other's work
    assert questions[:2] == ["start", "run"] and questions.count("end") == 6
    # One iteration at first, then about 10 s of the slowest.
    for done, count in ((0, 1), (1, 2), (3, 2), (5, 1)):
        place = questions.index(f"measure {done} {count}")
        assert questions[place - 3 : place] == turn


@pytest.mark.slow
def test_chart_has_a_bar_for_each_layer_and_configuration() -> None:
    svg = as_svg(draw_layers([measured(onednn=False), measured(onednn=True)], title="a title"))
    for text in ("frozen Conv2d", "relu ReLU", BETWEEN, "default", "optimized", "a title", "–"):
        assert text in svg
