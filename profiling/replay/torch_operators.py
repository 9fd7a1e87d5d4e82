"""A problem through torch's operators, run again and again under oneDNN's log. Loads torch.

Most kinds run on oneDNN's own tensors, for which torch calls oneDNN wherever it has a choice.
`OPERATORS` has what prepares each kind: it builds tensors and returns what runs the problem once,
or raises NotReachedError with the reason. `answer` runs one problem of the worker
(`profiling.replay.torch_replay`).
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.backends import mkldnn

from common.console import OUTPUT, redirected
from profiling.onednn_log.parse import Mark, mark_line
from profiling.onednn_log.work import Problem, listed_sizes, named_sizes
from profiling.peaks import last_level_bytes
from profiling.replay.replay import (
    geometry,
    is_plain,
    order_of,
    other_attributes,
    post_ops,
    problem_of,
)
from profiling.replay.torch_convolutions import (
    FUSED,
    NotReachedError,
    Run,
    make_opaque,
    make_tensor,
    memory_of,
    prepare_convolution,
    require_memory,
    require_plain,
    type_of,
    unary_of,
)

LESS_PRECISE = {"attr-fpmath:bf16": "medium"}
"""oneDNN's and torch's names of permission to compute float32 in bfloat16."""
SCALED = ("attr-scales:src0:0", "attr-oscale:0")
"""torch's factor on a product, whose value is not in the log."""
OTHER_THAN_1 = 0.5


def prepare_matmul(problem: Problem) -> Run:
    """Return a product of matrices, or of batches of them; `sum` adds it to its destination."""
    left_memory, right_memory = require_memory(problem, "src"), require_memory(problem, "wei")
    others = other_attributes(problem)
    precision = [LESS_PRECISE[word] for word in others if word in LESS_PRECISE]
    scales = [word for word in others if word.startswith(SCALED)]
    if len(precision) + len(scales) < len(others) or len(scales) > 1:
        raise NotReachedError(f"torch sets no {' '.join(others)}")
    if left_memory.type == "f32" and not precision:
        raise NotReachedError("torch gives float32 products to another library")
    if problem.memory("bia") is not None:
        raise NotReachedError("torch adds a matmul's bias beforehand")
    left_dims, right_dims = listed_sizes(problem.shape)[:2]  # oneDNN 2 has the product's too
    if not 2 <= len(left_dims) <= 3:
        raise NotReachedError(f"torch asks for products of 2 or 3 dimensions, not {len(left_dims)}")
    left, right = make_tensor(left_dims, left_memory), make_tensor(right_dims, right_memory)
    run = product(left, right, fused=post_ops(problem), is_scaled=bool(scales))
    return with_precision(precision[0], run) if precision else run


def product(left: Tensor, right: Tensor, *, fused: tuple[str, ...], is_scaled: bool) -> Run:
    """Return the call for a product, plain or added to something."""
    is_vector = left.dim() == 2 and right.shape[1] == 1  # of which `mm` makes its transpose
    if not fused and not is_scaled:
        if is_vector:
            return lambda: torch.mv(left, right[:, 0])
        return (lambda: torch.bmm(left, right)) if left.dim() == 3 else lambda: left @ right
    name, *factor = fused[0].split(":") if fused else ("nothing",)
    if len(fused) != 1 or name != "sum":
        raise NotReachedError(f"torch does not fuse {'+'.join(fused)} into a matmul")
    beta, alpha = float(factor[0]) if factor else 1.0, OTHER_THAN_1 if is_scaled else 1.0
    added = torch.empty(*left.shape[:-1], right.shape[-1], dtype=left.dtype).normal_()
    if is_vector:
        return lambda: torch.addmv(added[:, 0], left, right[:, 0], beta=beta, alpha=alpha)
    add = torch.baddbmm if left.dim() == 3 else torch.addmm
    return lambda: add(added, left, right, beta=beta, alpha=alpha)


