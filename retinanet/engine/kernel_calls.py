"""The C++ of this program as functions that take tensors, and the memory traffic of their calls.

`Kernels` declares the functions of one file in csrc/, which ctypes calls: torch's dispatcher does
not see them, so each call is reported with its bytes to a listener, if there is one
(`profiling.capture.byte_counter` and `profiling.bench` are listeners). Without one that costs a
comparison.

`compile_kernels` is `retinanet compile`: every C++ file compiled ahead of time, for an
image or a shared folder.
"""

import ctypes
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from common.errors import FINISHED, InputError
from common.native import (
    COMPILED_AHEAD,
    NativeLibraryError,
    compile_ahead,
    known_instruction_sets,
    load_library,
    tell_once,
)
from launch.ranks import read_ranks

CSRC = Path(__file__).parent / "csrc"


class Pointer:
    """The ctypes argument type of an address; None is the null pointer."""

    @classmethod
    def from_param(cls, value: Any) -> Any:
        """Convert a tensor or an integer address; ctypes takes arrays and bytes by theirs."""
        if isinstance(value, Tensor):
            value = value.data_ptr()
        return ctypes.c_void_p(value) if isinstance(value, int) else value


CODES: dict[str, Any] = {
    "P": Pointer,
    "q": ctypes.c_int64,
    "i": ctypes.c_int32,
    "f": ctypes.c_float,
    "d": ctypes.c_double,
    "?": ctypes.c_bool,
}
"""Types of arguments and results, by the letters of Python's `struct` module."""


def tell_once_per_host(line: str) -> None:
    """Print a line about stored kernels on stderr, once a process, in one rank of each host."""
    with suppress(InputError):  # not a launcher's variables
        if read_ranks(os.environ).local_rank != 0:
            return
    tell_once(line)


class Kernels:
    """The functions of one C++ file, which is compiled and loaded the first time it is needed."""

    def __init__(self, source: Path, **signatures: str) -> None:
        """Declare the functions, without compiling.

        A signature has the `CODES` of the arguments and, behind `->`, of the result: `"Pq->q"`.
        """
        self.source = source
        self.instruction_set: str | None = None
        """Tests set it to compare instruction sets; None: the processor's best."""
        self._signatures = signatures
        self._loaded: dict[str | None, ctypes.CDLL | NativeLibraryError] = {}

    def library(self) -> ctypes.CDLL:
        """Return the loaded library; its functions take tensors where they take addresses.

        Raises:
            NativeLibraryError: It cannot be compiled or loaded here; found out once.
        """
        loaded = self._loaded.get(self.instruction_set)
        if loaded is None:
            try:
                loaded = load_library(
                    self.source, instruction_set=self.instruction_set, tell=tell_once_per_host
                )
                for name, signature in self._signatures.items():
                    arguments, _, result = signature.partition("->")
                    function = getattr(loaded, name)
                    function.restype = CODES[result] if result else None
                    function.argtypes = [CODES[code] for code in arguments]
            except NativeLibraryError as error:
                # Kept as well: the compiler runs once, not at every call.
                loaded = error
            self._loaded[self.instruction_set] = loaded
        if isinstance(loaded, NativeLibraryError):
            raise loaded
        return loaded

    def are_available(self) -> bool:
        """Return whether the library can be compiled and loaded here."""
        try:
            self.library()
        except NativeLibraryError:
            return False
        return True

    def call(
        self,
        function: str,
        *arguments: Any,
        read: Iterable[Tensor | None],
        written: Iterable[Tensor],
        kernel: str = "",
    ) -> Any:
        """Call a function that reads and writes these tensors once each, see `own_kernel`.

        `kernel` is the name for listeners, by default the function's. Returns the result, if the
        signature has one.

        Raises:
            NativeLibraryError: The library cannot be compiled or loaded here.
        """
        with own_kernel(kernel or function, read, written):
            return getattr(self.library(), function)(*arguments)


def c_struct(*groups: str) -> Callable[..., bytes]:
    """Return a function from the fields of a C++ struct to its bytes.

    `c_struct("P input output", "q height width")` has four fields, in this order. Of a tensor its
    address is taken, and None is the null pointer. The tensors have to outlive the bytes.
    """
    fields = "".join(code * len(names) for code, *names in map(str.split, groups))
    # The longest of the types at the end pads the struct, so that arrays can be joined.
    packer = struct.Struct(f"{fields}0q")

    def pack(*values: Any) -> bytes:
        # isinstance with Tensor takes four times as long: torch has a check of its own.
        return packer.pack(*[
            value if isinstance(value, (int, float)) else 0 if value is None else value.data_ptr()
            for value in values
        ])  # fmt: skip

    return pack


_level_record = c_struct("P input output gate", "q images height width")


