"""A problem by torch's operators: tensors with its types and layouts, and a function to run it.

Convolutions run on torch's tensors, most other kinds on oneDNN's own, for which torch calls oneDNN
wherever it has a choice. `OPERATORS` has what prepares each kind; where torch cannot hand a problem
to oneDNN it raises NotReachedError with the reason. Inference takes what torch's compiler fuses
into a convolution or a linear layer (`FUSED`, by oneDNN's names).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from profiling.onednn_log.work import MemoryDescriptor, Problem, listed_sizes, named_sizes
from profiling.replay.replay import (
    dimension_order,
    is_channels_last,
    is_plain,
    other_attributes,
)

Run = Callable[[], object]  # Runs a problem once


class NotReachedError(LookupError):
    """torch has no operator for a problem; the message is the reason, in one line."""


TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def find_memory(problem: Problem, role: str) -> MemoryDescriptor | None:
    """Return the tensor of a role, or of its gradient: `dst` or `diff_dst`."""
    return problem.memory(role) or problem.memory(f"diff_{role}")


def require_memory(problem: Problem, *roles: str) -> MemoryDescriptor:
    """Return the tensor of the first of these roles that the problem has."""
    memory = next(filter(None, (find_memory(problem, role) for role in roles)), None)
    if memory is None:
        raise NotReachedError(f"the log has no {roles[0]} for it")
    return memory


def torch_type(memory: MemoryDescriptor) -> torch.dtype:
    """Return torch's type, which must be a floating-point type."""
    if memory.type not in TYPES:
        raise NotReachedError(f"torch's operators do not pass {memory.type} to oneDNN")
    return TYPES[memory.type]


def make_tensor(dims: Sequence[int], memory: MemoryDescriptor) -> Tensor:
    """Return a tensor of the descriptor's type and layout.

    If the library chose the layout (property `a`, or blocks), torch stores it row by row.
    """
    dtype = torch_type(memory)
    if memory.strides:
        strides = [int(stride) for stride in memory.strides.split("x")]
        if len(strides) == len(dims):
            return torch.empty_strided(tuple(dims), strides, dtype=dtype).normal_()
    is_given = is_plain(memory.tag) and "a" not in memory.properties
    order = dimension_order(memory.tag) if is_given else []
    if len(order) != len(dims):
        order = list(range(len(dims)))
    # Allocated in the order of memory, then seen in the order of dimensions.
    stored = torch.empty([dims[place] for place in order], dtype=dtype).normal_()
    return stored.permute([order.index(place) for place in range(len(dims))])


def make_opaque(dims: Sequence[int], memory: MemoryDescriptor) -> Tensor:
    """Return an mkldnn tensor, for which torch calls oneDNN if it has a choice."""
    if is_plain(memory.tag) and memory.tag != "".join(sorted(memory.tag)):
        raise NotReachedError(f"torch's oneDNN tensors are stored row by row, not as {memory.tag}")
    return torch.empty(tuple(dims), dtype=torch_type(memory)).normal_().to_mkldnn()


class Window(NamedTuple):
    """A convolution, deconvolution, pooling or linear layer as torch's operators take it."""

    source: tuple[int, ...]  # Dimensions of the input
    result: tuple[int, ...]  # Dimensions of the output
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]  # Before the first pixel; oneDNN derives the other side's
    dilation: tuple[int, ...]  # 1 where the kernel's points are neighbours
    extra: tuple[int, ...]  # Rows and columns beyond a transposed convolution's smallest output
    groups: int


def parse_window(shape: str) -> Window:
    """Return the window of a shape; KeyError if it lacks a size."""
    sizes = named_sizes(shape)
    spatial = [letter for letter in "dhw" if f"i{letter}" in sizes]
    given, made, kernel = ([sizes[name + letter] for letter in spatial] for name in "iok")
    stride = [sizes.get(f"s{letter}", 1) for letter in spatial]
    padding = [sizes.get(f"p{letter}", 0) for letter in spatial]
    # oneDNN counts the points that are left out, torch the distance.
    dilation = [sizes.get(f"d{letter}", 0) + 1 for letter in spatial]
    extra = (
        output - ((size - 1) * step - 2 * before + distance * (points - 1) + 1)
        for output, size, step, before, distance, points in zip(
            made, given, stride, padding, dilation, kernel, strict=True
        )
    )
    return Window(
        (sizes["mb"], sizes["ic"], *given),
        (sizes["mb"], sizes.get("oc", sizes["ic"]), *made),
        *(tuple(kernel), tuple(stride), tuple(padding), tuple(dilation), tuple(extra)),
        sizes.get("g", 1),
    )