def with_precision(precision: str, run: Run) -> Run:
    """Return the same run while float32 products may be less precise."""

    def run_with_precision() -> None:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision)
        try:
            run()
        finally:
            torch.set_float32_matmul_precision(before)

    return run_with_precision


def prepare_inner_product(problem: Problem) -> Run:
    """Return a linear layer, [mb, ic] × [oc, ic]ᵀ, forward or backward."""
    if any(name in named_sizes(problem.shape) for name in ("id", "ih", "iw")):
        raise NotReachedError("torch flattens what goes into a linear layer")
    sizes = geometry(problem.shape)
    # torch stores weights row by row, whatever layout the library chooses.
    weight = make_tensor((sizes.channels_in, sizes.channels_out), require_memory(problem, "wei"))
    weight = weight.reshape(sizes.channels_out, sizes.channels_in).contiguous()
    bias_memory = problem.memory("bia") or problem.memory("diff_bia")
    bias = None if bias_memory is None else make_tensor((sizes.channels_out,), bias_memory)
    source, result = require_memory(problem, "src"), memory_of(problem, "dst")
    if problem.direction == "forward_inference":
        after = unary_of(post_ops(problem), only=tuple(FUSED))
        data = make_tensor(sizes.src, source)
        return lambda: torch.ops.mkldnn._linear_pointwise(
            data, weight, bias, after.name or "none", list(after.scalars), after.algorithm
        )
    require_plain(problem)
    data, gradient = make_opaque(sizes.src, source), make_opaque(sizes.dst, result or source)
    aten = torch.ops.aten
    return choose(problem, {
        "forward_training": lambda: aten.mkldnn_linear(data, weight, bias),
        "backward_data": lambda: aten.mkldnn_linear_backward_input(
            list(sizes.src), gradient, weight
        ),
        "backward_weights": lambda: aten.mkldnn_linear_backward_weights(
            gradient, data, weight, bias is not None
        ),
    })  # fmt: skip


def choose(problem: Problem, calls: Mapping[str, Run], *, of: str = "") -> Run:
    """Return the call of the problem's direction."""
    if problem.direction not in calls:
        raise NotReachedError(f"torch does not call {problem.name}{of}")
    return calls[problem.direction]


def prepare_pooling(problem: Problem) -> Run:
    """Return the largest or the mean of windows, forward or backward."""
    require_plain(problem)
    sizes, aten = geometry(problem.shape), torch.ops.aten
    spatial = len(sizes.input)
    if spatial not in (2, 3):
        raise NotReachedError(f"torch pools oneDNN's tensors in 2 or 3 dimensions, not {spatial}")
    memory = require_memory(problem, "src", "data")
    source = make_opaque(sizes.src, memory)
    gradient = make_opaque(sizes.dst, memory_of(problem, "dst") or memory)
    window: tuple[object, ...] = (sizes.kernel, sizes.stride, sizes.padding)
    name = f"mkldnn_max_pool{spatial}d"
    if problem.algorithm != "pooling_max":
        name = f"avg_pool{spatial}d"
        window = (*window, False, problem.algorithm != "pooling_avg_exclude_padding")
    pool, pool_backward = getattr(aten, name), getattr(aten, f"{name}_backward")

    def forward() -> object:
        return pool(source, *window)

    forward_training = forward
    if problem.algorithm == "pooling_max":
        pooled, trained = pool(source, *window), source.detach().requires_grad_()
        forward_training = torch.enable_grad()(lambda: pool(trained, *window))
        inputs: tuple[object, ...] = (gradient, pooled, source, *window)
    else:
        inputs = (gradient, source, *window, None)
    calls = {"forward_inference": forward, "forward_training": forward_training}
    calls |= dict.fromkeys(("backward_data", "backward"), lambda: pool_backward(*inputs))
    return choose(problem, calls, of=f" of {problem.algorithm}")


