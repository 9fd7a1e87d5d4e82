"""Memory traffic of kernels that torch's dispatcher does not see, because ctypes calls them.

A wrapper surrounds its kernel's call with `own_kernel`, one line; without a listener that costs a
comparison. `profiling.capture.byte_counter` and `profiling.bench` listen.

TODO-DOC Levels of a pyramid as the C++ of Winograd's and of AMX's convolutions has them.

TODO-DOC `python -m retinanet compile`: the C++ kernels ahead of time, for an image or a shared folder.
"""

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from common.errors import FINISHED, InputError
from common.native import COMPILED_AHEAD, NativeLibraryError, compile_ahead, known_instruction_sets


class KernelCall(NamedTuple):
    """One call of a kernel."""

    kernel: str
    read: int
    """Bytes."""
    written: int
    seconds: float


Listener = Callable[[KernelCall], None]

NOTHING = nullcontext()

_listener: Listener | None = None


def own_kernel(
    kernel: str, read: Iterable[Tensor], written: Iterable[Tensor]
) -> AbstractContextManager[object]:
    """Surround the call of a kernel that reads and writes these tensors once each.

    A tensor that is updated in place belongs to both; scratch memory that stays in the caches
    belongs to neither. Names of kernels that compute convolutions begin as in
    `profiling.bench.results.CONVOLVING_KERNELS`.
    """
    if _listener is None:
        return NOTHING
    return _recorded(kernel, read, written, _listener)


@contextmanager
def _recorded(
    kernel: str, read: Iterable[Tensor], written: Iterable[Tensor], listener: Listener
) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds = time.perf_counter() - start
    sizes = (sum(map(tensor_bytes, read)), sum(map(tensor_bytes, written)))
    listener(KernelCall(kernel, *sizes, seconds))


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send the calls of kernels to `listener` while the context lasts; contexts may be nested."""
    global _listener  # noqa: PLW0603
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


def tensor_bytes(tensor: Tensor) -> int:
    """Return the size of a tensor's distinct elements: expanded dimensions count once. [bytes]"""
    if tensor.layout is not torch.strided:
        return tensor.numel() * tensor.element_size()
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride != 0 or size == 0 else 1
    return count * tensor.element_size()


class Level(ctypes.Structure):
    """`Level` as winograd.cpp and tile_convolution.cpp have it."""

    _fields_ = (
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("gate", ctypes.c_void_p),
        ("images", ctypes.c_int64),
        ("height", ctypes.c_int64),
        ("width", ctypes.c_int64),
    )


def level_records(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], gates: Sequence[Tensor]
) -> ctypes.Array[Level]:
    """Where each level's maps lie, and how large they are; `gates` is empty, or one for each."""
    gate_places = [gate.data_ptr() for gate in gates] or [0] * len(inputs)
    records = [
        Level(level.data_ptr(), output.data_ptr(), gate, len(level), *level.shape[2:])
        for level, output, gate in zip(inputs, outputs, gate_places, strict=True)
    ]
    return (Level * len(records))(*records)


def kernel_sources() -> list[Path]:
    """Every C++ file of this program."""
    return sorted(Path(__file__).parents[1].glob("*/csrc/*.cpp"))


def compile_kernels() -> int:
    """Compile every kernel for every instruction set, and print where they lie.

    Raises:
        InputError: There is no compiler, it fails, or the folder cannot be written.
    """
    instruction_sets = known_instruction_sets()
    print(f"into {COMPILED_AHEAD}")
    kept = set()
    for source in kernel_sources():
        try:
            libraries = [compile_ahead(source, one) for one in instruction_sets]
        except NativeLibraryError as error:
            raise InputError(f"{source}: {error}") from error
        kept |= set(libraries)
        sizes = [f"{library.stat().st_size / 1000:.0f} kB" for library in libraries]
        pairs = zip(instruction_sets, sizes, strict=True)
        print(f"  {source.stem:<17} {', '.join(f'{name} {size}' for name, size in pairs)}")
    for library in COMPILED_AHEAD.glob("*.so"):
        if library not in kept:
            library.unlink()  # of an earlier source
    return FINISHED
