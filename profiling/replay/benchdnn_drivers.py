"""Convolutions and deconvolutions: benchdnn's drivers `conv` and `deconv`.

TODO-DOC Kinds of one tensor that keep its sizes: benchdnn's `eltwise lrn shuffle softmax`.

TODO-DOC Normalizations: benchdnn's drivers `bnorm lnorm gnorm`.

TODO-DOC Matrix products and inner products: benchdnn's drivers `matmul` and `ip`.

TODO-DOC Recurrent layers: benchdnn's driver `rnn`.

TODO-DOC Copies to another layout or type: benchdnn's driver `reorder`.

TODO-DOC Kinds with several inputs: benchdnn's drivers `binary concat sum prelu reduction`.

TODO-DOC Pooling and resampling: benchdnn's drivers `pool` and `resampling`.
"""

import re

from profiling.onednn_log.work import MemoryDescriptor, Problem
from profiling.replay.benchdnn_fields import (
    Dialect,
    NotExpressibleError,
    ProblemLine,
    algorithm_of,
    attribute_options,
    auxiliary_of,
    direction_of,
    eltwise,
    fixed_tag,
    free_tag,
    layout_options,
    pair_option,
    require_sizes,
    sources_of,
    tensor,
    tensor_sizes,
    triple_option,
)

ALGORITHMS = {"direct": "DIRECT", "winograd": "WINO", "auto": "AUTO"}
WITH_BIAS = {"FWD_D": "FWD_B", "FWD_I": "FWD_B", "BWD_W": "BWD_WB"}
INFERENCE_WITH_BIAS = "inference with a bias is run as training's forward pass"


def convolution_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """A convolution, forward or back, with or without groups.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    source, weights = tensor(problem, "src", "diff_src"), tensor(problem, "wei", "diff_wei")
    # A depthwise convolution that follows in one primitive hides this one's own result.
    destination = tensor(problem, "src_fused", "dst", "diff_dst")
    direction, notes = direction_with_bias(problem)
    name = algorithm_of(problem, prefix=f"{problem.kind}_")
    options = [
        f"--dir={direction}",
        triple_option(source.type, weights.type, destination.type, dialect),
        *layout_options(
            (source, weights, destination),
            ("stag", "wtag", "dtag"),
            dialect,
            takes_strides=problem.kind == "convolution" and dialect.major != 2,
        ),
        f"--alg={ALGORITHMS.get(name, name)}",
        *attribute_options(problem, dialect),
    ]
    driver = "conv" if problem.kind == "convolution" else "deconv"
    return ProblemLine(driver, tuple(options), require_sizes(problem), tuple(notes))


def direction_with_bias(problem: Problem) -> tuple[str, list[str]]:
    """benchdnn's direction, which says whether there is a bias, and what it does not say.

    Raises:
        NotExpressibleError: There is none.
    """
    direction = direction_of(problem)
    bias = problem.memory("bia") or problem.memory("diff_bia")
    if bias is None or direction not in WITH_BIAS:
        return direction, []
    notes = [INFERENCE_WITH_BIAS] if direction == "FWD_I" else []
    weights = problem.memory("wei")
    if weights is not None and weights.type[:1] in "bf" and bias.type != weights.type:
        notes.append(f"the bias is {weights.type}, as the weights, and {bias.type} in the log")
    return WITH_BIAS[direction], notes


LRN_ALGORITHMS = {"across_channels": "ACROSS", "within_channel": "WITHIN"}


def eltwise_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """A function of every element.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    fields = auxiliary_of(problem)
    name, alpha, beta = eltwise(
        algorithm_of(problem, prefix=""),
        (fields.get("alpha", "0"), fields.get("beta", "0")),
        dialect,
    )
    options = [
        *common_options(problem),
        f"--alg={name}",
        f"--alpha={alpha}",
        f"--beta={beta}",
        *attribute_options(problem, dialect),
    ]
    return ProblemLine("eltwise", tuple(options), tensor_sizes(problem, at_least=1)[0])


def lrn_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """Local response normalization.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    name = algorithm_of(problem, prefix="lrn_")
    options = [
        *common_options(problem),
        f"--alg={LRN_ALGORITHMS.get(name, name)}",
        *attribute_options(problem, dialect),
    ]
    return ProblemLine("lrn", tuple(options), require_sizes(problem))


def shuffle_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """Channels in another order.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    fields = auxiliary_of(problem)
    if "axis" not in fields or "group" not in fields:
        raise NotExpressibleError("the log does not tell its axis and group")
    options = [
        *common_options(problem),
        f"--axis={fields['axis']}",
        f"--group={fields['group']}",
        *attribute_options(problem, dialect),
    ]
    return ProblemLine("shuffle", tuple(options), tensor_sizes(problem, at_least=1)[0])


