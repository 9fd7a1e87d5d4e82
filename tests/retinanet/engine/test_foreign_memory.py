"""Foreign memory reaches no result: NaN beside operands, in new memory and in scratch left behind.

oneDNN's BF16 kernels on AMX may read further than an operand and multiply what they find by zero,
which changes nothing unless it is NaN or infinite. So each operator is computed twice: with zeros
and with NaN in all that is not its own. The results must be equal to the last bit.

It says which instructions ran, and runs alone on any machine with torch, torchvision, pytest and a
C++ compiler: `python -m pytest --noconftest -c /dev/null FILE`.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from common.machine import bf16_flag, cpu_flags
from retinanet.engine import kernels as engine_kernels
from retinanet.engine.folded_forward import FoldedForward
from retinanet.engine.kernels import (
    ONLY_ONEDNN,
    PROCESSORS,
    ConvParams,
    Kernel,
    LayerKernels,
    Machine,
    choose_kernels,
    compute_outputs,
    get_conv_params,
    input_gradients,
    prepare_weight,
    weight_gradients,
)
from retinanet.engine.norm_relu import add_relu_, batch_norm, masked_sum_
from retinanet.engine.tile_convolution import Tiles, best_tiles
from retinanet.engine.winograd import convolve_levels, weight_gradient
from retinanet.loss.focal_kernel import focal_loss_operator
from retinanet.model.retinanet import RetinaNet
from tests.retinanet.engine.kernels import NAN, ZEROS, new_memory

pytestmark = pytest.mark.slow
BESIDE = 256 << 10
"""Bytes on either side of an operand: more than 32 pixels of 2,048 channels."""
CLASSES = 7  # With 9 anchors an odd number of channels, and no multiple of 32.
SIZES = [(1, 1), (1, 2), (3, 1), (1, 5), (2, 3), (7, 1), (4, 9)]  # of maps: 1 to 7 pixels, and 36


def between(value: Any, byte: int) -> Any:
    """Return a tensor of the same values and strides in memory that else has this byte.

    Memory between its values is foreign too. Other values are returned as they are.
    """
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.numel() == 0:
        return value
    steps = zip(value.shape, value.stride(), strict=True)
    span = value.element_size() * (1 + sum((size - 1) * step for size, step in steps))
    start = BESIDE + value.data_ptr() % 64
    memory = torch.full((start + span + BESIDE,), byte, dtype=torch.uint8)
    inside = memory[start : start + span].view(value.dtype).as_strided(value.shape, value.stride())
    # Dimensions of stride 0 have one place in memory, which is written once.
    own = tuple(slice(None, None if step else 1) for step in value.stride())
    inside[own].copy_(value.detach()[own])
    return inside


def all_nan(value: Any) -> Any:
    is_float = isinstance(value, Tensor) and value.is_floating_point()
    return torch.full_like(value, torch.nan) if is_float else value


BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(results: object) -> list[Tensor]:
    tensors = [leaf for leaf in tree_leaves(results) if isinstance(leaf, Tensor)]
    return [tensor.detach().view(BITS[tensor.element_size()]) for tensor in tensors]


def are_equal(first: object, second: object) -> bool:
    pairs = zip(bits(first), bits(second), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


class ForeignMemory(TorchDispatchMode):
    """Compute operators of BF16 with zeros and with NaN in foreign memory; keep which differ."""

    def __init__(self) -> None:
        super().__init__()
        self.leaks: list[str] = []
        self.operators: set[str] = set()
        """Those that were compared."""

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        inputs = (arguments, options or {})
        tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
        schema, name = function._schema, str(function)
        in_place = any(value.alias_info for value in (*schema.arguments, *schema.returns))
        has_bf16 = any(tensor.dtype == torch.bfloat16 for tensor in tensors)
        if not has_bf16 or in_place or "empty" in name:
            return function(*arguments, **inputs[1])
        results = []
        for byte in (ZEROS, NAN):
            if byte == NAN and ("conv" in name or "mm" in name or "hazard" in name):
                # oneDNN keeps scratch memory for the next call: what this one leaves there is NaN.
                arrays, named = tree_map(lambda value: between(all_nan(value), NAN), inputs)
                function(*arrays, **named)
            arrays, named = tree_map(lambda value, byte=byte: between(value, byte), inputs)
            with new_memory(byte):
                results.append(function(*arrays, **named))
        if not are_equal(*results):
            self.leaks.append(f"{name} {[list(tensor.shape) for tensor in tensors]}")
        self.operators.add(name)
        return results[0]


def assert_no_leak(compute: Callable[[], Any]) -> set[str]:
    """Compare all operators of a computation, and the whole of it; return those of BF16."""
    with new_memory(ZEROS):
        expected = compute()
    with ForeignMemory() as foreign:
        assert are_equal(expected, compute())
    assert not foreign.leaks
    with new_memory(NAN):  # the kernels that are no operators of torch
        assert are_equal(expected, compute())
    assert all(bool(tensor.isfinite().all()) for tensor in tree_leaves(expected))
    return foreign.operators


EMULATED, ONEDNN = "emulated AMX", "oneDNN"
MACHINES = {**PROCESSORS, EMULATED: Machine(Tiles.EMULATED), ONEDNN: ONLY_ONEDNN}


@pytest.fixture(
    params=[
        "AMX",
        "AVX-512 BF16",
        pytest.param(EMULATED, marks=[pytest.mark.exhaustive] * ("avx512_bf16" in cpu_flags())),
        ONEDNN,
    ]
)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Whose kernels are chosen; `oneDNN` is the processor's own, with AMX where it has it."""
    chosen = MACHINES[request.param]
    best = best_tiles()
    if chosen.tiles in (Tiles.AMX, Tiles.VECTORS) and (best is None or chosen.tiles < best):
        pytest.skip(f"the processor has no {request.param}")
    monkeypatch.setattr(engine_kernels, "machine_for", lambda *_: chosen)
    monkeypatch.setattr("retinanet.engine.folded_forward.machine_for", lambda *_: chosen)
    return chosen


