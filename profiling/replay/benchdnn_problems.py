"""A log's problems for benchdnn: the options of each driver, and the problem files.

`DRIVERS` has a row for each kind of primitive: how its tensors, algorithm, fields and sizes are
written. A problem file is what `benchdnn --DRIVER --batch=FILE` reads; there is one for each
driver. Functions that build options raise NotExpressibleError where benchdnn has none.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from common.files import require_free_outputs, write_atomically
from profiling.onednn_log.log import Calls
from profiling.onednn_log.work import DRIVERS as DRIVER_NAMES
from profiling.onednn_log.work import WITH_BIAS, MemoryDescriptor, Problem
from profiling.replay.benchdnn_fields import (
    Dialect,
    NotExpressibleError,
    ProblemLine,
    attribute_options,
    eltwise,
    fixed_tag,
    free_tag,
    layout_options,
    list_sources,
    pair_option,
    parse_direction,
    product_rank,
    require_algorithm,
    require_sizes,
    tensor,
    tensor_sizes,
    triple_option,
)

Option = Callable[[Problem, Dialect], list[str]]  # Returns one or several of a problem's options


def one_tensor(problem: Problem, dialect: Dialect) -> list[str]:
    """Return type and layout of drivers that accept one of each."""
    data = tensor(problem, "data", "src", "dst", "diff_src", "diff")
    for other in problem.memories:
        is_like_it = other.role.endswith(("data", "src", "dst", "diff"))
        differs = (other.type, other.tag or data.tag) != (data.type, data.tag)
        if other.is_there and is_like_it and differs and "a" not in other.properties:
            raise NotExpressibleError(
                f"{data.role} is {data.type} {data.layout} and {other.role} {other.type} "
                f"{other.layout}; this driver of benchdnn takes one type and one layout"
            )
    # Batch normalization takes the strides of both tensors.
    pair, tags = (data, data if data.strides else None), ("tag", "tag")
    layouts = layout_options(problem, pair, tags, dialect, takes_any=False)
    return [f"--dt={data.type}", *layouts]


def two_tensors(problem: Problem, dialect: Dialect) -> list[str]:
    """Return types and layouts of source and destination of layer and group normalization."""
    source = tensor(problem, "src", "data")
    destination = problem.memory("dst") or source
    tags = fixed_tag(source)
    if dialect.major != 2:
        tags += f":{free_tag(destination, dialect)}"
    return [pair_option(source.type, destination.type, dialect), f"--tag={tags}"]


def source_and_result(
    types: str, tags: str, destination: MemoryDescriptor, dialect: Dialect
) -> list[str]:
    """Return types and layouts, given those of the source or sources."""
    options = f"--sdt={types}", f"--ddt={destination.type}"
    return [*options, f"--stag={tags}", f"--dtag={free_tag(destination, dialect)}"]


def softmax_tensors(problem: Problem, dialect: Dialect) -> list[str]:
    """Return types and layouts; backward, benchdnn's source is the resulting gradient."""
    source = tensor(problem, "src", "diff_src", "data", "dst")
    destination = problem.memory("dst") or source
    if dialect.major == 2:
        return [pair_option(source.type, destination.type, dialect), f"--tag={fixed_tag(source)}"]
    # Backward the destination's layout is given, and the source's follows from it.
    given = destination if parse_direction(problem) == "BWD_D" else source
    return source_and_result(source.type, fixed_tag(given), destination, dialect)


def resized_tensors(problem: Problem, dialect: Dialect) -> list[str]:
    """Return types and the one layout of pooling and resampling.

    Forward the source's layout is given, and backward that of the incoming gradient; the other one
    is the library's choice.
    """
    source, destination = tensor(problem, "src", "diff_src"), tensor(problem, "dst", "diff_dst")
    if problem.kind == "resampling":
        types = [f"--sdt={source.type}", f"--ddt={destination.type}"]
    else:
        types = [pair_option(source.type, destination.type, dialect, old_name="cfg")]
    tags = {free_tag(memory, dialect) for memory in (source, destination)} - {"any"}
    if len(tags) > 1:
        raise NotExpressibleError(
            f"it goes from {source.layout} to {destination.layout}, and this driver of benchdnn "
            "takes one layout"
        )
    return [*types, f"--tag={tags.pop() if tags else fixed_tag(source)}"]