def softmax_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """Softmax, or its logarithm.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    fields = auxiliary_of(problem)
    if "axis" not in fields:
        raise NotExpressibleError("the log does not tell its axis")
    is_log = problem.kind == "logsoftmax" or problem.algorithm == "softmax_log"
    options = [
        f"--dir={direction_of(problem)}",
        *softmax_tensors(problem, dialect),
        f"--alg={'LOGSOFTMAX' if is_log else 'SOFTMAX'}",
        f"--axis={fields['axis']}",
        *attribute_options(problem, dialect),
    ]
    return ProblemLine("softmax", tuple(options), tensor_sizes(problem, at_least=1)[0])


def softmax_tensors(problem: Problem, dialect: Dialect) -> list[str]:
    """Types and layouts; backward, benchdnn's source is that of the gradient that comes out."""
    source = tensor(problem, "src", "diff_src", "data", "dst")
    destination = problem.memory("dst") or source
    if dialect.major == 2:
        return [pair_option(source.type, destination.type, dialect), f"--tag={fixed_tag(source)}"]
    # Backward the destination's layout is given, and the source's follows from it.
    given = destination if direction_of(problem) == "BWD_D" else source
    return [
        f"--sdt={source.type}",
        f"--ddt={destination.type}",
        f"--stag={fixed_tag(given)}",
        f"--dtag={free_tag(destination, dialect)}",
    ]


def common_options(problem: Problem) -> list[str]:
    """Direction, type and layout."""
    data = data_of(problem)
    return [f"--dir={direction_of(problem)}", f"--dt={data.type}", f"--tag={fixed_tag(data)}"]


def data_of(problem: Problem) -> MemoryDescriptor:
    """The tensor that a driver with one type and one layout is told of.

    Raises:
        NotExpressibleError: Another tensor of the problem differs from it.
    """
    data = tensor(problem, "data", "src", "dst", "diff_src", "diff")
    for other in problem.memories:
        is_like_it = other.role.endswith(("data", "src", "dst", "diff"))
        differs = (other.type, other.tag or data.tag) != (data.type, data.tag)
        if other.is_there and is_like_it and differs and "a" not in other.properties:
            raise NotExpressibleError(
                f"{data.role} is {data.type} {data.layout} and {other.role} {other.type} "
                f"{other.layout}; this driver of benchdnn takes one type and one layout"
            )
    return data


def batch_normalization_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """Batch normalization. Its epsilon is not in a log, and benchdnn's default does.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    data = data_of(problem)
    strided = data if data.strides else None
    options = [
        f"--dir={direction_of(problem)}",
        f"--dt={data.type}",
        *layout_options(
            (data, strided),
            ("tag", "tag"),
            dialect,
            takes_any=False,
            takes_strides=dialect.major != 2,
        ),
        flags_option(problem, dialect),
        *attribute_options(problem, dialect),
    ]
    return ProblemLine("bnorm", tuple(options), require_sizes(problem))


def layer_normalization_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """Layer normalization.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    options = two_tensors(problem, dialect)
    statistics = problem.memory("stats")
    if statistics is not None and statistics.tag:
        options.append(f"--stat_tag={fixed_tag(statistics)}")
    scale = problem.memory("scale") or problem.memory("shift")
    if scale is not None and scale.type != "f32":
        options.append(f"--ss_dt={scale.type}")
    options += [flags_option(problem, dialect), *attribute_options(problem, dialect)]
    return ProblemLine("lnorm", tuple(options), tensor_sizes(problem, at_least=1)[0])