def require_plain(problem: Problem) -> None:
    """Reject a problem with fused operations or attributes."""
    fused = (*problem.post_ops, *other_attributes(problem))
    if fused:
        raise NotReachedError(f"torch does not fuse {' '.join(fused)} into {problem.name}")


def prepare_convolution(problem: Problem) -> Run:
    """Return a convolution, or a transposed one (`deconvolution`)."""
    window, direction = parse_window(problem.shape), problem.direction
    is_transposed = problem.kind == "deconvolution"
    source_memory = require_memory(problem, "src")
    channels = window.result[1]
    # A transposed convolution's weight has its input channels first.
    shape = (channels, window.source[1])[:: -1 if is_transposed else 1]
    dtype = torch_type(require_memory(problem, "wei"))
    weight = torch.empty(shape[0], shape[1] // window.groups, *window.kernel, dtype=dtype).normal_()
    # Weights lie as torch stores them beside such an input. If the library chose the input's
    # layout, torch had given it row by row.
    is_given = "a" not in source_memory.properties
    if is_channels_last(source_memory.tag) and is_given and weight.dim() > 3:
        last = torch.channels_last if weight.dim() == 4 else torch.channels_last_3d
        weight = weight.contiguous(memory_format=last)
    source, bias = make_tensor(window.source, source_memory), make_bias(problem, channels)
    result = make_tensor(window.result, find_memory(problem, "dst") or source_memory)
    shared = (weight, bias, window.padding, window.stride, window.dilation, window.groups)
    if direction == "forward_inference" and not is_transposed:
        return fused_convolution(problem, source, result, shared)
    if direction not in ("forward_training", "backward_data", "backward_weights"):
        raise NotReachedError(f"torch does not call {problem.name}")
    require_plain(problem)
    aten = torch.ops.aten
    if direction == "forward_training" and not is_transposed:
        return lambda: aten.mkldnn_convolution(source, *shared)
    extra = window.extra if is_transposed else (0,) * len(window.extra)
    options = (window.stride, window.padding, window.dilation, is_transposed, extra, window.groups)
    if direction == "forward_training":
        return lambda: aten.convolution(source, weight, bias, *options)
    to_data = direction == "backward_data"
    # Gradients to input, weight and bias: oneDNN computes the last two in one primitive.
    mask = [to_data, not to_data, not to_data and bias is not None]
    bias_sizes = [channels] if mask[2] else None
    return lambda: aten.convolution_backward(result, source, weight, bias_sizes, *options, mask)


def make_bias(problem: Problem, channels: int) -> Tensor | None:
    """Return a bias, if the problem has one."""
    memory = find_memory(problem, "bia")
    return None if memory is None else make_tensor((channels,), memory)


def fused_convolution(
    problem: Problem, source: Tensor, other: Tensor, shared: tuple[object, ...]
) -> Run:
    """Return the forward pass with what torch's compiler fuses into it.

    `other` is a tensor of the output's sizes, for fused sums and products; `shared` are weight,
    bias and window.
    """
    fused, others = problem.post_ops, other_attributes(problem)
    if others:
        raise NotReachedError(f"torch cannot set {' '.join(others)}")
    mkldnn = torch.ops.mkldnn
    name = fused[0].partition(":")[0] if fused else ""
    is_sum = fused[:1] == ("sum",)  # without a factor
    if is_sum or name in BINARIES:
        after = parse_unary(fused[1:], only=("eltwise_relu",))
        # torch's in-place operator becomes oneDNN's `sum`, the other one a `binary` operation.
        if is_sum:
            return lambda: mkldnn._convolution_pointwise_.binary(
                other, source, *shared, "add", 1.0, after.name, [], None
            )
        return lambda: mkldnn._convolution_pointwise.binary(
            source, other, *shared, BINARIES[name], 1.0, after.name, [], None
        )
    after = parse_unary(fused, only=tuple(FUSED))
    return lambda: mkldnn._convolution_pointwise(
        source, *shared, after.name or "none", list(after.scalars), after.algorithm
    )


BINARIES = {f"binary_{name}": name for name in ("add", "sub", "mul", "div")}
"""torch's names of what is fused with another tensor."""


class Unary(NamedTuple):
    """Arguments of torch's fused operators."""

    name: str | None
    scalars: tuple[float, ...] = ()
    algorithm: str = ""


FUSED = {
    "eltwise_relu": Unary("relu"),
    "eltwise_logistic": Unary("sigmoid"),
    "eltwise_tanh": Unary("tanh"),
    "eltwise_hardswish": Unary("hardswish"),
    "eltwise_swish": Unary("swish"),
    "eltwise_gelu_erf": Unary("gelu", (), "none"),
    "eltwise_gelu_tanh": Unary("gelu", (), "tanh"),
}


def parse_unary(fused: Sequence[str], *, only: Sequence[str]) -> Unary:
    """Return the one operation that is fused, which must be among `only`, or none."""
    if not fused:
        return Unary(None)
    name, *numbers = fused[0].split(":")
    if len(fused) > 1 or name not in only:
        raise NotReachedError(f"torch does not fuse {'+'.join(fused)}")
    if name == "eltwise_relu" and numbers and float(numbers[0]) != 0:
        return Unary("leaky_relu", (float(numbers[0]),))
    return FUSED[name]


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
        raise NotReachedError(f"torch cannot set {' '.join(others)}")
    if left_memory.type == "f32" and not precision:
        raise NotReachedError("torch computes float32 products with another library")
    if problem.memory("bia") is not None:
        raise NotReachedError("torch adds a matmul's bias beforehand")
    # Two of the sizes: oneDNN 2 also writes those of the product.
    left_dims, right_dims = listed_sizes(problem.shape)[:2]
    if not 2 <= len(left_dims) <= 3:
        raise NotReachedError(f"torch requests products of 2 or 3 dimensions, not {len(left_dims)}")
    left, right = make_tensor(left_dims, left_memory), make_tensor(right_dims, right_memory)
    run = product(left, right, fused=problem.post_ops, is_scaled=bool(scales))

    def run_with_precision() -> None:  # float32 products may be less precise meanwhile
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision[0])
        try:
            run()
        finally:
            torch.set_float32_matmul_precision(before)

    return run_with_precision if precision else run