def several_inputs(problem: Problem, dialect: Dialect) -> list[str]:
    """Return types and layouts of all inputs and the result."""
    is_reduction = problem.kind == "reduction"
    sources = [tensor(problem, "src")] if is_reduction else list_sources(problem)
    destination = tensor(problem, "dst")
    if not sources or (problem.kind == "binary" and len(sources) != 2):
        raise NotExpressibleError(f"the log has {len(sources)} inputs")
    types = [memory.type for memory in sources]
    if problem.kind == "concat":
        types = sorted(set(types))
        if len(types) > 1:
            raise NotExpressibleError(
                f"benchdnn's concat takes one type, not {' and '.join(types)}"
            )
    tags = ":".join(map(fixed_tag, sources))
    return source_and_result(":".join(types), tags, destination, dialect)


def prelu_tensors(problem: Problem, dialect: Dialect) -> list[str]:
    """Return types and layouts of data and slopes."""
    data, weights = tensor(problem, "data", "src"), tensor(problem, "wei")
    tags = f"{fixed_tag(data)}:{free_tag(weights, dialect)}"
    return [f"--sdt={data.type}:{weights.type}", f"--stag={tags}"]


TRIPLE_TAGS = ("stag", "wtag", "dtag")


def find_bias(problem: Problem) -> MemoryDescriptor | None:
    """Return the bias that benchdnn's direction must name."""
    has_bias = parse_direction(problem) in WITH_BIAS
    return (problem.memory("bia") or problem.memory("diff_bia")) if has_bias else None


def weighted_tensors(problem: Problem, dialect: Dialect) -> list[str]:
    """Return direction, types and layouts of convolutions and inner products."""
    direction = parse_direction(problem)
    memories = (
        tensor(problem, "src", "diff_src"),
        tensor(problem, "wei", "diff_wei"),
        # A depthwise convolution that follows in one primitive hides this one's own result.
        tensor(problem, "src_fused", "dst", "diff_dst"),
    )
    return [
        f"--dir={WITH_BIAS[direction] if find_bias(problem) else direction}",
        triple_option(memories, dialect),
        *layout_options(problem, memories, TRIPLE_TAGS, dialect),
    ]


def bias_notes(problem: Problem) -> tuple[str, ...]:
    """Return how benchdnn's bias differs from the log's."""
    bias, weights = find_bias(problem), problem.memory("wei")
    if bias is None:
        return ()
    notes = []
    if parse_direction(problem) == "FWD_I":
        notes.append("inference with a bias is run as training's forward pass")
    if weights is not None and weights.type[:1] in "bf" and bias.type != weights.type:
        notes.append(f"the bias is {weights.type}, as the weights, and {bias.type} in the log")
    return tuple(notes)


def matmul_tensors(problem: Problem, dialect: Dialect) -> list[str]:
    """Return types, layouts and bias of a product of matrices, or of batches of them."""
    memories = tuple(tensor(problem, role) for role in ("src", "wei", "dst"))
    rank = product_rank(problem)
    if any(memory.kind == "sparse" for memory in memories):
        raise NotExpressibleError("a product of sparse matrices; their sparsity is not in the log")
    options = [triple_option(memories, dialect)]
    # Layouts of sizes that are known at run time only cannot be chosen before.
    is_known = not problem.fields.get("runtime_dims_masks")
    options += layout_options(problem, memories, TRIPLE_TAGS, dialect, takes_any=is_known)
    bias = problem.memory("bia")
    if bias is not None:
        # A bit for each dimension with values of its own; without a mask, one for each column.
        mask = re.search(r"mask(\d+)", f"{bias.flags} {problem.auxiliary}")
        bias_mask = mask[1] if mask else 1 << (rank - 1)
        options += [f"--bia_dt={bias.type}", f"--bia_mask={bias_mask}"]
    return options


COMPENSATIONS = {"s8m": "s8s8_comp", "zpm": "zp_comp"}
"""Additions of int8 weights to their values, followed by the mask, in 2.x and 3.x."""
VALUES_ONLY = ("", "f0")  # Flags of tensors that contain nothing else


