"""`python -m profiling ablate report`: the report's chapters, as HTML and as Markdown."""

from collections.abc import Sequence
from pathlib import Path

from common.charts import Cell, Column, Table, as_png, markdown_table
from common.console import make_console
from common.errors import FINISHED, InputError
from common.files import require_free_outputs, write_whole
from profiling.ablate.analysis import (
    ALIKE,
    HOLDS,
    NAMED,
    NOTHING,
    Outcome,
    Ratio,
    Row,
    Study,
    by_reason,
    drawn_quantity,
    machine_of,
    numbers_of,
    read_study,
    shown,
    shown_interval,
    spread,
)
from profiling.ablate.charts import picture
from profiling.ablate.definition import SizeName, read_all
from profiling.ablate.result import Result, default_folder
from profiling.report.page import (
    Block,
    Chart,
    Facts,
    Missing,
    Section,
    Text,
    chart,
    listed,
    render_page,
    sentence,
    three,
)

FILES = ("ablations.html", "ablations.md")
PICTURES = "pictures"
SECOND = "second"
"""Where results of a second run are looked for, below the first's, unless told otherwise."""


def make_report(
    *, quick: bool, out: Path | None, again: Path | None, to: Path | None, overwrite: bool
) -> int:
    """Read results, draw, write; returns the exit code.

    Raises:
        InputError: There are no results, or a file cannot be read or written.
    """
    size: SizeName = "quick" if quick else "full"
    folder = out or default_folder(size)
    target = to or folder
    files = [target / name for name in FILES]
    require_free_outputs(files, overwrite=overwrite)
    study = read_study(read_all(), folder, again or folder / SECOND, size=size)
    if not study.results:
        raise InputError(
            f"{folder}: holds no results; measure some with `python -m profiling ablate run"
            f"{' --quick' if quick else ''}`"
        )
    for file, content in zip(files, pages_of(study), strict=True):
        write_whole(file, content)
    for row in study.rows:
        if row.result is not None and row.is_measured:
            figure = picture(row.ablation, row.result, row.outcomes)
            write_whole(target / PICTURES / f"{row.name}.png", as_png(figure))
    console = make_console()
    for line in summary(study):
        console.print(line, soft_wrap=True)
    console.print(f"page: {files[0]}; Markdown: {files[1]}, pictures beside it", soft_wrap=True)
    return FINISHED


def pages_of(study: Study) -> tuple[str, str]:
    """Return the report as HTML and as Markdown, in the order of `FILES`."""
    title = f"The paper's ablations, measured here ({size_words(study)})"
    sections, words = sections_of(study), summary(study)
    return (
        render_page(sections, title=title, summary=words),
        markdown_page(sections, title=title, summary=words, pictures=PICTURES),
    )


def size_words(study: Study) -> str:
    """Return such as `320×320, 2 cores`."""
    sizes = {result.definition["workload"]["image_size"] for result in study.results}
    usual = max(sizes, key=lambda size: sum(
        result.definition["workload"]["image_size"] == size for result in study.results
    ))  # fmt: skip
    cores = {result.environment["cores"] for result in study.results}
    return f"{usual}×{usual}, {' or '.join(map(str, sorted(cores)))} cores"


LEFT = {
    "bars": "medians, a dot for each round",
    "shares": "medians of what each part takes",
    "curves": "medians, a thin line for each round",
    "grid": "medians, by ranks",
    "points": "published runs",
}
"""What the left half of a picture shows, by the kind of chart."""


def sections_of(study: Study) -> list[Section]:
    """Return all comparisons, a chapter for each ablation, the method, the machine."""
    return [
        Section("all", "All comparisons", all_blocks(study)),
        *(row_section(row) for row in study.rows),
        Section("method", "How it was measured", [Text(METHOD)]),
        Section("machine", "On what", [Facts(list(machine_of(study.results).items()))]),
    ]


def all_blocks(study: Study) -> list[Block]:
    """Return a row for every comparison, and what could not be measured."""
    columns = [
        Column("ablation", is_number=False),
        Column("what", is_number=False),
        Column("ours", meaning="the median of the rounds' ratios"),
        Column("interval", is_number=False),
        Column("paper"),
        Column("is", is_number=False, meaning="in which terms both are"),
        Column("allocator", is_number=False),
        Column("second run"),
        Column("holds", is_number=False, meaning="whether a second run has the same sign and size"),
    ]
    rows = [comparison_cells(row, one) for row in study.rows for one in row.outcomes]
    missing = [
        f"{sentence(reason)} {listed(names, NAMED)}" for reason, names in study.left_out.items()
    ]
    return [
        Table("Every comparison, beside the paper's figure", columns, rows),
        *([Text(["What this machine lacks:", *missing])] if missing else []),
    ]


