"""The sections of the page in reading order.

Run and machine, time by phase and kind, the roofline, findings, all problems, and other lines of
the log. Sections that need more than a log are in
`profiling.report.optional_sections`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
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
from common.console import significant, three_digits
from common.page import (
    Block,
    Chart,
    Facts,
    Missing,
    Section,
    Suggestion,
    Suggestions,
    Text,
    chart,
)
from common.wording import listed
from profiling.causes import fallback_table, operator_table
from profiling.onednn_log.log import OneDnnLog
from profiling.onednn_log.work import DIRECTION_COLOURS, direction_name, readable
from profiling.report.advice import Advice, saving
from profiling.report.material import (
    Material,
    Measured,
    Phase,
    find_phases,
)
from profiling.report.optional_sections import (
    log_against_reference,
    operators_of_trace,
    ranks_and_counters,
    run_against_replay,
)
from profiling.stats import draw_distribution, draw_roofline
from profiling.sums import Part, sum_by_kind, sum_by_problem, sum_up

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def all_sections(material: Material, advice: Sequence[Advice]) -> list[Section]:
    """Return all sections: the run, times, projections, findings, and all numbers."""
    sections: dict[str, tuple[str, Callable[[Material], Sequence[Block]]]] = {
        "what-ran": ("Run and machine", run_and_machine),
        "phases": ("Time of a step, by phase", time_by_phase),
        "kinds": ("oneDNN's time, by kind", time_by_kind),
        "trace": ("Operators in and outside oneDNN", operators_of_trace),
        "could-be": ("Roofline: how fast it could be", roofline_blocks),
        "efficiency": ("Efficiency: the run and isolated primitives", run_against_replay),
        "comparison": ("Comparison with the reference", log_against_reference),
        "next": ("What to look at next", partial(findings_blocks, advice=advice)),
        "problems": ("All problems", all_problems),
        "ranks": ("Ranks, steps and counters", ranks_and_counters),
        "log": ("Other lines of the log", log_remarks),
    }
    # A log without a complete step has no numbers for the other sections.
    names = list(sections) if material.measured.problems else ["what-ran", "kinds", "ranks", "log"]
    return [Section(name, sections[name][0], sections[name][1](material)) for name in names]


RUN_FACTS = {
    "run": "run",
    "ranks": "ranks",
    "threads": "threads per rank",
    "images_a_step": "images per step and rank",
    "image_size": "image size",
    "precision": "precision",
    "engine": "engine",
    "convolutions": "convolutions",
    "own_kernels": "this project's kernels",
    "allocator": "allocator",
    "torch": "torch",
    "ipex": "IPEX",
    "host": "host",
}
"""Entries of `profilednn_facts`, and their names on the page."""
MACHINE_FACTS = {
    "processor": "processor",
    "usable_cpus": "usable CPUs",
    "cpu_capability": "torch's instruction set",
    "system": "system",
    "python": "Python",
}
"""Entries of environment.json."""


def run_and_machine(material: Material) -> list[Block]:
    """Return library, machine, run and size of the log; of equal names the first counts."""
    log, environment = material.log, material.environment or {}
    threads = " and ".join(map(str, log.threads))
    packages = environment.get("packages")
    packages = packages if isinstance(packages, Mapping) else {}
    commands = [environment.get("command"), *(facts.get("command") for facts in log.facts)]
    command = next((arguments for arguments in commands if isinstance(arguments, list)), [])
    steps = material.measured.steps.whole
    numbers = sorted({where.step for where in steps if where.step is not None})
    values_of_run = [
        (name, dict.fromkeys(format_value(facts.get(key)) for facts in log.facts))
        for key, name in RUN_FACTS.items()
    ]
    pairs = [
        ("library", " and ".join(f"oneDNN {version}" for version in log.versions)),
        ("instruction set", "; ".join(log.instruction_sets)),
        ("oneDNN's threads", f"{threads}, {' and '.join(log.runtimes)}" if threads else ""),
        *((name, ", ".join(filter(None, values))) for name, values in values_of_run),
        *((name, format_value(environment.get(key))) for key, name in MACHINE_FACTS.items()),
        ("packages", listed([f"{name} {version}" for name, version in packages.items()], 12)),
        ("command", " ".join(map(str, command))),
        ("logs", listed(log.files, 6)),
        ("content", f"{log.lines:,} lines, {log.onednn_lines:,} from oneDNN"),
        ("steps", listed([f"{number:,}" for number in numbers], 20)),
    ]
    values: dict[str, str] = {}
    for name, value in pairs:
        if value:
            values.setdefault(name, value)
    blocks: list[Block] = [Facts(list(values.items()))]
    if not material.environment:
        text = (
            "The log has no more information about the machine. A training writes it to "
            "environment.json; pass it with"
        )
        blocks.append(Missing(text, "--environment runs/NAME/environment.json"))
    return blocks


def format_value(value: object) -> str:
    """Format a JSON value for people; null is an empty text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)[:300]


