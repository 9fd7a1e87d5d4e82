"""Ranks and steps beside each other, and what perf counted in them."""

from profiling.report.advice_on_ranks import onednn_ms_by_step, wall_ms_by_step
from profiling.report.blocks import Block, Cell, Column, Missing, Section, Table, Text
from profiling.report.counters import Counters
from profiling.report.material import Material
from profiling.report.words import number

ROWS = 200
COUNTED = (
    ("task-clock", "CPU time, ms"),
    ("page-faults", "page faults"),
    ("context-switches", "context switches"),
    ("cpu-migrations", "moves between CPUs"),
    ("cycles", "cycles"),
    ("instructions", "instructions"),
    ("branch-misses", "branch misses"),
    ("cache-references", "cache references"),
    ("cache-misses", "cache misses"),
    ("dTLB-load-misses", "TLB misses of loads"),
)


def ranks_section(material: Material) -> Section:
    """A row for each rank's step, and for each rank's counters."""
    blocks: list[Block] = []
    wall = wall_ms_by_step(material.log)
    if wall:
        inside = onednn_ms_by_step(material.log)
        rows = [
            [
                Cell("" if step is None else str(step)),
                Cell("" if rank is None else str(rank), rank),
                number(wall[rank, step]),
                number(inside[rank, step]),
                number(wall[rank, step] - inside[rank, step]),
            ]
            for rank, step in sorted(wall, key=lambda one: (one[1] or 0, one[0] or 0))
        ]
        notes = [f"The first {ROWS} of {len(rows):,}."] if len(rows) > ROWS else []
        columns = [
            Column("step", is_number=False),
            *map(Column, ("rank", "ms", "in oneDNN, ms", "elsewhere, ms")),
        ]
        blocks.append(Table("Each rank's steps", columns, rows[:ROWS], notes=notes))
    if material.counters:
        blocks += counters_blocks(material)
    else:
        text = "Page faults, context switches and cycles of the steps perf counts, where it can:"
        command = "python train.py profile.onednn.steps=20-22 profile.perf=true"
        blocks.append(Missing(text, command))
    return Section("ranks", "Ranks, steps and counters", blocks)


def counters_blocks(material: Material) -> list[Block]:
    """Counts of a mean step, and what was not counted."""
    shown = [
        (event, name)
        for event, name in COUNTED
        if any(event in one.counts for one in material.counters)
    ]
    rows = [counters_row(one, [event for event, _ in shown]) for one in material.counters]
    columns = [Column("rank", is_number=False), Column("s a step"), Column("busy CPUs"),
               *(Column(name) for _, name in shown)]  # fmt: skip
    blocks: list[Block] = [Table("perf's counters of a mean step", columns, rows)]
    missing = dict.fromkeys(event for one in material.counters for event in one.not_counted)
    if missing:
        blocks.append(Text([f"perf has no counters here for {', '.join(missing)}."]))
    return blocks


def counters_row(one: Counters, events: list[str]) -> list[Cell]:
    """One rank."""
    clock = one.a_step("task-clock")
    seconds = one.seconds / one.steps
    busy = clock / 1000 / seconds if clock is not None and seconds else None
    return [
        Cell(str(one.rank)),
        number(seconds),
        number(busy),
        *(number(one.a_step(e)) for e in events),
    ]
