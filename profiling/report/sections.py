"""The page's sections in the order in which a person reads them, as far as a log has them.

What ran, where the time goes, what it could be against the machine's peaks, what to look at next,
all problems, and what else the log says. Sections that need more than a log are in
`profiling.report.optional_sections`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from common.charts import (
    BLUE,
    DARK,
    GREEN,
    ORANGE,
    PALE,
    PURPLE,
    RED,
    Bar,
    Column,
    Piece,
    Table,
    colour_legend,
    horizontal_bars,
    new_figure,
    text_column,
)
from common.console import significant
from profiling.onednn_log.work import DIRECTION_COLOURS, direction_name, readable
from profiling.report.advice import saving
from profiling.report.material import (
    Material,
    Measured,
    MeasuredPart,
    Phase,
    parts_of,
    phases_of,
    sum_of,
)
from profiling.report.optional_sections import (
    log_against_reference,
    operators_of_trace,
    ranks_and_counters,
    run_against_replay,
)
from profiling.report.page import (
    Advice,
    Block,
    Chart,
    Facts,
    Missing,
    Section,
    Suggestions,
    Text,
    chart,
    count,
    listed,
    three,
)
from profiling.stats import Part, draw_distribution, draw_roofline, rows_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def all_sections(material: Material, advice: Sequence[Advice]) -> list[Section]:
    """Return what ran, where time goes, what it could be, what to look at next, and all numbers."""
    sections: dict[str, tuple[str, Callable[[Material], Sequence[Block]]]] = {
        "what-ran": ("What ran, and on what", what_ran),
        "phases": ("Where a step's time goes", time_by_phase),
        "kinds": ("Where oneDNN's time goes", time_by_kind),
        "trace": ("Operators, oneDNN's and others", operators_of_trace),
        "could-be": ("What it could be", what_it_could_be),
        "efficiency": ("In the run, and alone", run_against_replay),
        "comparison": ("Against the reference", log_against_reference),
        "next": ("What to look at next", partial(what_next, advice=advice)),
        "problems": ("All problems", all_problems),
        "ranks": ("Ranks, steps and counters", ranks_and_counters),
        "log": ("What else the log says", log_remarks),
    }
    names = list(sections) if material.measured.problems else ["what-ran", "kinds", "ranks", "log"]
    return [Section(name, sections[name][0], sections[name][1](material)) for name in names]


OF_A_RUN = {
    "run": "run",
    "ranks": "ranks",
    "threads": "threads a rank",
    "images_a_step": "images a step and rank",
    "image_size": "image size",
    "precision": "precision",
    "engine": "engine",
    "convolutions": "convolutions",
    "own_kernels": "own kernels",
    "allocator": "allocator",
    "torch": "torch",
    "ipex": "IPEX",
    "host": "host",
}
"""Entries of `profilednn_facts`, and their names on the page."""
OF_A_MACHINE = {
    "processor": "processor",
    "usable_cpus": "CPUs that it may use",
    "cpu_capability": "torch's instruction set",
    "system": "system",
    "python": "Python",
}
"""Entries of environment.json."""


def what_ran(material: Material) -> list[Block]:
    """Return library, machine, run and size of the log; of equal names the first counts."""
    log, environment = material.log, material.environment or {}
    threads = " and ".join(map(str, log.threads))
    packages = environment.get("packages")
    packages = packages if isinstance(packages, Mapping) else {}
    commands = [environment.get("command"), *(facts.get("command") for facts in log.facts)]
    command = next((words for words in commands if isinstance(words, list)), [])
    numbers = sorted({number for _, number in material.measured.steps.whole if number is not None})
    values_of_run = [
        (name, dict.fromkeys(text_of(facts.get(key)) for facts in log.facts))
        for key, name in OF_A_RUN.items()
    ]
    pairs = [
        ("library", " and ".join(f"oneDNN {version}" for version in log.versions)),
        ("instruction set", "; ".join(log.instruction_sets)),
        ("oneDNN's threads", f"{threads}, {' and '.join(log.runtimes)}" if threads else ""),
        *((name, ", ".join(filter(None, values))) for name, values in values_of_run),
        *((name, text_of(environment.get(key))) for key, name in OF_A_MACHINE.items()),
        ("packages", listed([f"{name} {version}" for name, version in packages.items()], 12)),
        ("command", " ".join(map(str, command))),
        ("logs", listed(log.files, 6)),
        ("read", f"{log.lines:,} lines, {log.onednn_lines:,} of them oneDNN's"),
        ("steps", listed([f"{number:,}" for number in numbers], 20)),
    ]
    values: dict[str, str] = {}
    for name, value in pairs:
        if value:
            values.setdefault(name, value)
    blocks: list[Block] = [Facts(list(values.items()))]
    if not material.environment:
        text = (
            "Of the machine the log tells no more. A run of ours writes environment.json; "
            "give it with"
        )
        blocks.append(Missing(text, "--environment runs/NAME/environment.json"))
    return blocks


def text_of(value: object) -> str:
    """Return a value of JSON for a person; nothing for null."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)[:300]


def time_by_phase(material: Material) -> list[Block]:
    """Return a step by phases: oneDNN's time in each, and the time outside oneDNN."""
    phases = phases_of(material.log)
    if not phases:
        text = "The log does not tell the phases of a step. A training of ours marks them:"
        return [Missing(text, "python train.py profile.onednn.steps=20-22")]
    spoken = "; ".join(f"{phase.name} {significant(phase.wall_ms)} ms" for phase in phases)
    bars = chart(
        lambda: draw_phases(phases),
        name="phases",
        label=f"Bars of a step's phases: {spoken}.",
        caption="Each bar is a phase of a mean step. Colours: oneDNN's primitives by kind. Grey: "
        "all that is not oneDNN's, such as other operators, Python, and waiting.",
    )
    whole = sum(phase.wall_ms for phase in phases)
    rows = [
        (p.name, p.wall_ms, p.wall_ms / whole if whole else None, p.onednn_ms, p.elsewhere_ms)
        for p in phases
    ]
    columns = (
        text_column("phase"),
        Column("ms", three, meaning="From begin to end of the phase"),
        Column("share", ".1%", meaning="Of the step"),
        Column("in oneDNN, ms", three),
        Column("elsewhere, ms", three),
    )
    inside = sum(phase.onednn_ms for phase in phases)
    outside = sum(phase.elsewhere_ms for phase in phases)
    total = ("whole step", whole, 1.0 if whole else None, inside, outside)
    return [bars, Table("A mean step by phases", columns, rows, totals=[total])]


COLOURS = (BLUE, ORANGE, GREEN, PURPLE, RED)  # Of the largest kinds
SMALLEST_LABELLED = 0.05
"""Share of the longest phase from which on a piece has its milliseconds in it."""


def draw_phases(phases: Sequence[Phase]) -> "Figure":
    """Draw a bar for each phase, in pieces by kind of primitive. [milliseconds a step]"""
    totals: dict[str, float] = {}
    for phase in phases:
        for kind, ms in phase.kinds_ms.items():
            totals[kind] = totals.get(kind, 0.0) + ms
    largest = sorted(totals, key=lambda kind: -totals[kind])[: len(COLOURS)]
    colour_of = dict(zip(largest, COLOURS, strict=False))
    longest = max(phase.wall_ms for phase in phases)
    bars = []
    for phase in phases:
        lengths = [(phase.kinds_ms.get(kind, 0.0), colour) for kind, colour in colour_of.items()]
        others = sum(ms for kind, ms in phase.kinds_ms.items() if kind not in colour_of)
        lengths += [(others, DARK), (phase.elsewhere_ms, PALE)]
        pieces = [Piece(ms, colour, f"{ms:,.0f}" if ms > SMALLEST_LABELLED * longest else "")
                  for ms, colour in lengths]  # fmt: skip
        bars.append(Bar(phase.name, pieces, f"{significant(phase.wall_ms)} ms"))
    figure = new_figure(height=1.6 + 0.5 * len(phases))
    axes = figure.subplots()
    horizontal_bars(axes, bars, room=1.15)
    axes.set_xlabel("milliseconds a step")
    colours = {kind.replace("_", " "): colour for kind, colour in colour_of.items()}
    if len(totals) > len(largest):
        colours["other kinds"] = DARK
    colours["not in oneDNN"] = PALE
    colour_legend(figure, colours, columns=4, loc="outside lower center", frameon=False)
    return figure


def time_by_kind(material: Material) -> list[Block]:
    """Return oneDNN's time by kind and direction: the paper's Figure 2, of a mean step."""
    measured = material.measured
    if not measured.problems:
        return [Text(["The log has no whole step with primitives of oneDNN in it."])]
    parts = parts_of(measured.problems)

    def draw() -> "Figure":
        shown = [
            Part(part.kind, part.direction, 0, part.ms, part.share, gflop=0.0, gflop_per_s=None)
            for part in parts
        ]
        figure = draw_distribution(shown, title="")
        figure.axes[0].set_xlabel(f"milliseconds {measured.unit}")
        return figure

    spoken = "; ".join(f"{part.name} {part.share:.1%}" for part in parts[:8])
    bars = chart(
        draw,
        name="kinds",
        label=f"Bars of oneDNN's time by kind of primitive and direction: {spoken}.",
        caption="oneDNN's time by kind of primitive; colours tell the direction. Percentages are "
        "of oneDNN's time.",
    )
    columns = (
        text_column("kind"),
        Column(f"calls {measured.unit}", count),
        Column(f"ms {measured.unit}", three),
        Column("share", ".1%", meaning="Of oneDNN's time"),
        Column("GFLOP/s", three, meaning="Of those whose arithmetic is counted"),
    )
    rows = [(part.name, part.calls, part.ms, part.share, part.gflop_per_s) for part in parts]
    total = ("all", sum(part.calls for part in parts), measured.ms, None, None)
    return [bars, Table("oneDNN's time by kind and direction", columns, rows, totals=[total])]


DOTS = 1000  # Problems in the roofline chart, the costliest


def what_it_could_be(material: Material) -> list[Block]:
    """Return the roofline, and what is lost against it."""
    measured, peaks = material.measured, material.peaks
    blocks: list[Block] = []
    if peaks is None:
        text = (
            "What the machine can do at most is not known here. Measure it, and give the file "
            "with --peaks:"
        )
        blocks.append(Missing(text, "python -m profiling peaks --json peaks.json"))
    else:
        rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in peaks.matrix_gflop_per_s.items())
        text = (
            f"Peaks: {peaks.threads} threads of {peaks.cpu}; {rates} GFLOP/s; memory "
            f"{peaks.bandwidth_gb_per_s:,.0f} GB/s."
        )
        blocks.append(Text([possible(measured), text]))
        if measured.roofline_ms is not None:
            parts = parts_of(measured.problems)
            blocks += [lost_chart(parts, measured.unit), lost_table(parts, measured)]
    rows = rows_of(material.log.calls(measured.steps.holds))
    under = " Lines: the machine's peaks." if peaks else ""
    few = f" The {DOTS:,} costliest problems of {len(rows):,} are shown."
    roofline = chart(
        lambda: draw_roofline(rows[:DOTS], peaks, title=""),
        name="roofline",
        label="Roofline: what each problem reaches; the table of all problems has the numbers.",
        caption="Left: a dot for each problem that multiplies; the further right, the more work "
        "for each byte; the higher, the faster; its area is its share of the time. Right: what "
        f"only moves data.{under}{few if len(rows) > DOTS else ''}",
    )
    return [*blocks, roofline]


def possible(measured: Measured) -> str:
    """Return sentences on oneDNN's part and a whole step at the roofline."""
    ideal = measured.roofline_ms
    if ideal is None:
        return "For none of its problems a bound is known."
    text = (
        f"At the machine's measured peaks oneDNN's primitives would take {three(ideal)} ms "
        f"{measured.unit} instead of {three(measured.ms)} ms."
    )
    if measured.wall_ms:
        step = measured.wall_ms - measured.ms + ideal
        text += (
            f" A step would then take {three(step)} ms instead of {three(measured.wall_ms)} ms, "
            "if all else stays as it is."
        )
    return f"{text} No program reaches that everywhere; it is what lies between that counts."


BARS = 12
PALER = 0.35


def lost_chart(parts: Sequence[MeasuredPart], unit: str) -> Chart:
    """Return a bar for each kind and direction: full up to the roofline, pale beyond it."""

    def draw() -> "Figure":
        bars = []
        for part in [part for part in parts if part.bounded_ms][:BARS]:
            colour = DIRECTION_COLOURS.get(direction_name(part.direction), DIRECTION_COLOURS[""])
            beyond = Piece(part.lost_ms, (colour, PALER))
            pieces = [Piece(part.bounded_ms - part.lost_ms, colour), beyond]
            whole, lost = significant(part.bounded_ms), significant(part.lost_ms)
            bars.append(Bar(part.name, pieces, f"{whole} ms, {lost} beyond the roofline"))
        figure = new_figure(height=1.6 + 0.42 * len(bars))
        axes = figure.subplots()
        horizontal_bars(axes, bars, room=1.5)
        axes.set_xlabel(f"milliseconds {unit}; full: at the roofline, pale: beyond it")
        return figure

    spoken = "; ".join(
        f"{part.name} {significant(part.lost_ms)} of {significant(part.bounded_ms)} ms"
        for part in parts[:8]
    )
    return chart(
        draw,
        name="lost",
        label=f"Bars of time beyond the roofline: {spoken}.",
        caption="Full: the time that each kind would take at the machine's peaks (arithmetic or "
        "memory, what takes longer). Pale: what it takes beyond that.",
    )


def lost_table(parts: Sequence[MeasuredPart], measured: Measured) -> Table:
    """Return the same in numbers, most lost first."""
    rows: list[tuple[object, ...]] = []
    for part in sorted(parts, key=lambda part: -part.lost_ms):
        ideal = part.bounded_ms - part.lost_ms
        bounds = (ideal, ideal / part.bounded_ms, part.lost_ms) if part.bounded_ms else [None] * 3
        rows.append((part.name, part.ms, *bounds))
    columns = (
        text_column("kind"),
        Column(f"ms {measured.unit}", three),
        Column("at the roofline, ms", three, meaning="Of problems whose work is known"),
        Column("of roofline", ".1%"),
        Column("lost, ms", three),
    )
    total = ("all", measured.ms, measured.roofline_ms, None, sum(part.lost_ms for part in parts))
    note = (
        "Data that stays in a cache can be faster than the roofline says; of such problems "
        "nothing counts as lost."
    )
    title = "What is lost against the roofline, most first"
    return Table(title, columns, rows, totals=[total], notes=[note])


MEANING = (
    "Read off the numbers of this page, what could save most first. What two of them would save "
    "may be the same time, so the numbers do not add up; and they are bounds, not promises."
)


def what_next(material: Material, *, advice: Sequence[Advice]) -> list[Block]:
    """Return each piece of advice with its numbers."""
    if not advice:
        needed = " Much of what is looked for needs the machine's peaks (--peaks)."
        return [Text([f"Nothing stands out in what was given.{'' if material.peaks else needed}"])]
    items = [(item, saving(item, material.measured)) for item in advice]
    return [Text([MEANING]), Suggestions(items)]


