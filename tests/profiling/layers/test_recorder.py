"""Layers are timed where they compute, and the results stay the same."""

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from profiling.bench.recipes.step import flop_by_layer
from profiling.bench.variant import Subject
from profiling.layers.timing import (
    Recorder,
    TimedModel,
    collect_facts,
    make_clock,
    plain_iteration,
    timed_model,
    watched_iteration,
)
from tests.profiling.layers.samples import NAP, small_model

CPU = make_clock("cpu")


class Watched(NamedTuple):
    """A network after one watched iteration."""

    timed: TimedModel
    recorder: Recorder
    iteration: dict[str, Any]


def watch(timed: TimedModel) -> Watched:
    recorder = Recorder(timed.network, CPU)
    return Watched(timed, recorder, watched_iteration(timed, recorder))


@pytest.fixture(scope="module")
def small() -> Watched:
    return watch(small_model())


@pytest.fixture(scope="module")
def retinanet() -> Iterator[TimedModel]:
    yield timed_model(subject("retinanet", batch=1, precision="bf16"), onednn=True)


def subject(model: str, *, batch: int = 2, precision: str = "float32") -> Subject:
    return Subject(model=model, batch=batch, image_size=64, precision=precision, device="cpu")


def gradients(timed: TimedModel) -> dict[str, torch.Tensor]:
    return {
        name: parameter.grad.clone()
        for name, parameter in timed.network.named_parameters()
        if parameter.grad is not None
    }


def test_time_belongs_to_the_layer_that_spends_it(small: Watched) -> None:
    layers = small.iteration["layers"]
    assert list(layers) == ["frozen", "first", "relu", "shared", "sleeping", "loss"]
    assert all(milliseconds >= NAP * 1000 for milliseconds in layers["sleeping"])
    assert layers["frozen"][1] is None and layers["frozen"][0] > 0
    others = [layers[name] for name in layers if name not in ("sleeping", "frozen")]
    assert all(pair[1] is not None for pair in others)
    assert small.iteration["nodes"].keys() == {"AddBackward0", "CosBackward0"}


def test_layers_and_nodes_take_no_longer_than_the_iteration(small: Watched) -> None:
    for index, work in enumerate(("forward", "backward")):
        total = sum(pair[index] or 0.0 for pair in small.iteration["layers"].values())
        if work == "backward":
            total += sum(small.iteration["nodes"].values())
        assert 0 < total <= small.iteration[work]


def test_every_backward_node_belongs_to_one_layer(small: Watched) -> None:
    work = [(span.layer, span.work) for span in small.recorder.spans if span.work != "forward"]
    adding = "torch::autograd::AccumulateGrad"
    # The shared layer runs twice, and the gradients of its weights are added up once.
    assert work.count(("shared", "AddmmBackward0")) == 2
    assert work.count(("shared", adding)) == 2 and work.count(("first", adding)) == 2
    assert work.count(("relu", "ReluBackward0")) == 2
    assert work.count(("sleeping", "SleepBackward")) == 1
    assert [name for layer, name in work if layer == "loss"] == ["SumBackward0"]


def test_spans_do_not_overlap(small: Watched) -> None:
    spans = small.recorder.spans
    for before, span in pairwise(spans):
        assert before.end <= span.start <= span.end


def test_calls_of_a_layer_are_counted(small: Watched) -> None:
    # The arithmetic is that of the subject's model, whose layers have other names.
    facts = collect_facts(subject("alexnet"), small.timed, small.recorder, notes=["a note"])
    calls = {layer["name"]: layer["calls"] for layer in facts["layers"]}
    assert calls["relu"] == calls["shared"] == 2 and calls["first"] == 1
    assert facts["notes"] == ["a note"] and facts["versions"]["torch"]


def test_hooks_are_removed(small: Watched) -> None:
    spans = len(small.recorder.spans)
    start = time.perf_counter()
    iteration = plain_iteration(small.timed, CPU)
    assert NAP * 1000 <= iteration["backward"] <= (time.perf_counter() - start) * 1000
    assert len(small.recorder.spans) == spans
    for module in small.timed.network.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks


def check_gradients(timed: TimedModel) -> None:
    """Compare the gradients of an iteration with and without hooks."""
    norms = {name: value.clone() for name, value in timed.network.state_dict().items()}
    torch.manual_seed(1)  # for alexnet's dropout
    plain_iteration(timed, CPU)
    expected = gradients(timed)
    timed.network.load_state_dict(norms)
    torch.manual_seed(1)
    watch(timed)
    actual = gradients(timed)
    assert expected.keys() == actual.keys() and expected
    for name, gradient in expected.items():
        assert torch.equal(gradient, actual[name]), name


def test_watching_changes_no_gradient() -> None:
    check_gradients(small_model())


@pytest.mark.slow
def test_watching_changes_no_gradient_of_retinanet(retinanet: TimedModel) -> None:
    check_gradients(retinanet)


@pytest.mark.exhaustive
def test_watching_changes_no_gradient_with_dropout() -> None:
    check_gradients(timed_model(subject("alexnet"), onednn=True))


@pytest.mark.slow
def test_retinanets_frozen_layers_have_no_backward_pass(retinanet: TimedModel) -> None:
    _, recorder, iteration = watch(retinanet)
    layers = iteration["layers"]
    frozen = [name for name, pair in layers.items() if pair[1] is None]
    prefixes = ("backbone.body.conv1", "backbone.body.layer1.")
    assert frozen == [name for name in layers if name.startswith(prefixes)]
    assert len(frozen) == 11
    convolutions = {
        name for name, module in retinanet.network.named_modules() if isinstance(module, nn.Conv2d)
    }
    assert layers.keys() == convolutions | {"loss"}
    facts = collect_facts(subject("retinanet"), retinanet, recorder, notes=[])
    by_name = {layer["name"]: layer for layer in facts["layers"]}
    for name in convolutions:
        assert by_name[name]["gflop_forward"] > 0
        assert (by_name[name]["gflop_backward"] == 0) == (name in frozen)
        assert by_name[name]["trains"] == (name not in frozen)
    assert next(iter(by_name)) == "backbone.body.conv1" and list(by_name)[-1] == "loss"


def test_flop_of_fully_connected_layers() -> None:
    network = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2))
    flop = flop_by_layer(network, lambda: network(torch.zeros(3, 5)))
    first, last = 2 * 3 * 5 * 7, 2 * 3 * 7 * 2
    assert {name: (layer.forward, layer.backward) for name, layer in flop.items()} == {
        "0": (first, first),  # no gradient of the input
        "2": (last, 2 * last),
    }