ACTIVATIONS: dict[str, Callable[[Tensor], object]] = {
    "eltwise_relu": torch.relu,
    "eltwise_logistic": torch.sigmoid,
    "eltwise_tanh": torch.tanh,
    "eltwise_gelu_erf": torch.nn.functional.gelu,
    "eltwise_gelu_tanh": lambda data: torch.nn.functional.gelu(data, approximate="tanh"),
}
BACKWARD: dict[str, Callable[[Tensor, Tensor], object]] = {
    "eltwise_relu": lambda gradient, data: torch.ops.aten.threshold_backward(gradient, data, 0),
    "eltwise_gelu_erf": torch.ops.aten.gelu_backward,
    "eltwise_gelu_tanh": lambda gradient, data: torch.ops.aten.gelu_backward(
        gradient, data, approximate="tanh"
    ),
}
BINARY: dict[str, Callable[[Tensor, Tensor], object]] = {"binary_mul": torch.mul}


def prepare_eltwise(problem: Problem) -> Run:
    """Return an activation, forward or backward."""
    require_plain(problem)
    (dims,) = listed_sizes(problem.shape)
    memory = require_memory(problem, "src", "data")
    if problem.direction.startswith("forward") and problem.algorithm in ACTIVATIONS:
        data = make_opaque(dims, memory)
        return lambda: ACTIVATIONS[problem.algorithm](data)
    if problem.direction == "backward_data" and problem.algorithm in BACKWARD:
        data, gradient = make_opaque(dims, memory), make_opaque(dims, memory)
        return lambda: BACKWARD[problem.algorithm](gradient, data)
    raise NotReachedError(f"torch computes {problem.algorithm} {problem.direction} itself")


def prepare_prelu(problem: Problem) -> Run:
    """Return a leaky activation whose slopes are learned, forward."""
    require_plain(problem)
    if not problem.direction.startswith("forward"):
        raise NotReachedError(f"torch computes {problem.name} itself")
    dims, slopes = listed_sizes(problem.shape)
    data = make_opaque(dims, require_memory(problem, "src", "data"))
    weight = torch.rand(max(slopes), dtype=type_of(require_memory(problem, "wei")))
    return lambda: torch.prelu(data, weight)


def prepare_softmax(problem: Problem) -> Run:
    """Return softmax, forward."""
    require_plain(problem)
    axis = next((word[5:] for word in problem.auxiliary.split() if word.startswith("axis:")), "1")
    if not problem.direction.startswith("forward") or problem.algorithm == "softmax_log":
        raise NotReachedError(f"torch computes {problem.name} {problem.algorithm} itself")
    data = make_opaque(listed_sizes(problem.shape)[0], require_memory(problem, "src", "data"))
    return lambda: torch.softmax(data, int(axis))


def prepare_binary(problem: Problem) -> Run:
    """Return the product of two tensors."""
    require_plain(problem)
    if problem.algorithm not in BINARY:
        raise NotReachedError(f"torch computes {problem.algorithm} itself")
    memory = require_memory(problem, "src", "src0")
    left, right = (make_opaque(dims, memory) for dims in listed_sizes(problem.shape)[:2])
    return lambda: BINARY[problem.algorithm](left, right)


def prepare_sum(problem: Problem) -> Run:
    """Return the sum of two tensors."""
    require_plain(problem)
    sources = [memory for memory in problem.memories if memory.role.startswith("src")]
    if len(sources) != 2:
        raise NotReachedError(f"torch adds two tensors at a time, not {len(sources)}")
    dims = listed_sizes(problem.shape)[0]
    left, right = (make_opaque(dims, memory) for memory in sources)
    return lambda: torch.add(left, right)


EPSILON, MOMENTUM = 1e-5, 0.1


