"""Recurrent layers: benchdnn's driver `rnn`."""

from profiling.onednn_log.problem import Problem
from profiling.replay.problem_files.attributes import attribute_options
from profiling.replay.problem_files.fields import auxiliary_of, require_sizes, tensor
from profiling.replay.problem_files.layouts import free_tag
from profiling.replay.problem_files.problem_line import Dialect, NotExpressibleError, ProblemLine

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
