"""All problems of the log."""

from collections.abc import Sequence

from profiling.efficiency.readable import readable
from profiling.report.blocks import Block, Cell, Column, Section, Table
from profiling.report.material import Material
from profiling.report.measured import Measured, MeasuredProblem
from profiling.report.words import count, number, percent

MOST = 500
"""Rows of the table; what is beyond is one row."""


def problems(material: Material) -> Section:
    """The costliest, each with what it reaches."""
    measured = material.measured
    has_roofline = any(one.roofline_ms is not None for one in measured.problems)
    blocks: list[Block] = [problem_table(measured, has_roofline=has_roofline)]
    rest = len(measured.problems) - MOST
    if rest > 0:
        note = (
            f"These are the {MOST} costliest of {len(measured.problems):,} problems; the other "
            f"{rest:,} are one row. All are in primitives.csv of `python -m profiling stats "
            f"{material.log_words} --out DIR`."
        )
        table = problem_table(measured, has_roofline=has_roofline, notes=[note])
        blocks = [table]
    return Section("problems", "All problems", blocks)


def problem_table(measured: Measured, *, has_roofline: bool, notes: Sequence[str] = ()) -> Table:
    """A row for each problem, the costliest first."""
    rows = [cells(one, has_roofline=has_roofline) for one in measured.problems[:MOST]]
    columns = [
        Column("problem", is_number=False, meaning="Below it: oneDNN's own shape and layouts"),
        Column("implementation", is_number=False),
        Column(f"calls {measured.unit}"),
        Column(f"ms {measured.unit}"),
        Column("share", meaning="Of oneDNN's time"),
        Column("GFLOP/s"),
        Column("GB/s", meaning="Of its tensors, each once"),
    ]
    if has_roofline:
        columns += [
            Column("of roofline", meaning="Time at the machine's peaks over measured time"),
            Column("lost, ms", meaning="Beyond the roofline"),
        ]
    return Table(
        "oneDNN's problems, the costliest first",
        columns,
        rows,
        totals=totals(measured, width=len(columns)),
        notes=notes,
    )


def cells(one: MeasuredProblem, *, has_roofline: bool) -> list[Cell]:
    """One problem."""
    problem = one.problem
    how = " ".join(filter(None, (problem.layouts, problem.attributes, problem.auxiliary)))
    details = tuple(filter(None, (problem.shape, how)))
    row = [
        Cell(readable(problem), details=details),
        Cell(problem.implementation),
        count(one.calls),
        number(one.ms),
        percent(one.share),
        number(one.gflop_per_s),
        number(one.gbyte_per_s),
    ]
    if has_roofline:
        ratio = None if one.roofline_ms is None or not one.ms else one.roofline_ms / one.ms
        row += [percent(ratio), number(one.lost_ms)]
    return row


def totals(measured: Measured, *, width: int) -> list[list[Cell]]:
    """What has no row of its own, and the sum of all."""
    sums = [("all", measured.problems)]
    if len(measured.problems) > MOST:
        sums.insert(
            0, (f"{len(measured.problems) - MOST:,} other problems", measured.problems[MOST:])
        )
    rows = []
    for name, some in sums:
        row = [
            Cell(name),
            Cell(""),
            count(sum(one.calls for one in some)),
            number(sum(one.ms for one in some)),
            percent(sum(one.share for one in some)),
        ]
        row += [Cell("")] * (width - len(row) - (width > 7))
        if width > 7:
            row.append(number(sum(one.lost_ms or 0.0 for one in some)))
        rows.append(row)
    return rows