def product(left: Tensor, right: Tensor, *, fused: tuple[str, ...], is_scaled: bool) -> Run:
    """Return the call for a product, plain or added to something."""
    # `mm` would make its transpose of such a product.
    is_vector = left.dim() == 2 and right.shape[1] == 1
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


def prepare_inner_product(problem: Problem) -> Run:
    """Return a linear layer, [mb, ic] × [oc, ic]ᵀ, forward or backward."""
    if any(name in named_sizes(problem.shape) for name in ("id", "ih", "iw")):
        raise NotReachedError("torch flattens the input of a linear layer")
    window = parse_window(problem.shape)
    inner, channels = window.source[1], window.result[1]
    # torch stores weights row by row, whatever layout the library chooses.
    weight = make_tensor((inner, channels), require_memory(problem, "wei"))
    weight = weight.reshape(channels, inner).contiguous()
    bias = make_bias(problem, channels)
    source, result = require_memory(problem, "src"), find_memory(problem, "dst")
    if problem.direction == "forward_inference":
        after = parse_unary(problem.post_ops, only=tuple(FUSED))
        data = make_tensor(window.source, source)
        return lambda: torch.ops.mkldnn._linear_pointwise(
            data, weight, bias, after.name or "none", list(after.scalars), after.algorithm
        )
    require_plain(problem)
    data, gradient = (
        make_opaque(window.source, source),
        make_opaque(window.result, result or source),
    )
    aten = torch.ops.aten
    return choose(problem, {
        "forward_training": lambda: aten.mkldnn_linear(data, weight, bias),
        "backward_data": lambda: aten.mkldnn_linear_backward_input(
            list(window.source), gradient, weight
        ),
        "backward_weights": lambda: aten.mkldnn_linear_backward_weights(
            gradient, data, weight, bias is not None
        ),
    })  # fmt: skip