def time_by_phase(material: Material) -> list[Block]:
    """Return a step by phases: oneDNN's time in each, and the time outside oneDNN."""
    phases = find_phases(material.log)
    if not phases:
        text = "The log has no marks of phases. A training of this project writes them:"
        return [Missing(text, "retinanet train profile.onednn.steps=20-22")]
    bar_values = "; ".join(f"{phase.name} {significant(phase.wall_ms)} ms" for phase in phases)
    bars = chart(
        lambda: draw_phases(phases),
        name="phases",
        label=f"Bar chart of the phases of a step: {bar_values}.",
        caption="Each bar is a phase of a mean step. Colours: oneDNN's primitives by kind. Grey: "
        "time outside oneDNN, such as other operators, Python, and waiting.",
    )
    whole = sum(phase.wall_ms for phase in phases)
    rows = [
        (p.name, p.wall_ms, p.wall_ms / whole if whole else None, p.onednn_ms, p.elsewhere_ms)
        for p in phases
    ]
    columns = (
        text_column("phase"),
        Column("ms", three_digits, meaning="From begin to end of the phase"),
        Column("share", ".1%", meaning="Of the step"),
        Column("in oneDNN, ms", three_digits),
        Column("elsewhere, ms", three_digits),
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
    colour_by_kind = dict(zip(largest, COLOURS, strict=False))
    longest = max(phase.wall_ms for phase in phases)
    bars = []
    for phase in phases:
        lengths = [
            (phase.kinds_ms.get(kind, 0.0), colour) for kind, colour in colour_by_kind.items()
        ]
        others = sum(ms for kind, ms in phase.kinds_ms.items() if kind not in colour_by_kind)
        lengths += [(others, DARK), (phase.elsewhere_ms, PALE)]
        pieces = [Piece(ms, colour, f"{ms:,.0f}" if ms > SMALLEST_LABELLED * longest else "")
                  for ms, colour in lengths]  # fmt: skip
        bars.append(Bar(phase.name, pieces, f"{significant(phase.wall_ms)} ms"))
    figure = new_figure(height=1.6 + 0.5 * len(phases))
    axes = figure.subplots()
    horizontal_bars(axes, bars, room=1.15)
    axes.set_xlabel("time per step [ms]")
    colours = {kind.replace("_", " "): colour for kind, colour in colour_by_kind.items()}
    if len(totals) > len(largest):
        colours["other kinds"] = DARK
    colours["not in oneDNN"] = PALE
    colour_legend(figure, colours, columns=4, loc="outside lower center", frameon=False)
    return figure


def time_by_kind(material: Material) -> list[Block]:
    """Return oneDNN's time by kind and direction: the paper's Figure 2, of a mean step."""
    measured = material.measured
    if not measured.problems:
        return [Text(["The log has no complete step with oneDNN primitives."])]
    parts = sum_by_kind(measured.problems)

    def draw() -> "Figure":
        figure = draw_distribution(parts, title="")
        figure.axes[0].set_xlabel(f"time {measured.unit} [ms]")
        return figure

    bar_values = "; ".join(f"{part.name} {part.share:.1%}" for part in parts[:8])
    bars = chart(
        draw,
        name="kinds",
        label=f"Bar chart of oneDNN's time by kind of primitive and direction: {bar_values}.",
        caption="oneDNN's time by kind of primitive; colours: direction. Percentages are shares of "
        "oneDNN's time.",
    )
    columns = (
        text_column("kind"),
        Column(f"calls {measured.unit}", three_digits),
        Column(f"ms {measured.unit}", three_digits),
        Column("share", ".1%", meaning="Of oneDNN's time"),
        Column("GFLOP/s", three_digits, meaning="Of those whose arithmetic is counted"),
    )
    rows = [(part.name, part.calls, part.total_ms, part.share, part.gflop_per_s) for part in parts]
    total = ("all", sum(part.calls for part in parts), measured.ms, None, None)
    return [bars, Table("oneDNN's time by kind and direction", columns, rows, totals=[total])]


DOTS = 1000  # Problems in the roofline chart, the costliest


def roofline_blocks(material: Material) -> list[Block]:
    """Return the roofline, and the losses against it."""
    measured, peaks = material.measured, material.peaks
    blocks: list[Block] = []
    if peaks is None:
        text = (
            "The peak rates of the machine are not known. Measure them, and pass the file with "
            "--peaks:"
        )
        blocks.append(Missing(text, "retinanet profile peaks --json peaks.json"))
    else:
        rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in peaks.matrix_gflop_per_s.items())
        text = (
            f"Peaks: {peaks.threads} threads of {peaks.cpu}; {rates} GFLOP/s; memory "
            f"{peaks.bandwidth_gb_per_s:,.0f} GB/s."
        )
        blocks.append(Text([possible(measured), text]))
        if measured.roofline_ms is not None:
            parts = sum_by_kind(measured.problems)
            blocks += [lost_chart(parts, measured.unit), lost_table(parts, measured)]
    # Without peaks the dots are shown all the same, without lines.
    rows = sum_by_problem(material.log.calls(measured.steps.holds))
    lines = " Lines: peaks of the machine." if peaks else ""
    few = f" The {DOTS:,} costliest problems of {len(rows):,} are shown."
    roofline = chart(
        lambda: draw_roofline(rows[:DOTS], peaks, title=""),
        name="roofline",
        label="Roofline: rate of each problem; the table of all problems has the numbers.",
        caption="Left: a dot for each problem that multiplies matrices; its area is its share of "
        "the time; further right: more work per byte. Right: primitives that only move data."
        f"{lines}{few if len(rows) > DOTS else ''}",
    )
    return [*blocks, roofline]


def possible(measured: Measured) -> str:
    """Return sentences on oneDNN's part and a whole step at the roofline."""
    ideal = measured.roofline_ms
    if ideal is None:
        return "No problem has a known bound."
    text = (
        "At the measured peaks of the machine, oneDNN's primitives would take "
        f"{three_digits(ideal)} ms {measured.unit} instead of {three_digits(measured.ms)} ms."
    )
    if measured.wall_ms:
        step = measured.wall_ms - measured.ms + ideal
        text += (
            f" A step would then take {three_digits(step)} ms instead of "
            f"{three_digits(measured.wall_ms)} ms, with the time outside oneDNN unchanged."
        )
    return f"{text} No program reaches the peaks everywhere: this is a bound, not a target."


BARS = 12
PALER = 0.35


def lost_chart(parts: Sequence[Part], unit: str) -> Chart:
    """Return a bar for each kind and direction: full up to the roofline, pale beyond it."""

    def draw() -> "Figure":
        bars = []
        for part in [part for part in parts if part.bounded_ms][:BARS]:
            colour = DIRECTION_COLOURS.get(direction_name(part.direction), DIRECTION_COLOURS[""])
            # matplotlib takes a pair of colour and opacity.
            beyond = Piece(part.lost_ms, (colour, PALER))
            pieces = [Piece(part.bounded_ms - part.lost_ms, colour), beyond]
            whole, lost = significant(part.bounded_ms), significant(part.lost_ms)
            bars.append(Bar(part.name, pieces, f"{whole} ms, {lost} beyond the roofline"))
        figure = new_figure(height=1.6 + 0.42 * len(bars))
        axes = figure.subplots()
        horizontal_bars(axes, bars, room=1.5)
        axes.set_xlabel(f"time {unit} [ms]; full colour: at the roofline, pale: beyond it")
        return figure

    bar_values = "; ".join(
        f"{part.name} {significant(part.lost_ms)} of {significant(part.bounded_ms)} ms"
        for part in parts[:8]
    )
    return chart(
        draw,
        name="lost",
        label=f"Bar chart of time beyond the roofline: {bar_values}.",
        caption="Full colour: the time of each kind at the machine's peaks (arithmetic or memory, "
        "whichever takes longer). Pale: the time beyond that.",
    )