def reorder_tensors(problem: Problem, dialect: Dialect) -> list[str]:
    """Return types and layouts of a copy; its layouts are never the library's choice."""
    source, destination = tensor(problem, "src"), tensor(problem, "dst")
    if source.flags not in VALUES_ONLY:
        raise NotExpressibleError(f"its source contains more than values ({source.flags})")
    options = [f"--sdt={source.type}", f"--ddt={destination.type}"]
    pair, tags = (source, destination), ("stag", "dtag")
    options += layout_options(problem, pair, tags, dialect, takes_any=False)
    if destination.flags not in VALUES_ONLY:
        # `f8:s8m1` becomes `s8s8_comp:1`.
        words = destination.flags.split(":")[1:]
        found = [match for word in words if (match := re.fullmatch(r"(s8m|zpm)(\d+)", word))]
        if not words or len(found) < len(words):
            raise NotExpressibleError(
                f"benchdnn has no option for its result's {destination.flags}"
            )
        names = (f"{COMPENSATIONS[match[1]]}:{match[2]}" for match in found)
        options.append(f"--oflag={'+'.join(names)}")
    return options


PROPAGATIONS = {"forward_training": "FWD_D", "forward_inference": "FWD_I", "backward": "BWD_DW"}
CELLS = ("vanilla_rnn", "vanilla_lstm", "vanilla_gru", "lbr_gru", "vanilla_augru", "lbr_augru")
CELL_DIRECTIONS = {
    "unidirectional_left2right": "left2right",
    "unidirectional_right2left": "right2left",
    "unidirectional": "left2right",
    "bidirectional_concat": "concat",
    "bidirectional_sum": "sum",
}
INT8 = (
    "u8u8u8u8", "u8u8u8f32", "f32u8f32u8", "f32u8f32f32",
    "s8s8s8s8", "s8s8s8f32", "f32s8f32s8", "f32s8f32f32",
)  # fmt: skip
"""Types of the first state, the input, the last state and the output."""


def rnn_tensors(problem: Problem, dialect: Dialect) -> list[str]:
    """Return propagation, types, layouts and cell of a recurrent layer, or of a stack of them."""
    if problem.direction not in PROPAGATIONS:
        raise NotExpressibleError(f"benchdnn's rnn has no direction {problem.direction!r}")
    for memory in problem.memories:
        if memory.strides and "a" not in memory.properties:
            raise NotExpressibleError(
                f"{memory.role} is not dense (strides {memory.strides}), and benchdnn's rnn takes "
                "no strides"
            )
    layers = [tensor(problem, role) for role in ("src_layer", "wei_layer", "dst_layer")]
    types = rnn_types(problem)
    options = [
        f"--prop={PROPAGATIONS[problem.direction]}",
        f"--cfg={types}",
        f"--tag={':'.join(free_tag(memory, dialect) for memory in layers)}",
    ]
    values = problem.fields
    cell, way = values.get("alg", ""), values.get("direction", "")
    if cell not in CELLS or way not in CELL_DIRECTIONS:
        raise NotExpressibleError(f"benchdnn's rnn has no cell {cell!r} in direction {way!r}")
    options += [f"--alg={cell.upper()}", f"--direction={CELL_DIRECTIONS[way]}"]
    if cell == "vanilla_rnn":
        activation = values.get("activation", "undef").removeprefix("eltwise_")
        options.append(f"--activation={activation.upper()}")
    if problem.memory("wei_peephole"):
        options.append("--with-peephole=true")
    if problem.memory("wei_proj") or problem.memory("wei_projection"):
        options.append("--with-projection=true")
    if values.get("flags"):
        options.append(f"--flags={values['flags']}")
    return [*options, "--trivial-strides=true", *(["--scaling=common"] if types in INT8 else [])]


def rnn_types(problem: Problem) -> str:
    """Return benchdnn's name for the types of a recurrent layer's tensors."""
    source, result = tensor(problem, "src_layer").type, tensor(problem, "dst_layer").type
    first, last, bias = (problem.memory(role) for role in ("src_iter", "dst_iter", "bias"))
    bias_type = bias.type if bias else source
    if source == result and source in ("f32", "bf16", "f16") and bias_type in (source, "f32"):
        return source if bias_type == source else f"{source}f32"
    first_type = first.type if first else source
    name = f"{first_type}{source}{last.type if last else first_type}{result}"
    if name not in INT8:
        raise NotExpressibleError(f"benchdnn's rnn has no configuration for {problem.types}")
    return name