def prepare_batch_normalization(problem: Problem) -> Run:
    """Return batch normalization: forward with the batch's or given statistics, or backward."""
    require_plain(problem)
    sizes, aten = named_sizes(problem.shape), torch.ops.aten
    spatial = [sizes[f"i{letter}"] for letter in "dhw" if f"i{letter}" in sizes]
    data = make_opaque((sizes["mb"], sizes["ic"], *spatial), require_memory(problem, "src", "data"))
    scale, shift, mean = (torch.randn(sizes["ic"]) for _ in range(3))
    variance = torch.rand(sizes["ic"]) + 0.5
    gradient, batch_mean, deviation = data.clone(), mean.clone(), variance.rsqrt()

    def forward(*, trains: bool) -> Run:
        return lambda: aten.native_batch_norm(
            data, scale, shift, mean, variance, trains, MOMENTUM, EPSILON
        )

    return choose(problem, {
        "forward_training": forward(trains=True),
        "forward_inference": forward(trains=False),
        "backward": lambda: aten.native_batch_norm_backward(
            gradient, data, scale, mean, variance, batch_mean, deviation, True, EPSILON, [True] * 3
        ),
    })  # fmt: skip


def prepare_rnn(problem: Problem) -> Run:
    """Return one layer of a long short-term memory, in one direction."""
    require_plain(problem)
    sizes = named_sizes(problem.shape)
    one_way = "direction:unidirectional_left2right" in problem.auxiliary
    if problem.algorithm != "vanilla_lstm" or not one_way or sizes.get("l", 1) != 1:
        raise NotReachedError("torch gives oneDNN one layer of an LSTM at a time, left to right")
    dtype = type_of(require_memory(problem, "src_layer"))
    cell = torch.nn.LSTM(sizes["slc"], sizes["dhc"], dtype=dtype)
    given = torch.randn(sizes["t"], sizes["mb"], sizes["slc"], dtype=dtype)

    def forward_and_backward() -> None:
        with torch.enable_grad():
            outputs, _ = cell(given)
            outputs.backward(torch.ones_like(outputs))

    return choose(problem, {
        "forward_inference": lambda: cell(given),
        "forward_training": torch.enable_grad()(lambda: cell(given)),
        "backward": forward_and_backward,
    })  # fmt: skip


def prepare_reorder(problem: Problem) -> Run:
    """Return a copy into oneDNN's tensors, another type, or another order of dimensions."""
    require_plain(problem)
    source, target = require_memory(problem, "src"), require_memory(problem, "dst")
    (dims,) = listed_sizes(problem.shape)
    if not (is_plain(source.tag) and is_plain(target.tag)):
        raise NotReachedError("no operator of this log makes this reorder here")
    if target.tag != "".join(sorted(target.tag)):
        raise NotReachedError(f"torch asks for no reorder to {target.tag}")
    if source.tag == target.tag:
        data, wanted = make_opaque(dims, source), type_of(target)
        return lambda: data.to_dense(wanted)
    order = order_of(source.tag)
    moved = [place for place, where in enumerate(order) if place != where]
    if len(moved) != 2 or source.type != target.type:
        raise NotReachedError(f"torch asks for no reorder from {source.tag} to {target.tag}")
    swapped = list(dims)
    swapped[moved[0]], swapped[moved[1]] = swapped[moved[1]], swapped[moved[0]]
    other = torch.empty(swapped, dtype=type_of(source)).normal_().to_mkldnn()
    return lambda: torch.ops.aten._mkldnn_transpose(other, moved[0], moved[1])


OPERATORS: Mapping[str, Callable[[Problem], Run]] = {
    "convolution": prepare_convolution,
    "deconvolution": prepare_convolution,
    "matmul": prepare_matmul,
    "inner_product": prepare_inner_product,
    "pooling": prepare_pooling,
    "eltwise": prepare_eltwise,
    "prelu": prepare_prelu,
    "softmax": prepare_softmax,
    "binary": prepare_binary,
    "sum": prepare_sum,
    "batch_normalization": prepare_batch_normalization,
    "rnn": prepare_rnn,
    "reorder": prepare_reorder,
}