def lost_table(parts: Sequence[Part], measured: Measured) -> Table:
    """Return a table of the losses, the largest first."""
    rows: list[tuple[object, ...]] = []
    for part in sorted(parts, key=lambda part: -part.lost_ms):
        # Problems without a known bound are in no column but the first of the times.
        ideal = part.bounded_ms - part.lost_ms
        bounds = (ideal, ideal / part.bounded_ms, part.lost_ms) if part.bounded_ms else [None] * 3
        rows.append((part.name, part.total_ms, *bounds))
    columns = (
        text_column("kind"),
        Column(f"ms {measured.unit}", three_digits),
        Column(
            "at the roofline, ms",
            three_digits,
            meaning="Of problems with known arithmetic and size",
        ),
        Column("of roofline", ".1%"),
        Column("lost, ms", three_digits),
    )
    total = ("all", measured.ms, measured.roofline_ms, None, sum(part.lost_ms for part in parts))
    note = (
        "Data that stays in a cache can be faster than the roofline; such problems have no lost "
        "time."
    )
    title = "Time beyond the roofline"
    return Table(title, columns, rows, totals=[total], notes=[note])


MEANING = (
    "Findings from the numbers of this page, the largest possible saving first. Savings are upper "
    "bounds; two findings may concern the same time, so they do not add up."
)


def findings_blocks(material: Material, *, advice: Sequence[Advice]) -> list[Block]:
    """Return each piece of advice with its numbers."""
    if not advice:
        needed = " Many findings need the peaks of the machine (--peaks)."
        return [Text([f"There are no findings.{'' if material.peaks else needed}"])]
    items = [Suggestion(*item[:4], gain=saving(item, material.measured)) for item in advice]
    return [Text([MEANING]), Suggestions(items)]


MOST_PROBLEMS = 500  # Rows of the table; the other problems share one row