def choose(problem: Problem, calls: Mapping[str, Run], *, of: str = "") -> Run:
    """Return the function for the problem's direction."""
    if problem.direction not in calls:
        raise NotReachedError(f"torch does not call {problem.name}{of}")
    return calls[problem.direction]


def prepare_pooling(problem: Problem) -> Run:
    """Return max or average pooling, forward or backward."""
    require_plain(problem)
    window, aten = parse_window(problem.shape), torch.ops.aten
    spatial = len(window.kernel)
    if spatial not in (2, 3):
        raise NotReachedError(f"torch pools oneDNN's tensors in 2 or 3 dimensions, not {spatial}")
    memory = require_memory(problem, "src", "data")
    source = make_opaque(window.source, memory)
    gradient = make_opaque(window.result, find_memory(problem, "dst") or memory)
    options: tuple[object, ...] = (window.kernel, window.stride, window.padding)
    name = f"mkldnn_max_pool{spatial}d"
    if problem.algorithm != "pooling_max":
        name = f"avg_pool{spatial}d"
        # `ceil_mode`, then `count_include_pad`.
        options = (*options, False, problem.algorithm != "pooling_avg_exclude_padding")
    pool, pool_backward = getattr(aten, name), getattr(aten, f"{name}_backward")

    def forward() -> object:
        return pool(source, *options)

    forward_training = forward
    if problem.algorithm == "pooling_max":
        # torch requests training's primitive only for an input with gradients. That primitive also
        # stores where each maximum was.
        pooled, trained = pool(source, *options), source.detach().requires_grad_()
        forward_training = torch.enable_grad()(lambda: pool(trained, *options))
        inputs: tuple[object, ...] = (gradient, pooled, source, *options)
    else:
        inputs = (gradient, source, *options, None)
    calls = {"forward_inference": forward, "forward_training": forward_training}
    calls |= dict.fromkeys(("backward_data", "backward"), lambda: pool_backward(*inputs))
    return choose(problem, calls, of=f" of {problem.algorithm}")


ACTIVATIONS: dict[str, Callable[[Tensor], object]] = {
    "eltwise_relu": torch.relu,
    "eltwise_logistic": torch.sigmoid,
    "eltwise_tanh": torch.tanh,
    "eltwise_gelu_erf": F.gelu,
    "eltwise_gelu_tanh": lambda data: F.gelu(data, approximate="tanh"),
}
BACKWARD: dict[str, Callable[[Tensor, Tensor], object]] = {
    "eltwise_relu": lambda gradient, data: torch.ops.aten.threshold_backward(gradient, data, 0),
    "eltwise_gelu_erf": torch.ops.aten.gelu_backward,
    "eltwise_gelu_tanh": lambda gradient, data: torch.ops.aten.gelu_backward(
        gradient, data, approximate="tanh"
    ),
}


