"""Bytes that the operators of a training step read and write, counted from their tensors.

Counted are, for every operator that torch dispatches below autograd and autocast (so composite
operators count as their parts, and casts as separate operators):

- each tensor argument once as read, also where it is passed twice; each result once as written;
- an argument that is changed in place as both, unless it is only overwritten (`out=`, `copy_`,
  `fill_`), which is written alone;
- a view, a change of shape and an allocation count nothing: results that share their arguments'
  memory are not written, and an operator that writes nothing new reads nothing;
- an argument that is passed and not read counts nothing, such as the weight of a convolution's
  backward pass that makes no gradient of the input (`UNREAD`); of a table that is looked up in,
  what is picked counts (`PICKED_FROM`).

A tensor's bytes are those of its distinct elements: expanded dimensions count once. Kernels that
ctypes calls record their bytes (`retinanet.engine.kernel_calls`). Scratch memory of an operator and
copies into other layouts are not counted. So this is the traffic that the operators request; less
reaches memory where a tensor is still in a cache, more where an operator reads it twice.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from retinanet.engine.kernel_calls import KernelCall, listening, tensor_bytes
from retinanet.training.loop import StepProfiler

OVERWRITTEN = frozenset({"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_"})
"""In-place operators that do not read what they change."""

UNCOUNTED = frozenset(
    {
        "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_",
        "detach_", "as_strided_", "squeeze_", "unsqueeze_", "transpose_", "t_",
    }
)  # fmt: skip
"""Operators that allocate, or change the shape in place."""

UNREAD: Mapping[str, frozenset[str]] = {
    name: frozenset({"self"})
    for name in (
        "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "new_zeros", "new_ones",
        "new_full", "max_pool2d_with_indices_backward",
    )
}  # fmt: skip
"""Arguments that give a shape or a type only."""

PICKED_FROM = frozenset({"index", "index_select", "gather", "take", "embedding"})
"""Operators that read as much of their first argument as they return."""

MASKED = {
    ("convolution_backward", "out_mask"): (("input", 1), ("weight", 0)),
    ("convolution_backward", "output_mask"): (("input", 1), ("weight", 0)),
}
"""Arguments of backward passes that are read only if a result is wanted: its place in the mask."""

UPDATED = {
    "adam_fused_step": frozenset({"_0", "_1", "_2", "_5"}),
    "_fused_adam_": frozenset({"self", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"}),
}
"""Arguments that are changed in place, where the schema has none of them, or too many."""


class Call(NamedTuple):
    """An operator in a phase, whose calls are added up."""

    phase: str
    operator: str


@dataclass
class Moved:
    """The traffic of one operator in one phase."""

    calls: int = 0
    read: int = 0
    written: int = 0


class ByteCounter(TorchDispatchMode):
    """Counts the bytes of operators in its context, in the thread that entered it.

    On CPUs autograd runs the backward pass in the thread that called it, so that all of a step is
    counted. `torch.compile` compiles nothing in this context.
    """

    def __init__(self, phase: Callable[[], str] = lambda: "") -> None:
        """`phase` returns the name of the phase that runs."""
        super().__init__()
        self.moved: defaultdict[Call, Moved] = defaultdict(Moved)
        self._phase = phase
        self._within = False
        self._contexts = ExitStack()

    def __enter__(self) -> "ByteCounter":
        """Start counting."""
        self._contexts.enter_context(listening(self._take_kernel))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop counting."""
        super().__exit__(*error)
        self._contexts.close()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operator and add its bytes."""
        kwargs = kwargs or {}
        # A custom operator's kernel may record bytes, which are in the operator's arguments too.
        outer, self._within = self._within, True
        try:
            results = func(*args, **kwargs)
        finally:
            self._within = outer
        read, written = operator_bytes(func, args, kwargs, results)
        if read + written:
            self._add(f"{func.namespace}::{operator_name(func)}", read, written)
        return results

    def _take_kernel(self, call: KernelCall) -> None:
        if not self._within:
            self._add(call.kernel, call.read, call.written)

    def _add(self, name: str, read: int, written: int) -> None:
        moved = self.moved[Call(self._phase(), name)]
        moved.calls += 1
        moved.read += read
        moved.written += written


def operator_name(func: Any) -> str:
    """Return an operator's name without namespace and overload."""
    return str(func._schema.name.split("::")[1])


def operator_bytes(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], results: Any
) -> tuple[int, int]:
    """Return the bytes that a call reads and writes, see the module's documentation."""
    name = operator_name(func)
    if name in UNCOUNTED:
        return 0, 0
    read: list[Tensor] = []
    written: list[Tensor] = []
    arguments = [
        # __torch_dispatch__ gets no arguments that have their default.
        (argument, args[number] if number < len(args) else kwargs[argument.name])
        for number, argument in enumerate(func._schema.arguments)
        if number < len(args) or argument.name in kwargs
    ]
    # A gradient that the mask does not request needs fewer of the arguments.
    unread = UNREAD.get(name, frozenset()) | {
        unneeded
        for argument, mask in arguments
        for unneeded, wanted in MASKED.get((name, argument.name), ())
        if not mask[wanted]
    }
    updated = UPDATED.get(name)
    for argument, value in arguments:
        tensors = list(tensors_in(value))
        info = argument.alias_info
        by_schema = info is not None and info.is_write
        changes = by_schema if updated is None else argument.name in updated
        # In torch's schemas a changed argument that is keyword-only is an `out=`.
        only_written = changes and (argument.kwarg_only or name in OVERWRITTEN)
        if changes:
            written += tensors
        if not only_written and argument.name not in unread:
            read += tensors
    memory = {place(tensor) for _, value in arguments for tensor in tensors_in(value)}
    # Results in an argument's memory are views, or the changed argument itself.
    created = [tensor for tensor in tensors_in(results) if place(tensor) not in memory]
    read_bytes, written_bytes = distinct_bytes(read), distinct_bytes([*written, *created])
    if not written_bytes and next(tensors_in(results), None) is not None:
        return 0, 0  # a view; an operator that returns a number reads its tensors
    if name in PICKED_FROM and created:
        # The whole table was counted above; the difference is subtracted.
        table = next(tensors_in(args))
        read_bytes += min(0, sum(map(tensor_bytes, created)) - tensor_bytes(table))
    return read_bytes, written_bytes


def distinct_bytes(tensors: Sequence[Tensor]) -> int:
    """Return the bytes of tensors, of those that are given twice once."""
    sizes: dict[tuple[Any, ...], int] = {}
    for tensor in tensors:
        # Two slices of one storage are two tensors.
        key: tuple[Any, ...] = (place(tensor), tensor.shape)
        if tensor.layout is torch.strided:
            key = (*key, tensor.storage_offset(), tensor.stride())
        sizes.setdefault(key, tensor_bytes(tensor))
    return sum(sizes.values())


def place(tensor: Tensor) -> int:
    """Return an identity of the tensor's memory, which other tensors may share."""
    # oneDNN's opaque tensors have no storage.
    if tensor.layout is not torch.strided:
        return id(tensor)
    # The storage, not data_ptr(): views may begin anywhere in it.
    return tensor.untyped_storage()._cdata


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of an argument or a result: itself, or those of a list."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


class CurrentPhase(StepProfiler):
    """The phases of a step as the name of the one that runs; empty outside all of them."""

    name = ""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Surround a phase; within another one it counts alone."""
        before, self.name = self.name, name
        try:
            yield
        finally:
            self.name = before
