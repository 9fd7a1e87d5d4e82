"""Any problem of a log in benchdnn's language, or why there are no words for it.

TODO-DOC Problem files: what `benchdnn --DRIVER --batch=FILE` reads, one file for each driver.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from common.files import require_free_outputs, write_whole
from profiling.onednn_log.log import Calls
from profiling.onednn_log.work import Problem
from profiling.replay.benchdnn_drivers import (
    batch_normalization_line,
    binary_line,
    concat_line,
    convolution_line,
    eltwise_line,
    group_normalization_line,
    inner_product_line,
    layer_normalization_line,
    lrn_line,
    matmul_line,
    pooling_line,
    prelu_line,
    reduction_line,
    reorder_line,
    resampling_line,
    rnn_line,
    shuffle_line,
    softmax_line,
    sum_line,
)
from profiling.replay.benchdnn_fields import Dialect, NotExpressibleError, ProblemLine

DRIVERS: dict[str, Callable[[Problem, Dialect], ProblemLine]] = {
    "batch_normalization": batch_normalization_line,
    "binary": binary_line,
    "concat": concat_line,
    "convolution": convolution_line,
    "deconvolution": convolution_line,
    "eltwise": eltwise_line,
    "group_normalization": group_normalization_line,
    "inner_product": inner_product_line,
    "layer_normalization": layer_normalization_line,
    "logsoftmax": softmax_line,
    "lrn": lrn_line,
    "matmul": matmul_line,
    "pooling": pooling_line,
    "pooling_v2": pooling_line,
    "prelu": prelu_line,
    "reduction": reduction_line,
    "reorder": reorder_line,
    "resampling": resampling_line,
    "rnn": rnn_line,
    "shuffle": shuffle_line,
    "softmax": softmax_line,
    "softmax_v2": softmax_line,
    "sum": sum_line,
}

NO_WORDS = {
    "graph": "a partition of a graph: benchdnn's --graph runs a JSON file of the graph, which "
    "ONEDNN_GRAPH_DUMP=subgraph writes, and the log does not hold it",
    "ukernel": "a micro-kernel: the log does not hold the batch and the leading dimensions that "
    "benchdnn's --brgemm needs",
    "common": "no primitive",
}
"""Components of the library whose work cannot be told to benchdnn, with the reason."""

NO_DRIVER = {
    "gemm": "a plain GEMM call, for which benchdnn has no driver",
    "gemm_api": "a plain GEMM call, for which benchdnn has no driver",
    "brgemm": NO_WORDS["ukernel"],
    "sdpa": "attention as one primitive: benchdnn runs it as a graph only",
    "zero_pad": "padding with zeros is no primitive of its own in oneDNN's log",
}


def problem_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """A problem as benchdnn's driver wants it.

    Raises:
        NotExpressibleError: There are no words for it; the message says why.
    """
    if problem.component in NO_WORDS:
        raise NotExpressibleError(NO_WORDS[problem.component])
    if not problem.engine.startswith("cpu") or "2" in problem.engine:
        raise NotExpressibleError(f"it ran on {problem.engine}, and replays are of CPUs")
    if problem.kind in NO_DRIVER:
        raise NotExpressibleError(NO_DRIVER[problem.kind])
    if problem.kind not in DRIVERS:
        raise NotExpressibleError(f"{problem.kind} is no kind of primitive that is known here")
    return DRIVERS[problem.kind](problem, dialect)


NOT_EXPRESSIBLE = "not-expressible.txt"

ALL_DRIVERS = (
    "binary", "bnorm", "concat", "conv", "deconv", "eltwise", "gnorm", "ip", "lnorm", "lrn",
    "matmul", "pool", "prelu", "reduction", "reorder", "resampling", "rnn", "shuffle", "softmax",
    "sum",
)  # fmt: skip


@dataclass(frozen=True)
class ProblemFiles:
    """What was written, and what could not be."""

    files: dict[str, Path]
    """By driver."""
    lines: dict[Problem, ProblemLine]
    not_expressible: dict[Problem, str]
    """Why, in one line."""
    refused: Path
    """Where those are written, if there are any."""


def write_problem_files(
    calls: Mapping[Problem, Calls], folder: Path, *, dialect: Dialect, overwrite: bool = False
) -> ProblemFiles:
    """Write `conv.txt`, `matmul.txt` …, and what has no words in `not-expressible.txt`.

    Each problem is one line that stands alone, costliest first, after a comment with its calls
    and times. Two problems that differ in nothing that benchdnn is told share a line.

    Args:
        calls: The problems, with their calls in the log.
        folder: Where files go.
        dialect: benchdnn's.
        overwrite: Whether to take the place of an earlier call's files.

    Raises:
        InputError: A file exists, or cannot be written.
    """
    lines, refused = express(calls, dialect)
    by_driver: dict[str, list[Problem]] = defaultdict(list)
    for problem, line in lines.items():
        by_driver[line.driver].append(problem)
    contents = {
        folder / f"{driver}.txt": file_text(driver, problems, lines, calls, dialect)
        for driver, problems in by_driver.items()
    }
    if refused:
        contents[folder / NOT_EXPRESSIBLE] = refused_text(refused, calls)
    require_free_outputs(list(contents), overwrite=overwrite)
    if overwrite:
        remove_earlier(folder, keep=contents)
    for file, text in contents.items():
        write_whole(file, text)
    return ProblemFiles(
        files={driver: folder / f"{driver}.txt" for driver in by_driver},
        lines=lines,
        not_expressible=refused,
        refused=folder / NOT_EXPRESSIBLE,
    )


def remove_earlier(folder: Path, *, keep: Collection[Path]) -> None:
    """Remove an earlier call's problem files, which are not of this log."""
    for name in (*(f"{driver}.txt" for driver in ALL_DRIVERS), NOT_EXPRESSIBLE):
        if folder / name not in keep:
            (folder / name).unlink(missing_ok=True)