def rnn_notes(problem: Problem) -> tuple[str, ...]:
    """Return how benchdnn's states differ from the log's."""
    return () if problem.memory("src_iter") else ("benchdnn adds an initial state",)


def flags(problem: Problem, dialect: Dialect) -> list[str]:
    """Return global statistics, scale, shift, ReLU; before 3.0 one tensor held scale and shift."""
    values = problem.fields.get("flags", "")
    return [f"--flags={values.replace('S', 'CH') if dialect.major != 2 else values}"]


def layer_statistics(problem: Problem, dialect: Dialect) -> list[str]:
    """Return the layout of layer normalization's statistics, type of scale and shift, and flags."""
    options = []
    statistics = problem.memory("stats")
    if statistics is not None and statistics.tag:
        options.append(f"--stat_tag={fixed_tag(statistics)}")
    scale = problem.memory("scale") or problem.memory("shift")
    if scale is not None and scale.type != "f32":
        options.append(f"--ss_dt={scale.type}")
    return [*options, *flags(problem, dialect)]


def eltwise_algorithm(problem: Problem, dialect: Dialect) -> list[str]:
    """Return the function of every element, and its parameters."""
    values = problem.fields
    parameters = values.get("alpha", "0"), values.get("beta", "0")
    name, alpha, beta = eltwise(require_algorithm(problem), parameters, dialect)
    return [f"--alg={name}", f"--alpha={alpha}", f"--beta={beta}"]


def softmax_algorithm(problem: Problem, _: Dialect) -> list[str]:
    """Return whether it is softmax or its logarithm."""
    is_log = problem.kind == "logsoftmax" or problem.algorithm == "softmax_log"
    return [f"--alg={'LOGSOFTMAX' if is_log else 'SOFTMAX'}"]


class Driver(NamedTuple):
    """The command line of benchdnn for a kind of primitive: options in order, then sizes."""

    tensors: Option
    directed: bool = False  # Whether `--dir` stands before the tensors
    algorithms: Mapping[str, str] | None = None
    """benchdnn's names of algorithms where they differ from oneDNN's; None: has no `--alg`."""
    parameters: Option | None = None
    fields: Mapping[str, str | None] = {}
    """Auxiliary fields whose options have the same names, with defaults; None: it is required,
    empty: no option."""
    sized_tensors: int | None = None
    """The number of tensors whose sizes are written, 0: all inputs; None: sizes have names."""
    notes: Callable[[Problem], tuple[str, ...]] | None = None  # See `ProblemLine.notes`


CONVOLUTIONS = {"direct": "DIRECT", "winograd": "WINO", "auto": "AUTO"}
RESPONSES = {"across_channels": "ACROSS", "within_channel": "WITHIN"}
AVERAGES = {"avg": "avg_np", "avg_exclude_padding": "avg_np", "avg_include_padding": "avg_p"}
CONVOLUTION = Driver(weighted_tensors, algorithms=CONVOLUTIONS, notes=bias_notes)

DRIVERS: Mapping[str, Driver] = {
    # Its epsilon is not in a log; benchdnn's default serves.
    "batch_normalization": Driver(one_tensor, directed=True, parameters=flags),
    "binary": Driver(several_inputs, algorithms={}, sized_tensors=2),
    "concat": Driver(several_inputs, fields={"axis": None}, sized_tensors=0),
    "convolution": CONVOLUTION,
    "deconvolution": CONVOLUTION,
    "eltwise": Driver(one_tensor, directed=True, parameters=eltwise_algorithm, sized_tensors=1),
    "group_normalization": Driver(two_tensors, directed=True, parameters=flags),
    "inner_product": Driver(weighted_tensors, notes=bias_notes),
    "layer_normalization": Driver(
        two_tensors, directed=True, parameters=layer_statistics, sized_tensors=1
    ),
    "lrn": Driver(one_tensor, directed=True, algorithms=RESPONSES),
    "matmul": Driver(matmul_tensors, fields={"runtime_dims_masks": ""}, sized_tensors=2),
    "pooling": Driver(resized_tensors, directed=True, algorithms=AVERAGES),
    "prelu": Driver(prelu_tensors, directed=True, sized_tensors=2),
    "reduction": Driver(
        several_inputs, algorithms={}, fields={"p": "0", "eps": "0"}, sized_tensors=2
    ),
    "reorder": Driver(reorder_tensors, fields={"runtime-dim-mask": ""}, sized_tensors=1),
    "resampling": Driver(resized_tensors, directed=True, algorithms={}),
    "rnn": Driver(rnn_tensors, notes=rnn_notes),
    "shuffle": Driver(
        one_tensor, directed=True, fields={"axis": None, "group": None}, sized_tensors=1
    ),
    "softmax": Driver(
        softmax_tensors,
        directed=True,
        parameters=softmax_algorithm,
        fields={"axis": None},
        sized_tensors=1,
    ),
    # The factors of a sum are not in a log; benchdnn's are 1.
    "sum": Driver(several_inputs, sized_tensors=1),
}
OTHER_NAMES = {"logsoftmax": "softmax"}
"""A kind of earlier versions, which the same driver runs."""

