"""Bytes that one run of a contestant moves."""

from profiling.bench.recipe import Prepared
from profiling.byte_counter import ByteCounter

COMPILED = "compiled graphs"
"""Stands as phase and operator for all that torch.compile has made one."""

CALLED_IN_GRAPHS = ("aten::convolution", "aten::mm", "aten::addmm", "mkldnn::")
"""Beginnings of operators that compiled graphs call, and that are in inductor's count."""

Row = tuple[str, str, int, int, int]
"""Phase, operator, calls, bytes read, bytes written."""


def bytes_of_run(prepared: Prepared) -> list[Row]:
    """Run once and count, the largest first.

    The traffic of compiled graphs is what inductor counts of them, read and written together, and
    is given as read: their fused kernels are no operators.
    """
    phase = prepared.phase
    with ByteCounter(lambda: phase.name if phase is not None else "") as counter:
        prepared.run()
    rows: list[Row] = [
        (call.phase, call.operator, moved.calls, moved.read, moved.written)
        for call, moved in counter.moved.items()
    ]
    if prepared.compiled_bytes is not None:
        rows = [row for row in rows if not row[1].startswith(CALLED_IN_GRAPHS)]
        rows.append((COMPILED, COMPILED, 1, prepared.compiled_bytes(), 0))
    return sorted(rows, key=lambda row: -(row[3] + row[4]))