def prepare_elementwise(problem: Problem) -> Run:
    """Return an activation, forward or backward, PReLU, softmax, a product or a sum of two tensors.

    torch computes all others itself.
    """
    require_plain(problem)
    kind, algorithm = problem.kind, problem.algorithm
    is_forward = problem.direction.startswith("forward")
    dims, *others = listed_sizes(problem.shape)
    if kind == "binary":
        if algorithm != "binary_mul":
            raise NotReachedError(f"torch computes {algorithm} itself")
        memory = require_memory(problem, "src", "src0")
        left, right = make_opaque(dims, memory), make_opaque(others[0], memory)
        return lambda: torch.mul(left, right)
    if kind == "sum":
        sources = [memory for memory in problem.memories if memory.role.startswith("src")]
        if len(sources) != 2:
            raise NotReachedError(f"torch adds two tensors at a time, not {len(sources)}")
        left, right = (make_opaque(dims, memory) for memory in sources)
        return lambda: torch.add(left, right)
    if kind != "eltwise" and (not is_forward or algorithm == "softmax_log"):
        name = f"{problem.name} {algorithm}" if kind == "softmax" else problem.name
        raise NotReachedError(f"torch computes {name} itself")
    memory = require_memory(problem, "src", "data")
    if kind == "eltwise":
        if is_forward and algorithm in ACTIVATIONS:
            data = make_opaque(dims, memory)
            return lambda: ACTIVATIONS[algorithm](data)
        if problem.direction == "backward_data" and algorithm in BACKWARD:
            data, gradient = make_opaque(dims, memory), make_opaque(dims, memory)
            return lambda: BACKWARD[algorithm](gradient, data)
        raise NotReachedError(f"torch computes {algorithm} {problem.direction} itself")
    data = make_opaque(dims, memory)
    if kind == "prelu":
        weight = torch.rand(max(others[0]), dtype=torch_type(require_memory(problem, "wei")))
        return lambda: torch.prelu(data, weight)
    axis = int(problem.fields.get("axis", 1))
    return lambda: torch.softmax(data, axis)


EPSILON, MOMENTUM = 1e-5, 0.1


def prepare_batch_normalization(problem: Problem) -> Run:
    """Return batch normalization: forward with the batch's or given statistics, or backward."""
    require_plain(problem)
    sizes, aten = named_sizes(problem.shape), torch.ops.aten
    spatial = [sizes[f"i{letter}"] for letter in "dhw" if f"i{letter}" in sizes]
    data = make_opaque((sizes["mb"], sizes["ic"], *spatial), require_memory(problem, "src", "data"))
    scale, shift, mean = (torch.randn(sizes["ic"]) for _ in range(3))
    # Positive, as a variance is.
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
        raise NotReachedError("torch runs one layer of an LSTM at a time in oneDNN, left to right")
    dtype = torch_type(require_memory(problem, "src_layer"))
    cell = torch.nn.LSTM(sizes["slc"], sizes["dhc"], dtype=dtype)
    given = torch.randn(sizes["t"], sizes["mb"], sizes["slc"], dtype=dtype)

    # The backward pass needs a forward pass before it; in the log they are separate problems.
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
        raise NotReachedError("no operator of this log causes this reorder")
    if target.tag != "".join(sorted(target.tag)):
        raise NotReachedError(f"torch requests no reorder to {target.tag}")
    if source.tag == target.tag:
        data, wanted = make_opaque(dims, source), torch_type(target)
        return lambda: data.to_dense(wanted)
    order = dimension_order(source.tag)
    moved = [place for place, where in enumerate(order) if place != where]
    if len(moved) != 2 or source.type != target.type:
        raise NotReachedError(f"torch requests no reorder from {source.tag} to {target.tag}")
    swapped = list(dims)
    swapped[moved[0]], swapped[moved[1]] = swapped[moved[1]], swapped[moved[0]]
    other = torch.empty(swapped, dtype=torch_type(source)).normal_().to_mkldnn()
    return lambda: torch.ops.aten._mkldnn_transpose(other, moved[0], moved[1])


OPERATORS: Mapping[str, Callable[[Problem], Run]] = {
    **dict.fromkeys(("convolution", "deconvolution"), prepare_convolution),
    "matmul": prepare_matmul,
    "inner_product": prepare_inner_product,
    "pooling": prepare_pooling,
    **dict.fromkeys(("eltwise", "prelu", "softmax", "binary", "sum"), prepare_elementwise),
    "batch_normalization": prepare_batch_normalization,
    "rnn": prepare_rnn,
    "reorder": prepare_reorder,
}


def prepare(problem: Problem) -> Run:
    """Build a problem's tensors; return the function that runs it once.

    Raises:
        NotReachedError: torch has no call for it; the message has the reason.
    """
    if problem.kind not in OPERATORS:
        raise NotReachedError(f"torch does not call oneDNN's {problem.kind}")
    try:
        return OPERATORS[problem.kind](problem)
    except (ValueError, KeyError, IndexError) as error:
        raise NotReachedError(f"its shape {problem.shape} cannot be parsed") from error