OTHER_COMPONENTS = {
    "graph": "a partition of a graph: benchdnn's --graph runs a JSON file of the graph, which "
    "ONEDNN_GRAPH_DUMP=subgraph writes, which the log does not contain",
    "ukernel": "a micro-kernel: the log does not contain the batch and the leading dimensions that "
    "benchdnn's --brgemm needs",
    "common": "not a primitive",
}
"""Why benchdnn cannot run the work of these components of the library."""

NO_DRIVER = {
    "gemm": "a plain GEMM call, for which benchdnn has no driver",
    "gemm_api": "a plain GEMM call, for which benchdnn has no driver",
    "brgemm": OTHER_COMPONENTS["ukernel"],
    "sdpa": "attention as one primitive: benchdnn runs it as a graph only",
    "zero_pad": "padding with zeros is not a primitive of its own in oneDNN's log",
}
"""Why benchdnn cannot run these kinds of primitives."""


def problem_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """Return a problem as benchdnn's driver reads it.

    Raises:
        NotExpressibleError: benchdnn cannot run it; the message has the reason.
    """
    if problem.component in OTHER_COMPONENTS:
        raise NotExpressibleError(OTHER_COMPONENTS[problem.component])
    # `cpu2gpu` is a reorder between two engines.
    if not problem.engine.startswith("cpu") or "2" in problem.engine:
        raise NotExpressibleError(f"it ran on {problem.engine}; only CPU problems run again")
    if problem.kind in NO_DRIVER:
        raise NotExpressibleError(NO_DRIVER[problem.kind])
    kind = OTHER_NAMES.get(problem.kind, problem.kind)
    if kind not in DRIVERS:
        raise NotExpressibleError(f"{problem.kind} is an unknown kind of primitive")
    if kind == "group_normalization" and dialect.major == 2:
        # oneDNN has it from 3.2 on.
        raise NotExpressibleError("benchdnn 2.x has no group normalization")
    driver = DRIVERS[kind]
    options = [f"--dir={parse_direction(problem)}"] if driver.directed else []
    options += driver.tensors(problem, dialect)
    if driver.algorithms is not None:
        name = require_algorithm(problem).removeprefix(f"{kind}_")
        options.append(f"--alg={driver.algorithms.get(name, name)}")
    if driver.parameters is not None:
        options += driver.parameters(problem, dialect)
    values = {**driver.fields, **problem.fields}
    if any(values[name] is None for name in driver.fields):
        raise NotExpressibleError(f"the log does not contain its {' and '.join(driver.fields)}")
    options += [f"--{name}={values[name]}" for name in driver.fields if values[name]]
    options += attribute_options(problem, dialect)
    if driver.sized_tensors is None:
        sizes = require_sizes(problem)
    else:
        sizes = ":".join(tensor_sizes(problem, driver.sized_tensors or len(list_sources(problem))))
    notes = driver.notes(problem) if driver.notes else ()
    return ProblemLine(DRIVER_NAMES.get(kind, kind), tuple(options), sizes, notes)


NOT_EXPRESSIBLE = "not-expressible.txt"
PROBLEM_FILES = (*(f"{DRIVER_NAMES.get(kind, kind)}.txt" for kind in DRIVERS), NOT_EXPRESSIBLE)