def group_normalization_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """Group normalization, which oneDNN has from 3.2 on.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    if dialect.major == 2:
        raise NotExpressibleError("benchdnn 2.x has no group normalization")
    options = [
        *two_tensors(problem, dialect),
        flags_option(problem, dialect),
        *attribute_options(problem, dialect),
    ]
    return ProblemLine("gnorm", tuple(options), require_sizes(problem))


def two_tensors(problem: Problem, dialect: Dialect) -> list[str]:
    """Direction, and types and layouts of source and destination."""
    source = tensor(problem, "src", "data")
    destination: MemoryDescriptor = problem.memory("dst") or source
    types = pair_option(source.type, destination.type, dialect)
    tags = fixed_tag(source)
    if dialect.major != 2:
        tags += f":{free_tag(destination, dialect)}"
    return [f"--dir={direction_of(problem)}", types, f"--tag={tags}"]


def flags_option(problem: Problem, dialect: Dialect) -> str:
    """Global statistics, scale, shift, ReLU; one tensor held scale and shift before 3.0."""
    flags = auxiliary_of(problem).get("flags", "")
    return f"--flags={flags.replace('S', 'CH') if dialect.major != 2 else flags}"


NAMES = ("stag", "wtag", "dtag")


def matmul_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """A product of matrices, or of batches of them.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    source, weights, destination = (tensor(problem, role) for role in ("src", "wei", "dst"))
    sizes = tensor_sizes(problem, at_least=2, at_most=2)
    if "sparse" in (source.kind, weights.kind, destination.kind):
        raise NotExpressibleError("a product of sparse matrices; the log does not tell how sparse")
    masks = auxiliary_of(problem).get("runtime_dims_masks")
    options = [
        triple_option(source.type, weights.type, destination.type, dialect),
        # Layouts of sizes that come at run time cannot be chosen before.
        *layout_options((source, weights, destination), NAMES, dialect, takes_any=not masks),
        *bias_options(problem, dimensions=sizes[0].count("x") + 1),
    ]
    if masks:
        options.append(f"--runtime_dims_masks={masks}")
    options += attribute_options(problem, dialect, dimensions=sizes[0].count("x") + 1)
    return ProblemLine("matmul", tuple(options), ":".join(sizes))


def bias_options(problem: Problem, *, dimensions: int) -> list[str]:
    """Type and mask of the bias: a bit for each dimension in which it has values of its own.

    Where a log does not tell the mask, the bias has a value for each column.
    """
    bias = problem.memory("bia")
    if bias is None:
        return []
    told = re.search(r"mask(\d+)", f"{bias.flags} {problem.auxiliary}")
    mask = told[1] if told else str(1 << (dimensions - 1))
    return [f"--bia_dt={bias.type}", f"--bia_mask={mask}"]


def inner_product_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """A fully connected layer.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    source, weights = tensor(problem, "src", "diff_src"), tensor(problem, "wei", "diff_wei")
    destination = tensor(problem, "dst", "diff_dst")
    direction, notes = direction_with_bias(problem)
    options = [
        f"--dir={direction}",
        triple_option(source.type, weights.type, destination.type, dialect),
        *layout_options((source, weights, destination), NAMES, dialect, takes_strides=False),
        *attribute_options(problem, dialect),
    ]
    return ProblemLine("ip", tuple(options), require_sizes(problem), tuple(notes))


PROPAGATIONS = {
    "forward_training": "FWD_D",
    "forward_inference": "FWD_I",
    "backward": "BWD_DW",
}
CELLS = (
    "vanilla_rnn",
    "vanilla_lstm",
    "vanilla_gru",
    "lbr_gru",
    "vanilla_augru",
    "lbr_augru",
)
DIRECTIONS = {
    "unidirectional_left2right": "left2right",
    "unidirectional_right2left": "right2left",
    "unidirectional": "left2right",
    "bidirectional_concat": "concat",
    "bidirectional_sum": "sum",
}
INT8 = frozenset(
    [
        "u8u8u8u8",
        "u8u8u8f32",
        "f32u8f32u8",
        "f32u8f32f32",
        "s8s8s8s8",
        "s8s8s8f32",
        "f32s8f32s8",
        "f32s8f32f32",
    ]
)
"""Types of the first state, the input, the last state and the output."""


def rnn_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """A recurrent layer, or a stack of them.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    if problem.direction not in PROPAGATIONS:
        raise NotExpressibleError(f"benchdnn's rnn has no direction {problem.direction!r}")
    strided = next(
        (one for one in problem.memories if one.strides and "a" not in one.properties), None
    )
    if strided is not None:
        raise NotExpressibleError(
            f"{strided.role} is not dense (strides {strided.strides}), and benchdnn's rnn takes "
            "no strides"
        )
    layers = (tensor(problem, role) for role in ("src_layer", "wei_layer", "dst_layer"))
    configuration = types_of(problem)
    options = [
        f"--prop={PROPAGATIONS[problem.direction]}",
        f"--cfg={configuration}",
        f"--tag={':'.join(free_tag(one, dialect) for one in layers)}",
        *cell_options(problem),
        "--trivial-strides=true",
        *(["--scaling=common"] if configuration in INT8 else []),
        *attribute_options(problem, dialect),
    ]
    notes = () if problem.memory("src_iter") else ("benchdnn gives a first state",)
    return ProblemLine("rnn", tuple(options), require_sizes(problem), notes)