@pytest.fixture(scope="module")
def model() -> RetinaNet:
    torch.manual_seed(0)
    network = RetinaNet(num_classes=CLASSES, trainable_layers=5)
    return network.to(memory_format=torch.channels_last)


def training_step(model: RetinaNet, images: Tensor, *, convolutions: str = "auto") -> list[Tensor]:
    """Return outputs and gradients; the loss of the classes is the focal one."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    outputs = FoldedForward(model, precision="bf16", convolutions=convolutions)(images)
    loss = torch.zeros(())
    for logits, deltas in zip(outputs.cls_logits, outputs.bbox_regression, strict=True):
        labels = torch.arange(logits.shape[1]).expand(logits.shape[:2]) % CLASSES
        of_classes, _ = focal_loss_operator(
            logits, labels, torch.ones(len(images)),
            alpha=0.25, gamma=2.0, reduce=True, with_gradient=True,
        )  # fmt: skip
        loss = loss + of_classes + deltas.float().square().mean()
    gradients = torch.autograd.grad(loss, parameters)
    return [*outputs.cls_logits, *outputs.bbox_regression, *gradients]


def test_every_operator_of_a_training_step(machine: Machine, model: RetinaNet) -> None:
    images = torch.randn(2, 3, 32, 40, generator=torch.Generator().manual_seed(1))
    operators = assert_no_leak(lambda: training_step(model, images))
    assert {"aten.convolution_backward.default", "retinanet.focal_loss.default"} <= operators
    assert machine is not ONLY_ONEDNN or "aten.mm.default" in operators


def test_every_operator_of_a_prediction(machine: Machine, model: RetinaNet) -> None:
    images = torch.randn(1, 3, 40, 32, generator=torch.Generator().manual_seed(2))

    def predict() -> list[Tensor]:
        with torch.inference_mode():
            outputs = FoldedForward(model, precision="bf16")(images)
        return [*outputs.cls_logits, *outputs.bbox_regression]

    operators = assert_no_leak(predict)
    assert {"aten.convolution.default", "mkldnn._convolution_pointwise.default"} & operators


def kinds_of_layers() -> list[tuple[tuple[int, ...], ConvParams]]:
    """Return shape of the weight and parameters of all different layers of the model."""
    with torch.device("meta"):
        network = RetinaNet(num_classes=CLASSES)
    layers = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    return list(dict.fromkeys((tuple(x.weight.shape), get_conv_params(x)) for x in layers))


def random_maps(channels: int, size: Sequence[int], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, *size, channels, generator=generator).bfloat16().permute(0, 3, 1, 2)


def layer_results(kernels: LayerKernels, byte: int) -> list[Tensor | None]:
    """Return outputs and gradients of a layer on maps of all sizes; foreign memory has the byte."""
    (outputs, width, *_), params = kernels.shape, kernels.params
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(kernels.shape, generator=generator)
    weight = between(weight.to(memory_format=torch.channels_last), byte)
    scale, bias = (
        between(torch.randn(outputs, generator=generator), byte) for _ in ("scale", "bias")
    )
    levels, gradients = [], []
    for seed, size in enumerate(SIZES):
        steps = [-(-length // step) for length, step in zip(size, params.stride, strict=True)]
        levels.append(between(random_maps(width * params.groups, size, seed).relu(), byte))
        gradients.append(between(random_maps(outputs, steps, 100 + seed), byte))
    with new_memory(byte):
        if kernels.forward is Kernel.WINOGRAD:
            maps = convolve_levels(levels, weight, bias, relu=True)
            back = convolve_levels(gradients, weight, gates=levels, backward=True)
            return [*maps, *back, *weight_gradient(levels, gradients)]
        ready, kept = prepare_weight(weight, scale, kernels, torch.bfloat16, for_gradients=True)
        values = between(ready if isinstance(ready, Tensor) else ready.values, byte)
        ready = values if isinstance(ready, Tensor) else ready._replace(values=values)
        kept = between(kept, byte)
        maps = compute_outputs(levels, ready, bias, kernels, relu=True)
        back = input_gradients(levels, gradients, kept, kernels, scale=scale, gated=True)
        return [*maps, *back, *weight_gradients(levels, gradients, kept, kernels, scale=scale)]


@pytest.mark.parametrize("few_pixels", [False, True], ids=["any", "few"])
@pytest.mark.parametrize(("shape", "params"), kinds_of_layers(), ids=str)
def test_layers_on_maps_of_few_pixels(
    machine: Machine, shape: tuple[int, ...], params: ConvParams, few_pixels: bool
) -> None:
    kernels = choose_kernels(shape, params, machine, few_pixels=few_pixels)
    if machine is not ONLY_ONEDNN and set(kernels[:3]) == {Kernel.ONEDNN}:
        return  # the same as with ONLY_ONEDNN
    if few_pixels and kernels == choose_kernels(shape, params, machine):
        return  # the same as with any number of them
    clean, among_nan = (layer_results(kernels, byte) for byte in (ZEROS, NAN))
    assert are_equal(clean, among_nan)
    assert all(bool(tensor.isfinite().all()) for tensor in tree_leaves(clean))


@pytest.mark.parametrize("outputs", [1, 9, 36, 63, 2048])
@pytest.mark.parametrize("pixels", [*range(1, 8), 31, 33, 65])
def test_weight_gradients_of_1x1(pixels: int, outputs: int) -> None:
    """Products over pixels, whose number is what oneDNN sums over."""
    level, gradient = random_maps(64, (pixels, 1), 1), random_maps(outputs, (pixels, 1), 2)
    kernels = choose_kernels((outputs, 64, 1, 1), engine_kernels.POINTWISE)
    weight = torch.zeros(kernels.shape, dtype=torch.bfloat16)
    assert_no_leak(lambda: weight_gradients([level], [gradient], weight, kernels))


def test_sums_and_norms() -> None:
    maps, other, gate = (random_maps(37, (3, 5), seed) for seed in range(3))
    norm = nn.BatchNorm2d(37)

    def compute(byte: int) -> list[Tensor]:
        first, second, mask = (between(tensor, byte) for tensor in (maps, other, gate))
        with new_memory(byte):
            results = [masked_sum_([between(first, byte), second, second], mask)]
            results.append(add_relu_(between(first, byte), second))
            normed = batch_norm(first.requires_grad_(), norm, second, relu=True)
            gradient = between(mask, byte)
            return [*results, normed, *torch.autograd.grad(normed, [first, norm.weight], gradient)]

    assert are_equal(compute(ZEROS), compute(NAN))


def leaking_product(columns: Tensor, other: Tensor) -> Tensor:
    """Multiply [K, M], turned, by [K, N], reading up to a multiple of 32 rows of the first."""
    summed = -(-len(columns) // 32) * 32
    rows = columns.as_strided((summed, columns.shape[1]), columns.stride())
    return rows.t() @ nn.functional.pad(other, (0, 0, 0, summed - len(other)))


def product_with_unwritten_memory(columns: Tensor, other: Tensor) -> Tensor:
    product = columns.t() @ other
    return product + 0 * torch.empty(product.shape, dtype=product.dtype)


LEFT_BEHIND = torch.zeros(8, 16)


def product_with_scratch_left_behind(columns: Tensor, other: Tensor) -> Tensor:
    product = columns.t() @ other
    before = 0 * LEFT_BEHIND
    LEFT_BEHIND.copy_(product)
    return product + before.to(product.dtype)


@pytest.mark.parametrize(
    "leaking",
    [leaking_product, product_with_unwritten_memory, product_with_scratch_left_behind],
)
def test_leaks_are_found(leaking: Callable[[Tensor, Tensor], Tensor]) -> None:
    name = f"hazard::{leaking.__name__}"
    operator = torch.library.custom_op(name, leaking, mutates_args=())
    columns, other = torch.randn(5, 8).bfloat16(), torch.randn(5, 16).bfloat16()
    with new_memory(ZEROS), ForeignMemory() as foreign:
        operator(columns, other)
        columns.t() @ other
    assert foreign.leaks == [f"hazard.{leaking.__name__}.default [[5, 8], [5, 16]]"]


def test_instructions_that_ran(model: RetinaNet, capfd: pytest.CaptureFixture[str]) -> None:
    """On a processor with AMX, oneDNN must have used it: else nothing is proved there."""
    with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
        training_step(model, torch.randn(2, 3, 32, 40), convolutions="onednn")
    ctypes.CDLL(None).fflush(None)  # what C has printed
    lines = capfd.readouterr().out.splitlines()
    calls = [line.split(",") for line in lines if ",exec," in line and "bf16" in line]
    names = {f"{fields[5]} {fields[6]}" for fields in calls}
    flag = bf16_flag(cpu_flags())
    with capfd.disabled():
        print(f"\nprocessor: {flag}; oneDNN: {', '.join(sorted(names))}; own: {best_tiles()!r}")
    assert any("convolution" in name for name in names)
    assert flag != "amx_bf16" or any("amx" in name for name in names)