def prepare(problem: Problem) -> Run:
    """Build a problem's tensors; return what runs it once.

    Raises:
        NotReachedError: torch has no call for it; the message says why.
    """
    if problem.kind not in OPERATORS:
        raise NotReachedError(f"torch does not call oneDNN's {problem.kind}")
    try:
        return OPERATORS[problem.kind](problem)
    except (ValueError, KeyError, IndexError) as error:
        raise NotReachedError(f"its shape {problem.shape} is not understood") from error


REFUSALS = (RuntimeError, ValueError, TypeError, MemoryError)
"""What torch raises for arguments that it refuses; the next problem can still be run."""


def answer(question: dict[str, Any], flush: Callable[[], object]) -> dict[str, Any]:
    """Run a problem; return how often, `{"hot": 20, "cold": 20}`, or `{"why_not": "…"}`.

    The question is that of `TorchWorker.run`; `flush` drives everything out of the caches.
    """
    try:
        with torch.no_grad():
            return measure(
                prepare(problem_of(question["problem"])),
                Path(question["log"]),
                repeats=question["repeats"],
                flush=flush if question["cold"] else None,
            )
    except NotReachedError as error:
        return {"why_not": str(error)}
    except REFUSALS as error:
        first_line = (str(error).strip() or type(error).__name__).split("\n", maxsplit=1)[0]
        return {"why_not": f"torch: {first_line}"}


WARM_UP = 2
"""The first run makes kernels, the second reuses the memory of the first."""
LEAST_RUNS = 3
SECONDS = 2.0
"""The time of a problem's hot runs, and of its cold ones; `LEAST_RUNS` may take longer."""
TIMES_THE_CACHES = 2
WITHOUT_KNOWN_CACHES = 256 << 20
CPUS = Path("/sys/devices/system/cpu")


def flusher(cpus: Path = CPUS) -> Callable[[], object]:
    """Return a call that drives everything else out of the caches, on all compute threads.

    It reads and writes twice as much as all last-level caches hold, or 256 MiB where the kernel
    does not tell their sizes. Each thread streams its part, so that its own caches go too.
    """
    size = TIMES_THE_CACHES * last_level_bytes(cpus) or WITHOUT_KNOWN_CACHES
    buffer = torch.zeros(size // 4)
    return lambda: buffer.add_(1.0)


def measure(
    run: Callable[[], object], log: Path, *, repeats: int, flush: Callable[[], object] | None
) -> dict[str, int]:
    """Run hot, then cold if there is a `flush`, and let oneDNN write each run into `log`.

    Each run is a step of the log, counted from 0, so that a reader can separate them. Return how
    often it ran `hot` and `cold`.
    """
    for _ in range(WARM_UP):
        run()
    with (
        log.open("ab", buffering=0) as file,
        redirected(OUTPUT, file.fileno()),
        mkldnn.verbose(mkldnn.VERBOSE_ON),
    ):
        hot = repeat(run, first=0, repeats=repeats, before=None)
        cold = repeat(run, first=hot, repeats=repeats, before=flush) if flush else 0
    return {"hot": hot, "cold": cold}


def repeat(
    run: Callable[[], object], *, first: int, repeats: int, before: Callable[[], object] | None
) -> int:
    """Run until there are enough or time is up, as steps from `first` on; return how often."""

    def mark(*, is_begin: bool) -> None:  # where oneDNN writes, which flushes each of its lines
        line = mark_line(Mark(time.time() * 1000, is_begin, first + done, None))
        os.write(OUTPUT, line.encode())

    end = time.monotonic() + SECONDS
    done = 0
    while done < max(repeats, LEAST_RUNS) and (done < LEAST_RUNS or time.monotonic() < end):
        if before is not None:
            before()
        mark(is_begin=True)
        run()
        mark(is_begin=False)
        done += 1
    return done
