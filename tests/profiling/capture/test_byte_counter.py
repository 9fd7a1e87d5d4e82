"""Bytes of operators against sums worked out by hand."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from profiling.capture.byte_counter import ByteCounter, CurrentPhase
from retinanet.engine.kernel_calls import own_kernel, tensor_bytes
from retinanet.engine.optimizers import Lamb
from retinanet.loss.focal import level_loss

X = torch.zeros(2, 4, 6, 8)  # 384 elements
SIZE = 4 * 384
HALF = torch.ones(1, 4, 6, 8)
COLUMNS = torch.tensor([0, 1])


def count_bytes(run: Callable[[], object]) -> tuple[int, int]:
    with ByteCounter() as counter:
        run()
    values = counter.moved.values()
    return sum(moved.read for moved in values), sum(moved.written for moved in values)


CASES: dict[str, tuple[Callable[[], object], int, int]] = {
    "sum of two": (lambda: X + torch.ones_like(X), 2 * SIZE, SIZE + SIZE),
    "one tensor twice is read once": (lambda: X * X, SIZE, SIZE),
    "in place": (X.relu_, SIZE, SIZE),
    "overwritten": (X.zero_, 0, SIZE),
    "copied over": (lambda: X.copy_(HALF), SIZE // 2, SIZE),
    "out": (lambda: torch.mul(X, 2.0, out=torch.empty_like(X)), SIZE, SIZE),
    "cast": (X.bfloat16, SIZE, SIZE // 2),
    "expanded": (lambda: X[:1].expand(5, 4, 6, 8).clone(), SIZE // 2, 5 * SIZE // 2),
    "a broadcast scale": (lambda: X * torch.empty(4, 1, 1), SIZE + 16, SIZE),
    "views and shapes": (lambda: X.permute(1, 0, 2, 3).view(4, 2, 48)[1:].mT, 0, 0),
    "allocations": (lambda: X.new_empty(7).resize_(3), 0, 0),
    "like": (lambda: torch.full_like(X, 3.0), 0, SIZE),
    "picked": (lambda: X.index_select(3, COLUMNS), 16 + 384, 384),
    "a number": (X[0, 0, 0, 0].item, 4, 0),
    "concatenation": (lambda: torch.cat([X, X[:1]]), SIZE + SIZE // 2, SIZE + SIZE // 2),
}


@pytest.mark.parametrize("case", CASES)
def test_bytes_of_operators(case: str) -> None:
    run, read, written = CASES[case]
    assert count_bytes(run) == (read, written)


@pytest.mark.parametrize("needs_input", [True, False])
def test_convolution_backward_reads_what_its_gradients_need(needs_input: bool) -> None:
    images = torch.zeros(1, 2, 5, 5, requires_grad=needs_input)
    weight = torch.zeros(3, 2, 3, 3, requires_grad=True)
    bias = torch.zeros(3, requires_grad=not needs_input)
    output = F.conv2d(images, weight, bias)
    gradient = torch.zeros_like(output)
    with ByteCounter() as counter:
        output.backward(gradient)
    (bytes_moved,) = [
        moved for call, moved in counter.moved.items() if "convolution" in call.operator
    ]
    output_bytes, image_bytes, weight_bytes = 4 * 27, 4 * 50, 4 * 54
    if needs_input:
        assert (bytes_moved.read, bytes_moved.written) == (
            output_bytes + image_bytes + weight_bytes,
            image_bytes + weight_bytes,
        )
    else:
        assert (bytes_moved.read, bytes_moved.written) == (
            output_bytes + image_bytes,
            weight_bytes + 12,
        )


def test_own_kernels_record_bytes_only_for_a_listener() -> None:
    with own_kernel("without a listener", (X,), (X,)):
        pass
    with ByteCounter(lambda: "loss") as counter, own_kernel("kernel", (X, X[:1]), (X[0],)):
        pass
    assert {
        call: (moved.calls, moved.read, moved.written) for call, moved in counter.moved.items()
    } == {("loss", "kernel"): (1, SIZE + SIZE // 2, SIZE // 2)}


def test_custom_operator_counts_once_by_its_arguments() -> None:
    logits = torch.zeros(1, 8, 4, dtype=torch.bfloat16, requires_grad=True)
    classes, weights = torch.zeros(1, 8, dtype=torch.int64), torch.ones(1)
    with ByteCounter() as counter:
        level_loss("kernel", logits, classes, weights, alpha=0.25, gamma=2.0)
    (call,) = counter.moved
    assert call.operator == "retinanet::focal_loss"
    assert (counter.moved[call].read, counter.moved[call].written) == (64 + 64 + 4, 64 + 4)


def test_optimizer_reads_four_tensors_of_a_weight_and_writes_three() -> None:
    weight = nn.Parameter(torch.zeros(10, 10))
    weight.grad = torch.ones_like(weight)
    for optimizer, name in (
        (Lamb([weight], lr=0.1), "lamb_step"),
        (torch.optim.Adam([weight], lr=0.1, fused=True), "aten::_fused_adam_"),
    ):
        optimizer.step()
        with ByteCounter() as counter:
            optimizer.step()
        (bytes_moved,) = [moved for call, moved in counter.moved.items() if call.operator == name]
        scalars = 4 if name.startswith("aten") else 0  # the number of the step
        assert (bytes_moved.read, bytes_moved.written) == (4 * 400 + scalars, 3 * 400)


def expected_step_bytes(layers: int, images: int, channels: int, pixels: int) -> int:
    """Return the bytes of a step of 1×1 convolutions, each followed by a ReLU in place."""
    features, weight = 4 * images * channels * pixels, 4 * channels**2
    forward = 2 * features + weight + 2 * features  # convolution; ReLU
    backward_relu = 3 * features
    gradients = 2 * features + weight  # of the weight, for which no weight is read
    to_input = weight + features  # from the second layer on
    return layers * (forward + backward_relu + gradients) + (layers - 1) * to_input


def test_bytes_of_a_training_step() -> None:
    model = nn.Sequential(
        nn.Conv2d(8, 8, 1, bias=False), nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 1, bias=False), nn.ReLU(inplace=True),
    )  # fmt: skip
    images, phases = torch.rand(2, 8, 5, 5), CurrentPhase()
    gradient = torch.rand(2, 8, 5, 5)
    with ByteCounter(lambda: phases.name) as counter:
        with phases.phase("forward"):
            output: Tensor = model(images)
        with phases.phase("backward"):
            output.backward(gradient)
    total = sum(moved.read + moved.written for moved in counter.moved.values())
    assert total == expected_step_bytes(layers=2, images=2, channels=8, pixels=25)
    assert {call.phase for call in counter.moved} == {"forward", "backward"}
    with ByteCounter() as again:
        model(images).backward(gradient)
    # Gradients exist already and are accumulated: two tensors are read and one is written.
    added = 2 * 3 * 4 * 64
    assert sum(moved.read + moved.written for moved in again.moved.values()) == total + added


def test_sizes_count_each_element_once() -> None:
    assert tensor_bytes(torch.zeros(3, 1).expand(3, 100)) == 12
    assert tensor_bytes(torch.zeros(0, 4)) == 0
    assert tensor_bytes(torch.zeros(2, 3, dtype=torch.bfloat16).t()) == 12
