"""The C++ of csrc/pointwise_convolution.cpp, called with tensors.

Convolutions are 1×1, of stride 1 and one group, of multiples of 32 channels. Maps are BF16
[N, C, H, W]; what is not in channels_last memory is copied.
"""

import ctypes
import functools
from pathlib import Path

import torch
from torch import Tensor

from retinanet.bytes_moved import own_kernel
from retinanet.engine.layout import aligned_bytes, channels_last
from retinanet.native_library import NativeLibraryError, load_library
from retinanet.processor import cpu_flags

SOURCE = Path(__file__).parent / "csrc" / "pointwise_convolution.cpp"
UNIT = 32
"""Numbers of channels must be multiples of this."""


class _Target(ctypes.Structure):
    """`Target` as csrc/tile_writer.h has it."""

    _fields_ = (
        ("output", ctypes.c_void_p),
        ("added", ctypes.c_void_p),
        ("gate", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("relu", ctypes.c_bool),
        ("outputs", ctypes.c_int64),
    )


@functools.cache
def has_pointwise_kernel() -> bool:
    """Whether the processor has AMX's BF16 tiles, this process may use them, and it compiles."""
    if "amx_bf16" not in cpu_flags():
        return False
    try:
        return bool(library().pointwise_permitted())
    except NativeLibraryError:
        return False


def pointwise_output(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    added: Tensor | None = None,
    *,
    relu: bool = False,
    emulated: bool = False,
) -> Tensor:
    """Return the convolution's output plus `added`, with a ReLU if asked for.

    Args:
        features: [N, I, H, W].
        weight: BF16 [O, I, 1, 1].
        bias: [O], or None for zeros.
        added: [N, O, H, W], or None.
        relu: Whether negative results become zero; NaN stays.
        emulated: Compute what the tile instructions do by plain ones, on any processor.

    Raises:
        NativeLibraryError: The kernel cannot be compiled or loaded here.
    """
    packed = _packed(weight, turned=False)
    outputs = len(weight)
    return _convolved(
        features, packed, outputs, bias=bias, added=added, relu=relu, emulated=emulated
    )


def pointwise_input_gradient(
    gradient: Tensor,
    weight: Tensor,
    added: Tensor | None = None,
    gate: Tensor | None = None,
    *,
    emulated: bool = False,
) -> Tensor:
    """Return the input's gradient plus `added`, both zero where `gate` is not positive.

    Args:
        gradient: Of the output, [N, O, H, W].
        weight: BF16 [O, I, 1, 1].
        added: [N, I, H, W], or None: what other readers of the input send back.
        gate: None, or the input, which a ReLU returned: the result is the gradient of the ReLU's.
        emulated: Compute what the tile instructions do by plain ones, on any processor.

    Raises:
        NativeLibraryError: The kernel cannot be compiled or loaded here.
    """
    packed = _packed(weight, turned=True)
    inputs = weight.shape[1]
    return _convolved(gradient, packed, inputs, added=added, gate=gate, emulated=emulated)


def _packed(weight: Tensor, *, turned: bool) -> Tensor:
    """Return the weight in the order in which the kernel reads it."""
    assert weight.dtype == torch.bfloat16
    weight = weight.detach().contiguous()  # a 1×1 weight in channels_last memory too
    packed = aligned_bytes(2 * weight.numel())
    with own_kernel("pointwise_pack", (weight,), (packed,)):
        library().pointwise_pack(
            weight.data_ptr(), *weight.shape[:2], turned, packed.data_ptr(), torch.get_num_threads()
        )
    return packed


def _convolved(
    features: Tensor,
    packed: Tensor,
    outputs: int,
    *,
    bias: Tensor | None = None,
    added: Tensor | None = None,
    gate: Tensor | None = None,
    relu: bool = False,
    emulated: bool,
) -> Tensor:
    assert emulated or has_pointwise_kernel()  # which also asks the system for tiles
    features = channels_last(features)
    images, inputs, height, width = features.shape
    output = torch.empty(
        (images, outputs, height, width), dtype=torch.bfloat16, memory_format=torch.channels_last
    )
    kept = [channels_last(one) for one in (added, gate) if one is not None]
    if bias is not None:
        bias = bias.detach().float().contiguous()
    places = iter(kept)
    target = _Target(
        output.data_ptr(),
        next(places).data_ptr() if added is not None else None,
        next(places).data_ptr() if gate is not None else None,
        bias.data_ptr() if bias is not None else None,
        relu,
        outputs,
    )
    pixels, maps, threads = images * height * width, 1 + len(kept), torch.get_num_threads()
    size = library().pointwise_scratch_bytes(pixels, inputs, outputs, maps, threads)
    scratch = aligned_bytes(size)
    read = (features, packed, *kept) if bias is None else (features, packed, *kept, bias)
    with own_kernel("pointwise_convolution", read, (output,)):
        library().pointwise_convolution(
            features.data_ptr(),
            pixels,
            inputs,
            packed.data_ptr(),
            ctypes.byref(target),
            maps,
            scratch.data_ptr(),
            threads,
            emulated,
        )
    return output


@functools.cache
def library() -> ctypes.CDLL:
    """Compile and load the kernel, once.

    Raises:
        NativeLibraryError: That fails.
    """
    loaded = load_library(SOURCE)
    pointer, size, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    for name, result, arguments in (
        ("pointwise_permitted", flag, []),
        ("pointwise_pack", None, [pointer, size, size, flag, pointer, flag]),
        ("pointwise_scratch_bytes", size, [size, size, size, flag, flag]),
        (
            "pointwise_convolution",
            None,
            [pointer, size, size, pointer, pointer, flag, pointer, flag, flag],
        ),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded
