"""The page's chapters in the order in which a person reads them.

TODO-DOC What ran, and on what.

TODO-DOC Where the time goes: by phase of a step, and by kind of primitive.

TODO-DOC What it could be: oneDNN's time against the machine's peaks.

TODO-DOC All problems of the log.

TODO-DOC What else a log says: primitives made, implementations passed over, messages, lines left.

TODO-DOC From the material to the page.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from common.console import significant
from profiling.efficiency.analysis import kind_and_direction, readable
from profiling.onednn_log.log import OneDnnLog
from profiling.peaks.peaks import Peaks
from profiling.report.advice import Advice, summary_of, title_of
from profiling.report.material import (
    Material,
    Measured,
    MeasuredProblem,
    Phase,
    parts_of,
    phases_of,
)
from profiling.report.more_sections import (
    advice_of,
    comparison_section,
    efficiency_section,
    ranks_section,
    trace_section,
    what_next,
)
from profiling.report.page import (
    Block,
    Cell,
    Column,
    Facts,
    Missing,
    Section,
    Table,
    Text,
    chart,
    count,
    draw_lost,
    draw_phases,
    listed,
    number,
    percent,
    render_page,
    three,
)
from profiling.stats.tables import Part, draw_distribution, draw_roofline, rows_of


def all_sections(material: Material, advice: Sequence[Advice]) -> list[Section]:
    """What ran, where time goes, what it could be, what to look at next, and all in numbers."""
    if not material.measured.problems:
        nothing = Text(["The log has no whole step with primitives of oneDNN in it."])
        return [what_ran(material), Section("kinds", "Where oneDNN's time goes", [nothing]),
                ranks_section(material), log_remarks(material)]  # fmt: skip
    return [
        what_ran(material),
        *where_time_goes(material),
        trace_section(material),
        what_it_could_be(material),
        efficiency_section(material),
        comparison_section(material),
        what_next(material, advice),
        problems(material),
        ranks_section(material),
        log_remarks(material),
    ]


OF_A_RUN = (
    ("run", "run"),
    ("ranks", "ranks"),
    ("threads", "threads a rank"),
    ("images_a_step", "images a step and rank"),
    ("image_size", "image size"),
    ("precision", "precision"),
    ("engine", "engine"),
    ("convolutions", "convolutions"),
    ("own_kernels", "own kernels"),
    ("allocator", "allocator"),
    ("torch", "torch"),
    ("ipex", "IPEX"),
    ("host", "host"),
)
"""Of `profilednn_facts`, and what to call them."""
OF_A_MACHINE = (
    ("processor", "processor"),
    ("usable_cpus", "CPUs that it may use"),
    ("cpu_capability", "torch's instruction set"),
    ("system", "system"),
    ("python", "Python"),
)
"""Of environment.json."""
SHOWN = 6


def what_ran(material: Material) -> Section:
    """Library, machine, run, and how much of a log it is."""
    log, steps = material.log, material.measured.steps
    pairs = [("library", " and ".join(f"oneDNN {one}" for one in log.versions))]
    pairs += [("instruction set", "; ".join(log.instruction_sets))]
    if log.threads:
        threads = " and ".join(map(str, log.threads))
        pairs.append(("oneDNN's threads", f"{threads}, {' and '.join(log.runtimes)}"))
    pairs += run_facts(log.facts)
    environment = material.environment or {}
    pairs += [(name, text_of(environment.get(key))) for key, name in OF_A_MACHINE]
    if isinstance(environment.get("packages"), Mapping):
        packages = [f"{name} {version}" for name, version in environment["packages"].items()]
        pairs.append(("packages", listed(packages, 12)))
    pairs.append(("command", command_of(environment, log.facts)))
    pairs.append(("logs", listed(log.files, SHOWN)))
    lines = f"{log.lines:,} lines, {log.onednn_lines:,} of them oneDNN's"
    pairs.append(("read", lines))
    if steps.count:
        numbers = sorted({number for _, number in steps.whole if number is not None})
        pairs.append(("steps", listed([f"{number:,}" for number in numbers], 20)))
    known = dict(reversed([(name, value) for name, value in pairs if value]))
    shown = Facts([(name, known[name]) for name in dict.fromkeys(n for n, v in pairs if v)])
    missing = [] if material.environment else [
        Missing("Of the machine the log tells no more. A run of ours writes environment.json; "
                "give it with", "--environment runs/NAME/environment.json")
    ]  # fmt: skip
    return Section("what-ran", "What ran, and on what", [shown, *missing])


def run_facts(facts: list[dict[str, object]]) -> list[tuple[str, str]]:
    """Facts that all ranks tell; where ranks differ, each value once."""
    found = []
    for key, name in OF_A_RUN:
        values = dict.fromkeys(text_of(one.get(key)) for one in facts)
        found.append((name, ", ".join(value for value in values if value)))
    return found


def command_of(environment: Mapping[str, Any], facts: list[dict[str, object]]) -> str:
    """The command as it was typed."""
    commands = [environment.get("command"), *(one.get("command") for one in facts)]
    words = next((one for one in commands if isinstance(one, list)), [])
    return " ".join(map(str, words))


def text_of(value: object) -> str:
    """A value of JSON for a person; nothing for null."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)[:300]


def where_time_goes(material: Material) -> list[Section]:
    """Phases, then kinds."""
    phases = phases_of(material.log)
    blocks: list[Block] = []
    if phases:
        blocks = [phase_chart(phases), phase_table(phases)]
    else:
        blocks = [
            Missing(
                "The log does not tell the phases of a step. A training of ours marks them:",
                "python train.py profile.onednn.steps=20-22",
            )
        ]
    measured = material.measured
    kinds = [kinds_chart(measured), kinds_table(measured)]
    return [
        Section("phases", "Where a step's time goes", blocks),
        Section("kinds", "Where oneDNN's time goes", kinds),
    ]


def phase_chart(phases: list[Phase]) -> Block:
    """A bar for each phase."""
    spoken = "; ".join(f"{phase.name} {significant(phase.wall_ms)} ms" for phase in phases)
    return chart(
        lambda: draw_phases(phases),
        name="phases",
        label=f"Bars of a step's phases: {spoken}.",
        caption="Each bar is a phase of a mean step. Colours: oneDNN's primitives by kind. Grey: "
        "all that is not oneDNN's, such as other operators, Python, and waiting.",
    )


def phase_table(phases: list[Phase]) -> Table:
    """The same in numbers."""
    whole = sum(phase.wall_ms for phase in phases)

    def cells(name: str, wall: float, inside: float, outside: float) -> list[Cell]:
        share = wall / whole if whole else None
        return [Cell(name), number(wall), percent(share), number(inside), number(outside)]

    return Table(
        "A mean step by phases",
        (
            Column("phase", is_number=False),
            Column("ms", meaning="From begin to end of the phase"),
            Column("share", meaning="Of the step"),
            Column("in oneDNN, ms"),
            Column("elsewhere, ms"),
        ),
        [cells(p.name, p.wall_ms, p.onednn_ms, p.elsewhere_ms) for p in phases],
        totals=[
            cells(
                "whole step",
                whole,
                sum(phase.onednn_ms for phase in phases),
                sum(phase.elsewhere_ms for phase in phases),
            )
        ],
    )


def kinds_chart(measured: Measured) -> Block:
    """The paper's Figure 2, of a mean step where there are steps."""
    parts = [
        Part(part.kind, part.direction, calls=0, total_ms=part.ms, share=part.share, gflop=0.0,
             gflop_per_s=None)
        for part in parts_of(measured.problems)
    ]  # fmt: skip

    def draw() -> Figure:
        figure = draw_distribution(parts, title="")
        figure.axes[0].set_xlabel(f"milliseconds {measured.unit}")
        return figure

    spoken = "; ".join(
        f"{kind_and_direction(part.kind, part.direction)} {part.share:.1%}" for part in parts[:8]
    )
    return chart(
        draw,
        name="kinds",
        label=f"Bars of oneDNN's time by kind of primitive and direction: {spoken}.",
        caption="oneDNN's time by kind of primitive; colours tell the direction. Percentages are "
        "of oneDNN's time.",
    )


def kinds_table(measured: Measured) -> Table:
    """A row for each kind and direction."""
    parts = parts_of(measured.problems)
    rows = [
        [
            Cell(kind_and_direction(part.kind, part.direction)),
            count(part.calls),
            number(part.ms),
            percent(part.share),
            number(part.gflop_per_s),
        ]
        for part in parts
    ]
    total = [Cell("all"), count(sum(part.calls for part in parts)), number(measured.ms)]
    return Table(
        "oneDNN's time by kind and direction",
        (
            Column("kind", is_number=False),
            Column(f"calls {measured.unit}"),
            Column(f"ms {measured.unit}"),
            Column("share", meaning="Of oneDNN's time"),
            Column("GFLOP/s", meaning="Of those whose arithmetic is counted"),
        ),
        rows,
        totals=[[*total, Cell(""), Cell("")]],
    )


DOTS = 1000
"""Problems in the roofline chart, the costliest."""


def what_it_could_be(material: Material) -> Section:
    """The roofline, and what is lost against it."""
    measured, peaks = material.measured, material.peaks
    blocks: list[Block] = []
    if peaks is None:
        text = (
            "What the machine can do at most is not known here. Measure it, and give the file "
            "with --peaks:"
        )
        blocks.append(Missing(text, "python -m profiling peaks --json peaks.json"))
    else:
        blocks.append(Text([*possible(measured), peaks_text(peaks)]))
        if measured.roofline_ms is not None:
            blocks += [lost_chart(measured), lost_table(measured)]
    blocks.append(roofline_chart(material))
    return Section("could-be", "What it could be", blocks)


def possible(measured: Measured) -> list[str]:
    """oneDNN's part and a whole step at the roofline."""
    ideal = measured.roofline_ms
    if ideal is None:
        return ["For none of its problems a bound is known."]
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
    return [f"{text} No program reaches that everywhere; it is what lies between that counts."]


def peaks_text(peaks: Peaks) -> str:
    """On what, and how much."""
    rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in peaks.matrix_gflop_per_s.items())
    return (
        f"Peaks: {peaks.threads} threads of {peaks.cpu}; {rates} GFLOP/s; memory "
        f"{peaks.bandwidth_gb_per_s:,.0f} GB/s."
    )


def lost_chart(measured: Measured) -> Block:
    """Bars of time at and beyond the roofline."""
    parts = parts_of(measured.problems)
    spoken = "; ".join(
        f"{kind_and_direction(part.kind, part.direction)} {significant(part.lost_ms)} of "
        f"{significant(part.bounded_ms)} ms"
        for part in parts[:8]
    )
    return chart(
        lambda: draw_lost(parts, unit=measured.unit),
        name="lost",
        label=f"Bars of time beyond the roofline: {spoken}.",
        caption="Full: the time that each kind would take at the machine's peaks (arithmetic or "
        "memory, what takes longer). Pale: what it takes beyond that.",
    )


def lost_table(measured: Measured) -> Table:
    """The same in numbers."""
    parts = sorted(parts_of(measured.problems), key=lambda part: -part.lost_ms)
    rows = []
    for part in parts:
        ideal = part.bounded_ms - part.lost_ms
        ratio = ideal / part.bounded_ms if part.bounded_ms else None
        rows.append(
            [
                Cell(kind_and_direction(part.kind, part.direction)),
                number(part.ms),
                number(ideal) if part.bounded_ms else Cell(""),
                percent(ratio),
                number(part.lost_ms) if part.bounded_ms else Cell(""),
            ]
        )
    return Table(
        "What is lost against the roofline, most first",
        (
            Column("kind", is_number=False),
            Column(f"ms {measured.unit}"),
            Column("at the roofline, ms", meaning="Of problems whose work is known"),
            Column("of roofline"),
            Column("lost, ms"),
        ),
        rows,
        totals=[
            [
                Cell("all"),
                number(measured.ms),
                number(measured.roofline_ms),
                Cell(""),
                number(sum(part.lost_ms for part in parts)),
            ]
        ],
        notes=[
            "Data that stays in a cache can be faster than the roofline says; of such problems "
            "nothing counts as lost."
        ],
    )


def roofline_chart(material: Material) -> Block:
    """A dot for each problem, below the ceilings if there are any."""
    rows = rows_of(material.log.calls(material.measured.steps.holds))
    few = (
        f" The {DOTS:,} costliest problems of {len(rows):,} are shown." if len(rows) > DOTS else ""
    )
    under = " Lines: the machine's peaks." if material.peaks else ""
    return chart(
        lambda: draw_roofline(rows[:DOTS], material.peaks, title=""),
        name="roofline",
        label="Roofline: what each problem reaches; the table of all problems has the numbers.",
        caption="Left: a dot for each problem that multiplies; the further right, the more work "
        "for each byte; the higher, the faster; its area is its share of the time. Right: what "
        f"only moves data.{under}{few}",
    )