def comparison_cells(row: Row, one: Outcome) -> list[Cell]:
    """Return a comparison's row."""
    kind, paper = one.comparison.ratio, one.comparison.paper
    return [
        Cell(row.name),
        Cell(one.what),
        ratio_cell(one.ratio, kind, otherwise="–"),
        Cell(shown_interval(one.ratio, kind) if one.ratio else ""),
        Cell(shown(paper, kind), paper) if paper else Cell(""),
        Cell(kind if one.ratio else "not measured"),
        Cell(row.allocators_of(one)),
        ratio_cell(one.again, kind),
        Cell(holding(one)),
    ]


def ratio_cell(ratio: Ratio | None, kind: str, *, otherwise: str = "") -> Cell:
    """Return a median in its terms."""
    return Cell(shown(ratio.median, kind), ratio.median) if ratio else Cell(otherwise)


def row_section(row: Row) -> Section:
    """Return a chapter: the question, picture, sentences, variants and command."""
    ablation = row.ablation
    blocks: list[Block] = [
        Text([f"{ablation.question} {ablation.source}: {ablation.says}."]),
    ]
    result = row.result
    if result is not None and row.is_measured:
        left = LEFT[ablation.chart.kind]
        blocks.append(
            chart(
                lambda: picture(ablation, result, row.outcomes),
                name=row.name,
                label=ablation.question,
                caption=f"Left: {left}. Right: ratios with their intervals.",
            )
        )
    sentences = [verdict(one) for one in row.outcomes]
    blocks.append(Text([*sentences, *filter(None, [calls_sentence(row)]), *remarks(row)]))
    if result is not None and row.is_measured:
        blocks.append(variants_table(result, row))
    if result is None:
        blocks.append(Missing("Not measured yet:", row.command))
    else:
        blocks.append(Facts([("measured", result.ended), ("command", result.command)]))
    return Section(row.name, row.name, blocks)


def variants_table(result: Result, row: Row) -> Table:
    """Return a row for each variant."""
    quantity, unit = drawn_quantity(result, row.ablation.chart)
    columns = [
        Column("variant", is_number=False),
        Column("what it is", is_number=False),
        Column("allocator", is_number=False),
        *map(Column, (f"median {unit}", "lowest", "highest", "page faults", "peak MB", "rounds")),
    ]
    rows = []
    for name in result.definition["variants"]:
        numbers = numbers_of(result, name, quantity=quantity)
        faults, peak = numbers.page_faults, numbers.peak_mb
        rows.append(
            [
                Cell(name),
                Cell(row.ablation.variants[name].about),
                Cell(numbers.allocator),
                *(Cell(three(value), value) for value in spread(numbers.values)),
                Cell("") if faults is None else Cell(f"{faults:,.0f}", faults),
                Cell("") if peak is None else Cell(f"{peak:,.0f}", peak),
                Cell(str(len(numbers.values)), len(numbers.values)),
            ]
        )
    notes = [
        f"Not run: {listed(names, NAMED)}: {reason}."
        for reason, names in by_reason(result.left_out).items()
    ]
    return Table("Who ran", columns, rows, notes=notes)


METHOD = (
    "Each variant is a process of its own, with its own memory policy and a core for each thread, "
    "and they run in turn, A B A B, one at a time: when the machine is slower for a while, it is "
    "so for all. Weights, images and boxes come from one seed. After the warm-up every run counts.",
    "A ratio is taken round by round, and the median counts. Its interval is the range between "
    "two of these ratios in which the true median lies with at least 90 % confidence, by the sign "
    "test, which assumes nothing of how times scatter; with fewer than five rounds it is the "
    "lowest and the highest.",
    f"Ours and the paper's are called about the same within a factor of {ALIKE:g}. What scatters "
    "so much that it could be the paper's figure as well as none at all is called neither. A "
    f"difference of less than {NOTHING:.0%}, or one whose interval holds 1, is called none.",
    "A conclusion holds where a second run has the same sign and lies within a factor of "
    f"{HOLDS:g}; where neither finds a difference, the factor alone counts.",
    "The paper gives ratios only, of other processors (Cooper Lake, 28 cores a socket) and other "
    "versions; nothing here is scaled to them.",
)


