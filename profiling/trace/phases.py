"""Phases of a training in which none are marked."""

from collections.abc import Iterator, Sequence

from profiling.trace.spans import parents
from profiling.trace.trace import Trace

EVALUATE = "autograd::engine::evaluate_function: "
"""How the wrapper of each node begins that the backward pass runs."""
OF_OPTIMIZER = ("Optimizer.step#", "Optimizer.zero_grad#")
OF_DATA = "enumerate(DataLoader)#"


def unmarked_phases(
    trace: Trace, main: int, training: Sequence[int]
) -> Iterator[tuple[int, int, str]]:
    """Backward, optimizer and data, as torch itself lets one see them."""
    for one in trace.annotations:
        if one.thread == main and one.text.startswith(OF_OPTIMIZER):
            yield one.start, one.end, "optimizer"
        elif one.thread == main and one.text.startswith(OF_DATA):
            yield one.start, one.end, "data"
    operators = trace.operators
    outermost = sorted(
        (operators.start[span], span)
        for thread in training
        for span, parent in parents(operators, trace.by_thread.get(thread, ()))
        if parent < 0
    )
    run: tuple[int, int] | None = None
    for start, span in outermost:
        if operators.name_of(span).startswith(EVALUATE):
            first, last = run or (start, start)
            run = first, max(last, operators.end[span])
        elif run:
            yield *run, "backward"
            run = None
    if run:
        yield *run, "backward"