MOST_PROBLEMS = 500
"""Rows of the table; what is beyond is one row."""


def problems(material: Material) -> Section:
    """The costliest, each with what it reaches."""
    measured = material.measured
    has_roofline = any(one.roofline_ms is not None for one in measured.problems)
    blocks: list[Block] = [problem_table(measured, has_roofline=has_roofline)]
    rest = len(measured.problems) - MOST_PROBLEMS
    if rest > 0:
        note = (
            f"These are the {MOST_PROBLEMS} costliest of {len(measured.problems):,} problems; the other "
            f"{rest:,} are one row. All are in primitives.csv of `python -m profiling stats "
            f"{material.log_words} --out DIR`."
        )
        table = problem_table(measured, has_roofline=has_roofline, notes=[note])
        blocks = [table]
    return Section("problems", "All problems", blocks)


def problem_table(measured: Measured, *, has_roofline: bool, notes: Sequence[str] = ()) -> Table:
    """A row for each problem, the costliest first."""
    rows = [cells(one, has_roofline=has_roofline) for one in measured.problems[:MOST_PROBLEMS]]
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
    if len(measured.problems) > MOST_PROBLEMS:
        sums.insert(
            0,
            (
                f"{len(measured.problems) - MOST_PROBLEMS:,} other problems",
                measured.problems[MOST_PROBLEMS:],
            ),
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


MOST_REMARKS = 50


def log_remarks(material: Material) -> Section:
    """Everything that is in no number above."""
    log = material.log
    blocks: list[Block] = [Text([made(log)])] if log.creation_states else []
    if not log.creation_states:
        blocks.append(
            Missing(
                "The log does not tell when primitives are made. oneDNN writes that too with",
                "ONEDNN_VERBOSE=2",
            )
        )
    for caption, counter in (
        ("Why implementations were passed over", log.dispatches),
        ("Errors, warnings and failed checks", log.messages),
    ):
        if counter:
            blocks.append(counted(caption, counter))
    blocks.append(
        not_understood(log) if log.not_understood else Text(["Every line is understood."])
    )
    return Section("log", "What else the log says", blocks)


def made(log: OneDnnLog) -> str:
    """How often primitives were made, and how long that took."""
    states = ", ".join(f"{count:,} {state}" for state, count in log.creation_states.items())
    total = sum(calls.total_ms for calls in log.creations.values())
    return f"Primitives were made: {states}; {three(total)} ms in all."


def counted(caption: str, counter: Counter[str]) -> Table:
    """Texts, the most frequent first."""
    rows = [
        [Cell(text), Cell(f"{count:,}", count)] for text, count in counter.most_common(MOST_REMARKS)
    ]
    more = len(counter) - MOST_REMARKS
    notes = [f"{more:,} other texts are left out."] if more > 0 else []
    return Table(caption, (Column("text", is_number=False), Column("lines")), rows, notes=notes)


def not_understood(log: OneDnnLog) -> Table:
    """The first lines of which nothing is in any number."""
    rows = [
        [Cell(f"{one.file}:{one.line}"), Cell(one.why), Cell(one.text[:80])]
        for one in log.not_understood
    ]
    more = log.not_understood_count - len(rows)
    return Table(
        "Lines that look like oneDNN's and are not understood",
        (
            Column("line", is_number=False),
            Column("why", is_number=False),
            Column("its beginning", is_number=False),
        ),
        rows,
        notes=[f"And {more:,} more."] if more > 0 else [],
    )


class Composed(NamedTuple):
    """A page, and what it comes to."""

    html: str
    summary: list[str]


def compose(material: Material, *, title: str | None) -> Composed:
    """All findings, chapters and sentences; `title`: None for one of the run's own."""
    advice = advice_of(material)
    cautions = [f"Caution: {caution}." for caution in material.cautions]
    summary = [*cautions, *summary_of(material, advice)]
    sections = all_sections(material, advice)
    return Composed(
        render_page(sections, title=title or title_of(material), summary=summary), summary
    )