def express(
    calls: Mapping[Problem, Calls], dialect: Dialect
) -> tuple[dict[Problem, ProblemLine], dict[Problem, str]]:
    """Each problem's line, or why there is none; costliest first."""
    lines, refused = {}, {}
    for problem in sorted(calls, key=lambda one: -calls[one].total_ms):
        try:
            lines[problem] = problem_line(problem, dialect)
        except NotExpressibleError as error:
            refused[problem] = str(error)
    return lines, refused


def file_text(
    driver: str,
    problems: list[Problem],
    lines: Mapping[Problem, ProblemLine],
    calls: Mapping[Problem, Calls],
    dialect: Dialect,
) -> str:
    """A file of one driver."""
    layouts = "as in the log" if dialect.layouts == "log" else "the library's choice"
    text = [
        f"# benchdnn --mode=P --{driver} --batch={driver}.txt",
        f"# For benchdnn {dialect.major}.x; layouts: {layouts}.",
    ]
    by_line: dict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        by_line[lines[problem].text].append(problem)
    for line, same in by_line.items():
        text.append("")
        for problem in same:
            notes = "".join(f"; {note}" for note in lines[problem].notes)
            text.append(f"# {told(calls[problem])}; {problem.implementation}{notes}")
        text.append(line)
    return "\n".join(text) + "\n"


def refused_text(refused: Mapping[Problem, str], calls: Mapping[Problem, Calls]) -> str:
    """What benchdnn has no words for, with the reasons, costliest first."""
    total = sum(one.total_ms for one in calls.values()) or 1.0
    text = []
    for problem, why in refused.items():
        share = calls[problem].total_ms / total
        text.append(f"{told(calls[problem])}, {share:.2%} of the time: {why}")
        text.append(f"    {as_in_log(problem)}")
    return "\n".join(text) + "\n"


def told(calls: Calls) -> str:
    """How often and how long, in words."""
    times = "call" if calls.count == 1 else "calls"
    return f"{calls.count} {times}, {calls.total_ms:.6g} ms ({calls.mean_ms:.6g} ms each)"


def as_in_log(problem: Problem) -> str:
    """A problem's fields as a log has them, for people to recognise."""
    memories = " ".join(f"{one.role}:{one.type}:{one.layout}" for one in problem.memories)
    fields = (
        problem.engine,
        problem.kind,
        problem.implementation,
        problem.direction,
        memories,
        problem.attributes,
        problem.auxiliary,
        problem.shape,
    )
    return ",".join(fields)
