"""Layers are timed where they work, and compute what they always do."""

import pytest
import torch
from torch import nn

from common.errors import InputError
from profiling.bench.recipes.step import flop_by_layer
from profiling.bench.variant import Subject
from profiling.layers.timing import (
    Recorder,
    TimedModel,
    clock_of,
    facts_of,
    plain_iteration,
    timed_model,
    watched_iteration,
)
from tests.profiling.layers.small_networks import NAP, small_model

CPU = clock_of("cpu")


def subject(model: str, *, precision: str = "float32") -> Subject:
    return Subject(model=model, batch=2, image_size=64, precision=precision, device="cpu")


def gradients(timed: TimedModel) -> dict[str, torch.Tensor]:
    return {
        name: parameter.grad.clone()
        for name, parameter in timed.network.named_parameters()
        if parameter.grad is not None
    }


def test_time_is_that_of_the_layer_that_spends_it() -> None:
    timed = small_model()
    recorder = Recorder(timed.network, CPU)
    found = watched_iteration(timed, recorder)
    layers = found["layers"]
    assert list(layers) == ["frozen", "first", "relu", "shared", "sleeping", "loss"]
    assert all(milliseconds >= NAP * 1000 for milliseconds in layers["sleeping"])
    assert layers["frozen"][1] is None and layers["frozen"][0] > 0
    others = [layers[name] for name in layers if name not in ("sleeping", "frozen")]
    assert all(pair[1] is not None for pair in others)
    assert {"AddBackward0", "CosBackward0"} == found["nodes"].keys()


def test_layers_never_have_more_than_the_whole() -> None:
    timed = small_model()
    recorder = Recorder(timed.network, CPU)
    for _ in range(3):
        found = watched_iteration(timed, recorder)
        for place, work in enumerate(("forward", "backward")):
            of_layers = sum(pair[place] or 0.0 for pair in found["layers"].values())
            of_nodes = sum(found["nodes"].values()) if work == "backward" else 0.0
            assert 0 < of_layers + of_nodes <= found[work]


def test_every_piece_of_backward_work_belongs_to_one_layer() -> None:
    timed = small_model()
    recorder = Recorder(timed.network, CPU)
    watched_iteration(timed, recorder)
    work = [(span.layer, span.work) for span in recorder.spans if span.work != "forward"]
    adding = "torch::autograd::AccumulateGrad"
    # The shared layer runs twice, and the gradients of its weights are added up once.
    assert work.count(("shared", "AddmmBackward0")) == 2
    assert work.count(("shared", adding)) == 2 and work.count(("first", adding)) == 2
    assert work.count(("relu", "ReluBackward0")) == 2
    assert work.count(("sleeping", "SleepBackward")) == 1
    assert [name for layer, name in work if layer == "loss"] == ["SumBackward0"]


def test_spans_do_not_overlap_and_lie_inside_the_iteration() -> None:
    timed = small_model()
    recorder = Recorder(timed.network, CPU)
    watched_iteration(timed, recorder)
    for place, span in enumerate(recorder.spans[1:], start=1):
        assert recorder.spans[place - 1].end <= span.start <= span.end


def test_hooks_are_gone_afterwards() -> None:
    timed = small_model()
    recorder = Recorder(timed.network, CPU)
    watched_iteration(timed, recorder)
    spans = len(recorder.spans)
    whole = plain_iteration(timed, CPU)
    assert len(recorder.spans) == spans
    assert whole["backward"] >= NAP * 1000
    for module in timed.network.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks


@pytest.mark.parametrize(("model", "precision"), [("alexnet", "float32"), ("retinanet", "bf16")])
def test_watching_changes_no_gradient(model: str, precision: str) -> None:
    timed = timed_model(subject(model, precision=precision), onednn=True)
    recorder = Recorder(timed.network, CPU)
    norms = {name: value.clone() for name, value in timed.network.state_dict().items()}
    torch.manual_seed(1)  # of alexnet's dropout
    plain_iteration(timed, CPU)
    expected = gradients(timed)
    timed.network.load_state_dict(norms)
    torch.manual_seed(1)
    watched_iteration(timed, recorder)
    found = gradients(timed)
    assert expected.keys() == found.keys() and expected
    for name, gradient in expected.items():
        assert torch.equal(gradient, found[name]), name


def test_retinanets_frozen_layers_have_no_backward_pass() -> None:
    timed = timed_model(subject("retinanet", precision="bf16"), onednn=True)
    recorder = Recorder(timed.network, CPU)
    layers = watched_iteration(timed, recorder)["layers"]
    frozen = [name for name, pair in layers.items() if pair[1] is None]
    prefixes = ("backbone.body.conv1", "backbone.body.layer1.")
    assert frozen == [name for name in layers if name.startswith(prefixes)]
    assert len(frozen) == 11
    convolutions = {
        name for name, module in timed.network.named_modules() if isinstance(module, nn.Conv2d)
    }
    assert layers.keys() == convolutions | {"loss"}
    facts = facts_of(subject("retinanet"), timed, list(layers), recorder, notes=[])
    by_name = {layer["name"]: layer for layer in facts["layers"]}
    for name in convolutions:
        assert by_name[name]["gflop_forward"] > 0
        assert (by_name[name]["gflop_backward"] == 0) == (name in frozen)
        assert by_name[name]["trains"] == (name not in frozen)
    assert next(iter(by_name)) == "backbone.body.conv1" and list(by_name)[-1] == "loss"


def test_a_layer_that_runs_several_times_says_so() -> None:
    timed = timed_model(subject("resnet50"), onednn=True)
    recorder = Recorder(timed.network, CPU)
    layers = watched_iteration(timed, recorder)["layers"]
    facts = facts_of(subject("resnet50"), timed, list(layers), recorder, notes=["a note"])
    calls = {layer["name"]: layer["calls"] for layer in facts["layers"]}
    assert calls["layer1.0.relu"] == 3 and calls["relu"] == calls["layer1.0.conv1"] == 1
    assert facts["notes"] == ["a note"] and facts["versions"]["torch"]


def test_arithmetic_of_a_fully_connected_layer_by_hand() -> None:
    network = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2))
    flop = flop_by_layer(network, lambda: network(torch.zeros(3, 5)))
    first, last = 2 * 3 * 5 * 7, 2 * 3 * 7 * 2
    assert {name: (one.forward, one.backward) for name, one in flop.items()} == {
        "0": (first, first),  # no gradient to the input
        "2": (last, 2 * last),
    }


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_its_clock_is_one_line() -> None:
    with pytest.raises(InputError, match=r"^--device: cuda: torch finds no GPU"):
        clock_of("cuda")