@dataclass(frozen=True)
class ProblemFiles:
    """The files that were written, and the problems that benchdnn cannot run."""

    files: dict[str, Path]  # By driver
    lines: dict[Problem, ProblemLine]
    not_expressible: dict[Problem, str]  # The reasons, each in one line
    refused: Path  # The file of these problems, if there are any


def write_problem_files(
    calls: Mapping[Problem, Calls], folder: Path, *, dialect: Dialect, overwrite: bool = False
) -> ProblemFiles:
    """Write `conv.txt`, `matmul.txt` …, and the unsupported problems to `not-expressible.txt`.

    Each problem is one line that stands alone, costliest first, after a comment with its calls
    and times. Two problems that differ in nothing that benchdnn reads share a line. `overwrite`
    replaces an earlier call's files.

    Raises:
        InputError: A file exists, or cannot be written.
    """
    lines, reasons = express(calls, dialect)
    by_driver: dict[str, list[Problem]] = defaultdict(list)
    for problem, line in lines.items():
        by_driver[line.driver].append(problem)
    files = {driver: folder / f"{driver}.txt" for driver in by_driver}
    contents = {
        files[driver]: file_text(driver, {problem: lines[problem] for problem in problems},
                                 calls, dialect)
        for driver, problems in by_driver.items()
    }  # fmt: skip
    refused = folder / NOT_EXPRESSIBLE
    if reasons:
        contents[refused] = refused_text(reasons, calls)
    require_free_outputs(list(contents), overwrite=overwrite)
    if overwrite:
        # An earlier call's files are not of this log.
        for name in PROBLEM_FILES:
            if folder / name not in contents:
                (folder / name).unlink(missing_ok=True)
    for file, text in contents.items():
        write_atomically(file, text)
    return ProblemFiles(files=files, lines=lines, not_expressible=reasons, refused=refused)


def express(
    calls: Mapping[Problem, Calls], dialect: Dialect
) -> tuple[dict[Problem, ProblemLine], dict[Problem, str]]:
    """Return each problem's line, or the reason why there is none; the costliest first."""
    lines, reasons = {}, {}
    for problem in sorted(calls, key=lambda problem: -calls[problem].total_ms):
        try:
            lines[problem] = problem_line(problem, dialect)
        except NotExpressibleError as error:
            reasons[problem] = str(error)
    return lines, reasons


def file_text(
    driver: str,
    lines: Mapping[Problem, ProblemLine],
    calls: Mapping[Problem, Calls],
    dialect: Dialect,
) -> str:
    """Return the text of one driver's file."""
    layouts = "as in the log" if dialect.layouts == "log" else "the library's choice"
    text = [
        f"# benchdnn --mode=P --{driver} --batch={driver}.txt",
        f"# For benchdnn {dialect.major}.x; layouts: {layouts}.",
    ]
    by_text: dict[str, list[str]] = defaultdict(list)
    for problem, line in lines.items():
        notes = "".join(f"; {note}" for note in line.notes)
        comment = f"# {format_calls(calls[problem])}; {problem.implementation}{notes}"
        by_text[line.text].append(comment)
    for line_text, comments in by_text.items():
        text += ["", *comments, line_text]
    return "\n".join(text) + "\n"


def refused_text(reasons: Mapping[Problem, str], calls: Mapping[Problem, Calls]) -> str:
    """Return the problems that benchdnn cannot run as in the log, with the reasons."""
    total = sum(problem_calls.total_ms for problem_calls in calls.values()) or 1.0
    text = []
    for problem, reason in reasons.items():
        share = calls[problem].total_ms / total
        memories = " ".join(
            f"{memory.role}:{memory.type}:{memory.layout}" for memory in problem.memories
        )
        values = (problem.engine, problem.kind, problem.implementation, problem.direction,
                  memories, problem.attributes, problem.auxiliary, problem.shape)  # fmt: skip
        text.append(f"{format_calls(calls[problem])}, {share:.2%} of the time: {reason}")
        text.append(f"    {','.join(values)}")
    return "\n".join(text) + "\n"


def format_calls(calls: Calls) -> str:
    """Format the number of calls and the time of a problem."""
    times = "call" if calls.count == 1 else "calls"
    return f"{calls.count} {times}, {calls.total_ms:.6g} ms ({calls.mean_ms:.6g} ms each)"