def level_records(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], gates: Sequence[Tensor | None]
) -> bytes:
    """Return each level's addresses and sizes, as `Level` of levels.h has them.

    `gates` is empty, or has one entry per level.
    """
    levels = zip(inputs, outputs, gates or [None] * len(inputs), strict=True)
    return b"".join(
        _level_record(level, out, gate, level.shape[0], *level.shape[2:])
        for level, out, gate in levels
    )


CACHE_LINE = 64  # [bytes]


def scratch_bytes(size: int) -> Tensor:
    """Return `size` bytes of memory that begin with a cache line."""
    block = torch.empty(size, dtype=torch.uint8)
    if block.data_ptr() % CACHE_LINE:
        # torch aligns so today, but promises nothing; tile rows across two lines load slower.
        block = torch.empty(size + CACHE_LINE, dtype=torch.uint8)
        block = block[-block.data_ptr() % CACHE_LINE :][:size]
    return block


def empty_maps(images: int, channels: int, height: int, width: int) -> Tensor:
    """Return BF16 [images, channels, height, width] in channels_last memory, not initialized."""
    row = width * channels
    shape, strides = (images, channels, height, width), (height * row, 1, row, channels)
    return torch.empty_strided(shape, strides, dtype=torch.bfloat16)


def suits_kernels(maps: Tensor) -> bool:
    """Return whether our convolutions and norms take maps: BF16, and not of zero images.

    They divide by the number of pixels, which would end the process. torch knows such batches.
    """
    return maps.dtype == torch.bfloat16 and maps.numel() > 0


def channels_last(tensor: Tensor) -> Tensor:
    """Return the tensor as [N, H, W, C] in memory, copied if it is laid out otherwise."""
    assert tensor.numel() > 0, "see suits_kernels"
    # With one channel, or one pixel, strides say less than this: both formats have one memory then.
    return tensor.contiguous(memory_format=torch.channels_last)


def channels_last_or_none(tensor: Tensor | None) -> Tensor | None:
    """Return `channels_last` of a tensor that may be missing."""
    return None if tensor is None else channels_last(tensor)


def float32_or_none(vector: Tensor | None) -> Tensor | None:
    """Return a constant in float32, in order in memory; it may be missing."""
    if vector is None or (vector.dtype == torch.float32 and vector.is_contiguous()):
        return vector
    return vector.detach().float().contiguous()


def is_one_block(tensor: Tensor) -> bool:
    """Return whether the values are contiguous in memory, in any order of dimensions."""
    return tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)


def have_same_layout(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors of one shape have the same strides."""
    of_first, of_second = first.stride(), second.stride()
    # The stride of a dimension of size 1 is never used, and torch may set it to any value.
    return of_first == of_second or all(
        size == 1 or a == b for size, a, b in zip(first.shape, of_first, of_second, strict=True)
    )


def match_memory_format(parameter: Tensor, tensor: Tensor) -> Tensor:
    """Return the tensor in the parameter's memory layout, copied only if necessary.

    A fused optimizer walks through a parameter, its gradient and its state place by place in
    memory: one in another layout would be taken for other weights', without an error. The tensor
    has the parameter's shape, or is a single number, which has no layout.
    """
    if tensor.dim() == 0 or have_same_layout(parameter, tensor):
        return tensor
    return torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)


class KernelCall(NamedTuple):
    """One call of a kernel; `read` and `written` in bytes."""

    kernel: str
    read: int
    written: int
    seconds: float


Listener = Callable[[KernelCall], None]
NOTHING = nullcontext()
_listener: Listener | None = None


def own_kernel(
    kernel: str, read: Iterable[Tensor | None], written: Iterable[Tensor]
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
    kernel: str, read: Iterable[Tensor | None], written: Iterable[Tensor], listener: Listener
) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds = time.perf_counter() - start
    read_bytes = sum(tensor_bytes(tensor) for tensor in read if tensor is not None)
    listener(KernelCall(kernel, read_bytes, sum(map(tensor_bytes, written)), seconds))


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


def kernel_sources() -> list[Path]:
    """Return every C++ file of this program."""
    return sorted(Path(__file__).parents[1].glob("*/csrc/*.cpp"))


def compile_kernels() -> int:
    """Compile every kernel for every instruction set, and print where they lie.

    Raises:
        InputError: There is no compiler, it fails, or the folder cannot be written.
    """
    instruction_sets = known_instruction_sets()
    print(f"compiling kernels into {COMPILED_AHEAD}")
    current = set()
    for source in kernel_sources():
        try:
            libraries = [compile_ahead(source, name) for name in instruction_sets]
        except NativeLibraryError as error:
            raise InputError(f"{source}: {error}") from error
        current |= set(libraries)
        sizes = [
            f"{name} {library.stat().st_size / 1000:.0f} kB"
            for name, library in zip(instruction_sets, libraries, strict=True)
        ]
        print(f"  {source.stem:<17} {', '.join(sizes)}")
    for library in COMPILED_AHEAD.glob("*.so"):
        if library not in current:
            library.unlink()  # of an earlier source
    return FINISHED