def cell_options(problem: Problem) -> list[str]:
    """The cell, and what belongs to it.

    Raises:
        NotExpressibleError: benchdnn does not know it.
    """
    fields = auxiliary_of(problem)
    cell, way = fields.get("alg", ""), fields.get("direction", "")
    if cell not in CELLS or way not in DIRECTIONS:
        raise NotExpressibleError(f"benchdnn's rnn knows no cell {cell!r} in direction {way!r}")
    activation = fields.get("activation", "undef").removeprefix("eltwise_")
    options = [f"--alg={cell.upper()}", f"--direction={DIRECTIONS[way]}"]
    if cell == "vanilla_rnn":
        options.append(f"--activation={activation.upper()}")
    if problem.memory("wei_peephole"):
        options.append("--with-peephole=true")
    if problem.memory("wei_proj") or problem.memory("wei_projection"):
        options.append("--with-projection=true")
    if fields.get("flags"):
        options.append(f"--flags={fields['flags']}")
    return options


def types_of(problem: Problem) -> str:
    """benchdnn's name for the types of the tensors.

    Raises:
        NotExpressibleError: It has none.
    """
    source, result = tensor(problem, "src_layer"), tensor(problem, "dst_layer")
    first = problem.memory("src_iter") or source
    last = problem.memory("dst_iter") or first
    bias = problem.memory("bias") or source
    if source.type in ("f32", "bf16", "f16") and source.type == result.type:
        if bias.type == source.type:
            return source.type
        if bias.type == "f32":
            return f"{source.type}f32"
    name = f"{first.type}{source.type}{last.type}{result.type}"
    if name not in INT8:
        raise NotExpressibleError(f"benchdnn's rnn has no configuration for {problem.types}")
    return name


COMPENSATIONS = {"s8m": "s8s8_comp", "zpm": "zp_comp"}
"""What int8 weights carry along, with the mask that follows; 2.x and 3.x write alike."""


def reorder_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """A copy. Its layouts are what it is about, so they are never the library's choice.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    source, destination = tensor(problem, "src"), tensor(problem, "dst")
    if has_compensation(source):
        raise NotExpressibleError(f"its source has more than values ({source.flags})")
    options = [
        f"--sdt={source.type}",
        f"--ddt={destination.type}",
        *layout_options(
            (source, destination),
            ("stag", "dtag"),
            dialect,
            takes_any=False,
            takes_strides=dialect.major != 2,
        ),
    ]
    if has_compensation(destination):
        options.append(f"--oflag={compensation(destination)}")
    mask = auxiliary_of(problem).get("runtime-dim-mask")
    if mask:
        options.append(f"--runtime-dim-mask={mask}")
    options += attribute_options(problem, dialect)
    return ProblemLine("reorder", tuple(options), tensor_sizes(problem, at_least=1)[0])


def has_compensation(memory: MemoryDescriptor) -> bool:
    """Whether more lies in the tensor than its values."""
    return memory.flags not in ("", "f0")


def compensation(memory: MemoryDescriptor) -> str:
    """`f8:s8m1` as `s8s8_comp:1`.

    Raises:
        NotExpressibleError: It is none that benchdnn knows.
    """
    found = []
    for word in memory.flags.split(":")[1:]:
        match = re.fullmatch(r"(s8m|zpm)(\d+)", word)
        if not match:
            raise NotExpressibleError(f"benchdnn does not know its result's {word} {memory.flags}")
        found.append(f"{COMPENSATIONS[match[1]]}:{match[2]}")
    if not found:
        raise NotExpressibleError(f"benchdnn does not know its result's {memory.flags}")
    return "+".join(found)


def binary_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """An operation of two tensors, of which one may be smaller.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    options = [
        *inputs(problem, dialect, how_many=2),
        f"--alg={algorithm_of(problem, prefix='binary_')}",
        *attribute_options(problem, dialect),
    ]
    sizes = tensor_sizes(problem, at_least=2, at_most=2)
    return ProblemLine("binary", tuple(options), ":".join(sizes))


