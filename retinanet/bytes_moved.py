"""Memory traffic of kernels that torch's dispatcher does not see, because ctypes calls them.

A wrapper surrounds its kernel's call with `own_kernel`, one line; without a listener that costs a
comparison. `profiling.byte_counter` and `profiling.bench` listen.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor


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
    global _listener  # noqa: PLW0603 (one per process, like the kernels)
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
