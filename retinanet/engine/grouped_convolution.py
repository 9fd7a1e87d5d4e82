"""Grouped convolutions by csrc/grouped_convolution.cpp and grouped_weight_gradient.cpp.

Without AMX, AVX-512 BF16 computes outputs and input gradients by csrc/grouped_rows.cpp.
Maps are BF16 [N, C, H, W]; what is not in channels_last memory is copied. The convolutions are 3×3
with padding 1 and as many output as input channels, in groups of 4, 8, 16 or 32 channels; weights
are [C, group_width, 3, 3], strides 1 or 2. In all functions `tiles` computes the tile instructions,
and each raises NativeLibraryError where its kernel cannot be compiled or loaded.
"""

import torch
from torch import Tensor

from retinanet.engine.kernel_calls import (
    CSRC,
    Kernels,
    c_struct,
    channels_last,
    channels_last_or_none,
    empty_maps,
    scratch_bytes,
)
from retinanet.engine.tile_convolution import Tiles

CONVOLUTION = Kernels(
    CSRC / "grouped_convolution.cpp",
    grouped_convolution_bytes="Pii->q",
    grouped_convolve="PPPPiii",
)
ROWS = Kernels(CSRC / "grouped_rows.cpp", grouped_rows_bytes="P->q", grouped_rows_convolve="PPPPii")
WEIGHT_GRADIENT = Kernels(
    CSRC / "grouped_weight_gradient.cpp",
    grouped_gradient_bytes="Pi->q",
    grouped_weight_gradient="PPPPPii",
)
_shape_record = c_struct(
    "q images channels group_width in_height in_width out_height out_width stride"
)
"""`GroupedShape` of grouped_shape.h."""
_maps_record = c_struct("P source result gate bias", "i relu")  # `ConvolutionMaps`, also there
_gradient_record = c_struct("P features gradient")  # `Maps` as grouped_weight_gradient.cpp has it


def grouped_convolution(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    stride: int,
    relu: bool = False,
    tiles: Tiles,
) -> Tensor:
    """Return the output, [N, C, H', W'] in channels_last memory, after an optional ReLU.

    `weight` is BF16. NaN passes the ReLU.
    """
    features = channels_last(features)
    images, channels, height, width = features.shape
    # No view: what an autograd function returns may be changed in place.
    output = empty_maps(images, channels, (height - 1) // stride + 1, (width - 1) // stride + 1)
    # The sums of the kernel begin with the bias, so there is always one.
    bias = torch.zeros(channels) if bias is None else bias.detach().float().contiguous()
    work = _maps_record(features, output, None, bias, relu)
    shape = _shape(features, output, weight.shape[1], stride)
    read = (features, weight, bias)
    _convolve("grouped_convolution", shape, work, weight, read=read, written=output, tiles=tiles)
    return output


def grouped_input_gradient(
    gradient: Tensor,
    weight: Tensor,
    size: torch.Size,
    gate: Tensor | None = None,
    *,
    stride: int,
    tiles: Tiles,
) -> Tensor:
    """Return the gradient of the input, of `size`, from the output's; in channels_last memory.

    `weight` is BF16. The gradient is zero where `gate`, of the same size, is closed.
    """
    gradient, gate = channels_last(gradient), channels_last_or_none(gate)
    result = empty_maps(*size)
    no_bias = torch.zeros(size[1])
    work = _maps_record(gradient, result, gate, no_bias, False)
    shape = _shape(result, gradient, weight.shape[1], stride)
    read = (gradient, weight, gate)
    _convolve("grouped_input_gradient", shape, work, weight, read=read, written=result, tiles=tiles)
    return result


def _convolve(
    kernel: str,
    shape: bytes,
    work: bytes,
    weight: Tensor,
    *,
    read: tuple[Tensor | None, ...],
    written: Tensor,
    tiles: Tiles,
) -> None:
    """Compute outputs or input gradients; the names of the two kernels are those for listeners."""
    weight, threads = channels_last(weight.detach()), torch.get_num_threads()
    backward = kernel == "grouped_input_gradient"
    if tiles is Tiles.VECTORS:
        scratch = scratch_bytes(ROWS.library().grouped_rows_bytes(shape))
        ROWS.call(
            "grouped_rows_convolve", shape, work, weight, scratch, backward, threads,
            read=read, written=(written,), kernel=kernel,
        )  # fmt: skip
        return
    size = CONVOLUTION.library().grouped_convolution_bytes(shape, backward, threads)
    scratch = scratch_bytes(size)
    CONVOLUTION.call(
        "grouped_convolve", shape, work, weight, scratch, backward, tiles, threads,
        read=read, written=(written,), kernel=kernel,
    )  # fmt: skip


def grouped_weight_gradient(
    features: Tensor,
    gradient: Tensor,
    *,
    group_width: int,
    stride: int,
    tiles: Tiles,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of weight, float32 in channels_last memory, and bias, [C].

    `gradient` is that of the output.
    """
    features, gradient = channels_last(features), channels_last(gradient)
    channels = features.shape[1]
    shape = _shape(features, gradient, group_width, stride)
    maps = _gradient_record(features, gradient)
    # Laid out as the weight: DDP and the optimizers would otherwise copy it.
    grad_weight = torch.empty(channels, 3, 3, group_width).permute(0, 3, 1, 2)
    grad_bias = torch.empty(channels)
    threads = torch.get_num_threads()
    size = WEIGHT_GRADIENT.library().grouped_gradient_bytes(shape, threads)
    scratch = scratch_bytes(size)
    WEIGHT_GRADIENT.call(
        "grouped_weight_gradient",
        shape, maps, grad_weight, grad_bias, scratch, tiles, threads,
        read=(features, gradient), written=(grad_weight, grad_bias),
    )  # fmt: skip
    return grad_weight, grad_bias


def _shape(features: Tensor, output: Tensor, group_width: int, stride: int) -> bytes:
    images, channels, *in_size = features.shape
    return _shape_record(images, channels, group_width, *in_size, *output.shape[2:], stride)