def summary(study: Study) -> list[str]:
    """Return the report's summary in a few sentences."""
    outcomes = study.outcomes
    measured = [one for one in outcomes if one.ratio]
    beside = [one.beside_paper for one in measured if one.beside_paper]
    unsure = "unsure" in beside
    lines = [
        f"{sum(row.is_measured for row in study.rows)} of {len(study.rows)} ablations and "
        f"{len(measured)} of {len(outcomes)} comparisons were measured. "
        f"Of {len(beside)} that the paper has a figure for, {beside.count('alike')} come out about "
        f"the same here, {beside.count('more')} larger and {beside.count('less')} smaller"
        + (f"; of {beside.count('unsure')} the rounds scatter too much." if unsure else ".")
    ]
    second = [one.holds for one in measured if one.holds is not None]
    if second:
        lines.append(
            f"A second run bears out {sum(second)} of {len(second)} conclusions, by sign and size."
        )
    unfinished = [row.name for row in study.rows if row.state]
    if unfinished:
        lines.append(f"Not finished: {', '.join(unfinished)}.")
    return lines


def verdict(one: Outcome) -> str:
    """Return a comparison in a sentence."""
    if one.ratio is None:
        return f"{one.what}: {one.missing}."
    kind = one.comparison.ratio
    interval = shown_interval(one.ratio, kind)
    words = {"times as fast": " as fast", "times as much": " as much", "share": ""}[kind]
    found = f"{one.what}: {shown(one.ratio.median, kind)}{words}"
    found += f" ({interval})" if interval else ""
    if kind != "share" and one.ratio.rounds > 1 and not one.ratio.is_clear:
        found += ", no difference"
    if one.comparison.paper:
        relation = {"alike": "about", "more": "more than", "less": "less than"}
        words = relation.get(one.beside_paper, "beside")
        found += f", {words} the paper's {shown(one.comparison.paper, kind)}"
    return f"{found}. {one.why}".strip()


def holding(one: Outcome) -> str:
    """Return `yes` or `no`; empty without a second run."""
    return {True: "yes", False: "no", None: ""}[one.holds]


def remarks(row: Row) -> list[str]:
    """Return further remarks on an ablation."""
    found = [row.ablation.remark] if row.ablation.remark else []
    if row.state:
        found.append(f"Incomplete: {row.state}.")
    if row.has_other_again:
        found.append("The second run is of another definition, and is left out.")
    if row.result and row.result.busy_cores and max(row.result.busy_cores) > 0.1:
        cores = max(row.result.busy_cores)
        found.append(f"Other work kept {cores:.2f} cores busy meanwhile.")
    return found


def calls_sentence(row: Row) -> str:
    """Return what comparing two logs has found; empty where none were compared."""
    calls = row.result.calls if row.result else None
    if not calls:
        return ""
    kinds = [one for one in calls["kinds"] if one["first_calls"] != one["second_calls"]]
    words = [
        f"{one['first_calls'] - one['second_calls']:+.0f} {one['kind']} "
        f"({one['first_calls']:.0f} against {one['second_calls']:.0f}, "
        f"{one['first_ms'] - one['second_ms']:+.0f} ms)"
        for one in kinds
    ]
    return (
        f"`profiling compare` of one step's logs finds, {calls['first']} against "
        f"{calls['second']}: {', '.join(words) or 'as many calls of every kind'}."
    )


def markdown_page(
    sections: Sequence[Section], *, title: str, summary: Sequence[str], pictures: str
) -> str:
    """Return the whole page as Markdown.

    Args:
        sections: In order.
        title: Its heading.
        summary: Sentences before all.
        pictures: The folder of pictures, as seen from the page: `SECTION.png` for each chart.
    """
    parts = [f"# {title}", *summary]
    for section in sections:
        parts.append(f"## {section.heading}")
        for block in section.blocks:
            parts += block_parts(block, picture=f"{pictures}/{section.name}.png")
    return "\n\n".join(parts) + "\n"


def block_parts(block: Block, *, picture: str) -> list[str]:
    """Return a block's paragraphs."""
    match block:
        case Table():
            return [block.markdown(), *block.notes]
        case Chart():
            return [f"![{block.caption}]({picture})", f"*{block.caption}*"]
        case Facts():
            return [markdown_table(("what", "value"), block.pairs)]
        case Text():
            return list(block.paragraphs)
        case Missing():
            return [f"{block.text} `{block.command}`"]
        case _:
            raise AssertionError(f"{type(block).__name__} is not in reports of ablations")