MOST_PROBLEMS = 500  # Rows of the table; what is beyond is one row


def all_problems(material: Material) -> list[Block]:
    """Return the costliest problems, each with what it reaches; what is beyond is one row."""
    measured = material.measured
    columns = [
        text_column("problem", meaning="Below it: oneDNN's own shape and layouts"),
        text_column("implementation"),
        Column(f"calls {measured.unit}", count),
        Column(f"ms {measured.unit}", three),
        Column("share", ".1%", meaning="Of oneDNN's time"),
        Column("GFLOP/s", three),
        Column("GB/s", three, meaning="Of its tensors, each once"),
        Column("of roofline", ".1%", meaning="Time at the machine's peaks over measured time"),
        Column("lost, ms", three, meaning="Beyond the roofline"),
    ]
    if all(problem.roofline_ms is None for problem in measured.problems):
        columns = columns[:-2]
    shown, others = measured.problems[:MOST_PROBLEMS], measured.problems[MOST_PROBLEMS:]
    sums = [("all", measured.problems)]
    notes = []
    if others:
        sums.insert(0, (f"{len(others):,} other problems", others))
        notes = [
            f"These are the {MOST_PROBLEMS} costliest of {len(measured.problems):,} problems; the "
            f"other {len(others):,} are one row. All are in primitives.csv of `python -m profiling "
            f"stats {material.log_words} --out DIR`."
        ]
    totals = []
    for name, group in sums:
        part = sum_of("", "", group)
        totals.append((name, "", part.calls, part.ms, part.share, None, None, None, part.lost_ms))
    rows: list[tuple[object, ...]] = []
    for item in shown:
        problem, ideal = item.problem, item.roofline_ms
        how = " ".join(filter(None, (problem.layouts, problem.attributes, problem.auxiliary)))
        name = "\n".join(filter(None, (readable(problem), problem.shape, how)))
        ratio = None if ideal is None or not item.ms else ideal / item.ms
        numbers = (item.calls, item.ms, item.share, item.gflop_per_s, item.gbyte_per_s)
        rows.append((name, problem.implementation, *numbers, ratio, item.lost_ms))
    table = Table(
        "oneDNN's problems, the costliest first",
        columns,
        [row[: len(columns)] for row in rows],
        totals=[total[: len(columns)] for total in totals],
        notes=notes,
    )
    return [table]


MOST_REMARKS = 50


def log_remarks(material: Material) -> list[Block]:
    """Return everything that is in no number above."""
    log = material.log
    blocks: list[Block] = []
    if log.creation_states:
        states = ", ".join(f"{count:,} {state}" for state, count in log.creation_states.items())
        total = sum(calls.total_ms for calls in log.creations.values())
        blocks.append(Text([f"Primitives were made: {states}; {three(total)} ms in all."]))
    else:
        text = "The log does not tell when primitives are made. oneDNN writes that too with"
        blocks.append(Missing(text, "ONEDNN_VERBOSE=2"))
    for title, counter in (
        ("Why implementations were passed over", log.dispatches),
        ("Errors, warnings and failed checks", log.messages),
    ):
        if counter:
            more = len(counter) - MOST_REMARKS
            notes = [f"{more:,} other texts are left out."] if more > 0 else []
            columns = (text_column("text"), Column("lines", ","))
            rows = counter.most_common(MOST_REMARKS)
            blocks.append(Table(title, columns, rows, notes=notes))
    if log.not_understood:
        more = log.not_understood_count - len(log.not_understood)
        table = Table(
            "Lines that look like oneDNN's and are not understood",
            (text_column("line"), text_column("why"), text_column("its beginning")),
            [(f"{line.file}:{line.line}", line.why, line.text[:80]) for line in log.not_understood],
            notes=[f"And {more:,} more."] if more > 0 else [],
        )
        blocks.append(table)
    else:
        blocks.append(Text(["Every line is understood."]))
    return blocks
