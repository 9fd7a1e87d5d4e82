"""Two tables of a log: which torch operator executed which primitive, and why primitives are slow.

Operators are in logs of `retinanet profile capture`, reasons in those written with `dispatch` in
ONEDNN_VERBOSE, which `capture` sets.
"""

from collections import Counter
from collections.abc import Sequence

from common.charts import Column, Table, text_column
from profiling.onednn_log.log import Calls, OneDnnLog, work_of
from profiling.onednn_log.parse import Operator
from profiling.onednn_log.work import (
    CONVOLUTIONS,
    Problem,
    is_fallback,
    kind_and_direction,
    named_sizes,
)
from profiling.sums import ProblemCalls

MEASURES = (
    Column("calls", ","),
    Column("ms", ",.1f", name="total_ms"),
    Column("share", ".1%"),
)
NO_OPERATOR = "(outside of operators)"


def attributed_share(log: OneDnnLog) -> float:
    """Return the share of oneDNN's time whose operator is known."""
    known = (
        calls.total_ms
        for operator, problems in log.operators.items()
        if operator.name
        for calls in problems.values()
    )
    return sum(known) / log.total_ms if log.total_ms else 0.0


def operators_in_full(log: OneDnnLog) -> Table:
    """Return a row for each operator, module, shape of inputs and problem, the costliest first."""
    total = log.total_ms or 1.0
    names = ("operator", "caller", "module", "input_shapes", "primitive", "implementation", "shape")
    rows = [
        (
            *operator,
            kind_and_direction(problem.kind, problem.direction),
            *(problem.implementation, problem.shape),
            *(calls.count, calls.total_ms, calls.total_ms / total),
        )
        for operator, problems in log.operators.items()
        for problem, calls in problems.items()
    ]
    rows.sort(key=lambda row: -row[-1])
    return Table("", (*map(text_column, names), *MEASURES), rows)


def operator_table(log: OneDnnLog, *, top: int) -> Table:
    """Return the sums by operator and kind of primitive, the costliest first, with modules."""
    total = log.total_ms or 1.0
    sums: dict[tuple[str, str], Calls] = {}
    modules: dict[tuple[str, str], Counter[str]] = {}
    for operator, problems in log.operators.items():
        for problem, calls in problems.items():
            key = operator_name(operator), kind_and_direction(problem.kind, problem.direction)
            sums.setdefault(key, Calls()).merge(calls)
            modules.setdefault(key, Counter())[operator.module] += calls.total_ms  # type: ignore[assignment]
    ordered = sorted(sums.items(), key=lambda item: -item[1].total_ms)
    rows = [
        (*key, calls.count, calls.total_ms, calls.total_ms / total, costliest(modules[key], total))
        for key, calls in ordered[:top]
    ]
    title = (
        f"the {len(rows)} costliest of {len(ordered)} pairs of torch operator and primitive; "
        f"operators are known for {attributed_share(log):.1%} of oneDNN's time"
    )
    last = text_column("costliest module, share, + others", name="module")
    columns = (text_column("operator"), text_column("primitive"), *MEASURES, last)
    return Table(title, columns, rows)


def operator_name(operator: Operator) -> str:
    """Return the operator, after the one that the program or autograd called."""
    if not operator.name:
        return NO_OPERATOR
    names = dict.fromkeys((operator.caller, operator.name))
    return " > ".join(name.removeprefix("aten::") for name in names if name)


def costliest(modules: Counter[str], total: float) -> str:
    """Return `ResNet.layer1.0.conv1, 11%, +12`."""
    named = [(name, ms) for name, ms in modules.most_common() if name]
    if not named:
        return ""
    others = f", +{len(named) - 1}" if len(named) > 1 else ""
    return f"{named[0][0]}, {named[0][1] / total:.0%}{others}"


def fallback_table(log: OneDnnLog, rows: Sequence[ProblemCalls]) -> Table:
    """Return the problems that general code computes, with why other code was skipped.

    A reason begins with the implementation, or with the file of oneDNN that refused. The line of
    such a file does not name the problem: it was written before another line of the same kind.
    """
    slow = [row for row in rows if is_general(row.problem)]
    columns = (
        *map(text_column, ("primitive", "implementation", "types", "shape")),
        *MEASURES,
        text_column("skipped implementations"),
    )
    cells = [
        (
            kind_and_direction(row.problem.kind, row.problem.direction),
            row.problem.implementation,
            row.problem.types,
            row.problem.shape,
            *(row.calls, row.total_ms, row.share),
            "\n".join(reasons(log, row.problem)),
        )
        for row in slow
    ]
    share = sum(row.share for row in slow)
    title = f"{len(slow)} problems by general code, {share:.1%} of oneDNN's time, and why"
    return Table(title, columns, cells)


def is_general(problem: Problem) -> bool:
    """Return whether code that is not made for the problem computes it.

    It is a fallback, plain C++ (`simple`), or code for dense convolutions in a depthwise one.
    """
    name = problem.implementation
    if is_fallback(problem) or name.startswith("simple"):
        return True
    sizes = named_sizes(problem.shape) if problem.kind in CONVOLUTIONS else {}
    is_depthwise = sizes.get("g", 1) > 1 and sizes["g"] == sizes.get("ic") == sizes.get("oc")
    return is_depthwise and "dw" not in name and "depthwise" not in name


def reasons(log: OneDnnLog, problem: Problem) -> list[str]:
    """Return why faster implementations of a problem were skipped, in oneDNN's order."""
    return list(log.skipped.get(work_of(problem), {}))