def all_problems(material: Material) -> list[Block]:
    """Return the costliest problems, each with its rates; the others share one row."""
    measured = material.measured
    columns = [
        text_column("problem", meaning="Small print: shape and layouts in oneDNN's notation"),
        text_column("implementation"),
        Column(f"calls {measured.unit}", three_digits),
        Column(f"ms {measured.unit}", three_digits),
        Column("share", ".1%", meaning="Of oneDNN's time"),
        Column("GFLOP/s", three_digits),
        Column("GB/s", three_digits, meaning="Each tensor counted once"),
        Column("of roofline", ".1%", meaning="Time at the machine's peaks / measured time"),
        Column("lost, ms", three_digits, meaning="Time beyond the roofline"),
    ]
    if all(problem.roofline_ms is None for problem in measured.problems):
        columns = columns[:-2]  # Without peaks there is no roofline
    shown, others = measured.problems[:MOST_PROBLEMS], measured.problems[MOST_PROBLEMS:]
    groups = [("all", measured.problems)]
    notes = []
    if others:
        groups.insert(0, (f"{len(others):,} other problems", others))
        notes = [
            f"The {MOST_PROBLEMS} costliest of {len(measured.problems):,} problems are shown; the "
            f"other {len(others):,} share one row. primitives.csv of `retinanet profile stats "
            f"{material.log_argument} --out DIR` has all of them."
        ]
    totals = []
    for name, group in groups:
        part = sum_up(group)
        sums = (part.calls, part.total_ms, part.share)
        totals.append((name, "", *sums, None, None, None, part.lost_ms))
    rows: list[tuple[object, ...]] = []
    for item in shown:
        problem, ideal = item.problem, item.roofline_ms
        how = " ".join(filter(None, (problem.layouts, problem.attributes, problem.auxiliary)))
        name = "\n".join(filter(None, (readable(problem), problem.shape, how)))
        ratio = None if ideal is None or not item.total_ms else ideal / item.total_ms
        numbers = (item.calls, item.total_ms, item.share, item.gflop_per_s, item.gbyte_per_s)
        rows.append((name, problem.implementation, *numbers, ratio, item.lost_ms))
    table = Table(
        "oneDNN's problems, the costliest first",
        columns,
        [row[: len(columns)] for row in rows],
        totals=[total[: len(columns)] for total in totals],
        notes=notes,
    )
    return [table, *causes(material.log)]


MOST_CAUSES = 100  # Rows of a table of operators, or of fallbacks


def causes(log: OneDnnLog) -> Iterator[Table]:
    """Yield which operators executed which primitives, and why slow code was chosen."""
    note = "Calls and times are those of the whole log."
    if log.operators:
        yield replace(operator_table(log, top=MOST_CAUSES), notes=[note])
    slow = fallback_table(log, sum_by_problem(log.calls()))
    if slow.rows:
        needed = [] if log.skipped else ["For the reasons, log with ONEDNN_VERBOSE=dispatch."]
        yield replace(slow, rows=slow.rows[:MOST_CAUSES], notes=[note, *needed])


MOST_REMARKS = 50


def log_remarks(material: Material) -> list[Block]:
    """Return creations, messages and lines that could not be parsed."""
    log = material.log
    blocks: list[Block] = []
    if log.creation_states:
        states = ", ".join(f"{count:,} {state}" for state, count in log.creation_states.items())
        total = sum(calls.total_ms for calls in log.creations.values())
        blocks.append(Text([f"Primitives created: {states}; {three_digits(total)} ms in total."]))
    else:
        text = "The log has no creations of primitives. oneDNN logs them with"
        blocks.append(Missing(text, "ONEDNN_VERBOSE=2"))
    for title, counter in (
        ("Reasons for skipped implementations", log.dispatches),
        ("Errors, warnings and failed checks", log.messages),
    ):
        if counter:
            hidden = len(counter) - MOST_REMARKS
            notes = [f"{hidden:,} more texts are not shown."] if hidden > 0 else []
            columns = (text_column("text"), Column("lines", ","))
            rows = counter.most_common(MOST_REMARKS)
            blocks.append(Table(title, columns, rows, notes=notes))
    if log.not_understood:
        hidden = log.not_understood_count - len(log.not_understood)
        table = Table(
            "oneDNN lines that cannot be parsed",
            (text_column("line"), text_column("reason"), text_column("beginning of the line")),
            [(f"{line.file}:{line.line}", line.why, line.text[:80]) for line in log.not_understood],
            notes=[f"{hidden:,} more lines are not shown."] if hidden > 0 else [],
        )
        blocks.append(table)
    else:
        blocks.append(Text(["All oneDNN lines were parsed."]))
    return blocks