def concat_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """Tensors one after the other.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    sources, destination = sources_of(problem), tensor(problem, "dst")
    types = sorted({one.type for one in sources})
    if len(types) != 1:
        raise NotExpressibleError(f"benchdnn's concat takes one type, not {' and '.join(types)}")
    axis = auxiliary_of(problem).get("axis")
    if axis is None:
        raise NotExpressibleError("the log does not tell its axis")
    sizes = tensor_sizes(problem, at_least=len(sources), at_most=len(sources))
    options = [
        f"--sdt={types[0]}",
        f"--ddt={destination.type}",
        f"--stag={':'.join(map(fixed_tag, sources))}",
        f"--dtag={free_tag(destination, dialect)}",
        f"--axis={axis}",
        *attribute_options(problem, dialect),
    ]
    return ProblemLine("concat", tuple(options), ":".join(sizes))


def sum_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """Tensors added up. Their factors are not in a log; benchdnn's are 1.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    options = [*inputs(problem, dialect), *attribute_options(problem, dialect)]
    return ProblemLine("sum", tuple(options), tensor_sizes(problem, at_least=1)[0])


def prelu_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """ReLU with learnt slopes.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    data, weights = tensor(problem, "data", "src"), tensor(problem, "wei")
    options = [
        f"--dir={direction_of(problem)}",
        f"--sdt={data.type}:{weights.type}",
        f"--stag={fixed_tag(data)}:{free_tag(weights, dialect)}",
        *attribute_options(problem, dialect),
    ]
    sizes = tensor_sizes(problem, at_least=2, at_most=2)
    return ProblemLine("prelu", tuple(options), ":".join(sizes))


def reduction_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """Sum, largest, norm … along dimensions.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    source, destination = tensor(problem, "src"), tensor(problem, "dst")
    fields = auxiliary_of(problem)
    options = [
        f"--sdt={source.type}",
        f"--ddt={destination.type}",
        f"--stag={fixed_tag(source)}",
        f"--dtag={free_tag(destination, dialect)}",
        f"--alg={algorithm_of(problem, prefix='reduction_')}",
        f"--p={fields.get('p', '0')}",
        f"--eps={fields.get('eps', '0')}",
        *attribute_options(problem, dialect),
    ]
    sizes = tensor_sizes(problem, at_least=2, at_most=2)
    return ProblemLine("reduction", tuple(options), ":".join(sizes))


def inputs(problem: Problem, dialect: Dialect, *, how_many: int | None = None) -> list[str]:
    """Types and layouts of the inputs and of the result.

    Raises:
        NotExpressibleError: They are not `how_many`, or one cannot be told.
    """
    sources, destination = sources_of(problem), tensor(problem, "dst")
    if not sources or how_many not in (None, len(sources)):
        raise NotExpressibleError(f"the log tells of {len(sources)} inputs")
    return [
        f"--sdt={':'.join(one.type for one in sources)}",
        f"--ddt={destination.type}",
        f"--stag={':'.join(map(fixed_tag, sources))}",
        f"--dtag={free_tag(destination, dialect)}",
    ]


POOLING = {
    "max": "max",
    "avg": "avg_np",
    "avg_exclude_padding": "avg_np",
    "avg_include_padding": "avg_p",
}


def pooling_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """Pooling; its layout is given, and the result's is the library's choice.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    source, destination = tensor(problem, "src", "diff_src"), tensor(problem, "dst", "diff_dst")
    name = algorithm_of(problem, prefix="pooling_")
    options = [
        f"--dir={direction_of(problem)}",
        pair_option(source.type, destination.type, dialect, old_name="cfg"),
        f"--tag={one_tag(problem, dialect)}",
        f"--alg={POOLING.get(name, name)}",
        *attribute_options(problem, dialect),
    ]
    return ProblemLine("pool", tuple(options), require_sizes(problem))


def resampling_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """Resampling; backward, the layout that is given is the incoming gradient's.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    source, destination = tensor(problem, "src", "diff_src"), tensor(problem, "dst", "diff_dst")
    options = [
        f"--dir={direction_of(problem)}",
        f"--sdt={source.type}",
        f"--ddt={destination.type}",
        f"--tag={one_tag(problem, dialect)}",
        f"--alg={algorithm_of(problem, prefix='resampling_')}",
        *attribute_options(problem, dialect),
    ]
    return ProblemLine("resampling", tuple(options), require_sizes(problem))


def one_tag(problem: Problem, dialect: Dialect) -> str:
    """The layout of both tensors.

    Raises:
        NotExpressibleError: They differ.
    """
    source, destination = tensor(problem, "src", "diff_src"), tensor(problem, "dst", "diff_dst")
    free = {free_tag(one, dialect) for one in (source, destination)} - {"any"}
    if len(free) > 1:
        raise NotExpressibleError(
            f"it goes from {source.layout} to {destination.layout}, and this driver of benchdnn "
            "takes one layout"
        )
    return free.pop() if free else fixed_tag(source)
