"""`python -m profiling ablate report`: the report's chapters, as HTML and as Markdown."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from common.charts import Column, Table, markdown_table, save_chart, text_column
from common.console import make_console
from common.errors import FINISHED, InputError
from common.files import require_free_outputs, write_whole
from profiling.ablate.analysis import (
    ALIKE,
    HOLDS,
    NAMED,
    NOTHING,
    Outcome,
    Row,
    Study,
    by_reason,
    machine_of,
    ratio_cell,
    read_study,
    shown,
    shown_interval,
    variant_numbers,
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
    """Read results, draw, write; return the exit code.

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
            save_chart(figure, target / PICTURES / f"{row.name}.png")
    console = make_console()
    for line in summary(study):
        console.print(line, soft_wrap=True)
    console.print(f"page: {files[0]}; Markdown: {files[1]}, pictures beside it", soft_wrap=True)
    return FINISHED


def pages_of(study: Study) -> tuple[str, str]:
    """Return the report as HTML and as Markdown, in the order of `FILES`."""
    sizes = [result.definition["workload"]["image_size"] for result in study.results]
    usual = max(set(sizes), key=sizes.count)
    cores = " or ".join(map(str, sorted({result.environment["cores"] for result in study.results})))
    title = f"The paper's ablations, measured here ({usual}×{usual}, {cores} cores)"
    sections, sentences = sections_of(study), summary(study)
    return (
        render_page(sections, title=title, summary=sentences),
        markdown_page(sections, title=title, summary=sentences, pictures=PICTURES),
    )


LEFT = {
    "bars": "medians, a dot for each round",
    "shares": "medians of what each part takes",
    "curves": "medians, a thin line for each round",
    "grid": "medians, by ranks",
    "points": "published runs",
}
"""The left half of a picture in words, by the kind of chart."""


def sections_of(study: Study) -> list[Section]:
    """Return all comparisons, a chapter for each ablation, the method, the machine."""
    left_out = {
        f"{row.name}: {variant}": reason
        for row in study.rows
        for variant, reason in (row.result.left_out if row.result else {}).items()
    }
    lacking = [
        f"{sentence(why)} {listed(names, NAMED)}" for why, names in by_reason(left_out).items()
    ]
    blocks: list[Block] = [comparisons_table(study)]
    if lacking:
        blocks.append(Text(["What this machine lacks:", *lacking]))
    return [
        Section("all", "All comparisons", blocks),
        *(row_section(row) for row in study.rows),
        Section("method", "How it was measured", [Text(METHOD)]),
        Section("machine", "On what", [Facts(list(machine_of(study.results).items()))]),
    ]


def comparisons_table(study: Study) -> Table:
    """Return a row for every comparison."""
    columns = [
        text_column("ablation"),
        text_column("what"),
        Column("ours", meaning="the median of the rounds' ratios"),
        text_column("interval"),
        Column("paper"),
        text_column("is", meaning="in which terms both are"),
        text_column("allocator"),
        Column("second run"),
        text_column("holds", meaning="whether a second run has the same sign and size"),
    ]
    rows = [
        [
            row.name,
            *outcome.cells(),
            row.allocators_of(outcome),
            ratio_cell(outcome.again, outcome.comparison.ratio),
            {True: "yes", False: "no", None: ""}[outcome.holds],
        ]
        for row in study.rows
        for outcome in row.outcomes
    ]
    return Table("Every comparison, beside the paper's figure", columns, rows)


def row_section(row: Row) -> Section:
    """Return a chapter: the question, picture, sentences, variants and command."""
    ablation, result = row.ablation, row.result
    question = Text([f"{ablation.question} {ablation.source}: {ablation.says}."])
    calls = filter(None, [calls_sentence(row)])
    sentences = Text([*map(verdict, row.outcomes), *calls, *remarks(row)])
    blocks: list[Block]
    if result is None:
        blocks = [question, sentences, Missing("Not measured yet:", row.command)]
        return Section(row.name, row.name, blocks)
    facts = Facts([("measured", result.ended), ("command", result.command)])
    if not row.is_measured:
        return Section(row.name, row.name, [question, sentences, facts])
    drawing = chart(
        lambda: picture(ablation, result, row.outcomes),
        name=row.name,
        label=ablation.question,
        caption=f"Left: {LEFT[ablation.chart.kind]}. Right: ratios with their intervals.",
    )
    blocks = [question, drawing, sentences, variants_table(result, row), facts]
    return Section(row.name, row.name, blocks)


def variants_table(result: Result, row: Row) -> Table:
    """Return a row for each variant."""
    unit, variants = variant_numbers(result, row.ablation.chart)
    columns = [
        *map(text_column, ("variant", "what it is", "allocator")),
        *(Column(heading, three) for heading in (f"median {unit}", "lowest", "highest")),
        *(Column(heading, ",.0f") for heading in ("page faults", "peak MB", "rounds")),
    ]
    rows = [
        [
            variant.name,
            row.ablation.variants[variant.name].about,
            variant.allocator,
            *(median(variant.values), min(variant.values), max(variant.values)),
            *(variant.page_faults, variant.peak_mb, len(variant.values)),
        ]
        for variant in variants
    ]
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
    outcomes = [outcome for row in study.rows for outcome in row.outcomes]
    measured = [outcome for outcome in outcomes if outcome.ratio]
    beside = [outcome.beside_paper for outcome in measured if outcome.beside_paper]
    count = Counter(beside)
    scatters = f"; of {count['unsure']} the rounds scatter too much." if count["unsure"] else "."
    lines = [
        f"{sum(row.is_measured for row in study.rows)} of {len(study.rows)} ablations and "
        f"{len(measured)} of {len(outcomes)} comparisons were measured. "
        f"Of {len(beside)} that the paper has a figure for, {count['alike']} come out about "
        f"the same here, {count['more']} larger and {count['less']} smaller{scatters}"
    ]
    second = [outcome.holds for outcome in measured if outcome.holds is not None]
    if second:
        lines.append(
            f"A second run bears out {sum(second)} of {len(second)} conclusions, by sign and size."
        )
    unfinished = [row.name for row in study.rows if row.state]
    if unfinished:
        lines.append(f"Not finished: {', '.join(unfinished)}.")
    return lines


TERMS = {"times as fast": " as fast", "times as much": " as much", "share": ""}
RELATIONS = {"alike": "about", "more": "more than", "less": "less than"}


def verdict(outcome: Outcome) -> str:
    """Return a comparison in a sentence."""
    ratio, kind, paper = outcome.ratio, outcome.comparison.ratio, outcome.comparison.paper
    if ratio is None:
        return f"{outcome.what}: {outcome.missing}."
    interval = shown_interval(ratio, kind)
    text = f"{outcome.what}: {shown(ratio.median, kind)}{TERMS[kind]}"
    text += f" ({interval})" if interval else ""
    if kind != "share" and ratio.rounds > 1 and not ratio.is_clear:
        text += ", no difference"
    if paper:
        relation = RELATIONS.get(outcome.beside_paper, "beside")
        text += f", {relation} the paper's {shown(paper, kind)}"
    return f"{text}. {outcome.why}".strip()


def remarks(row: Row) -> list[str]:
    """Return further remarks on an ablation."""
    texts = [row.ablation.remark] if row.ablation.remark else []
    if row.state:
        texts.append(f"Incomplete: {row.state}.")
    if row.has_other_again:
        texts.append("The second run is of another definition, and is left out.")
    cores = max(row.result.busy_cores, default=0.0) if row.result else 0.0
    if cores > 0.1:
        texts.append(f"Other work kept {cores:.2f} cores busy meanwhile.")
    return texts


def calls_sentence(row: Row) -> str:
    """Return what comparing two logs has shown; empty where none were compared."""
    calls = row.result.calls if row.result else None
    if not calls:
        return ""
    differences = ", ".join(
        f"{kind['first_calls'] - kind['second_calls']:+.0f} {kind['kind']} "
        f"({kind['first_calls']:.0f} against {kind['second_calls']:.0f}, "
        f"{kind['first_ms'] - kind['second_ms']:+.0f} ms)"
        for kind in calls["kinds"]
        if kind["first_calls"] != kind["second_calls"]
    )
    return (
        f"`profiling compare` of one step's logs finds, {calls['first']} against "
        f"{calls['second']}: {differences or 'as many calls of every kind'}."
    )


def markdown_page(
    sections: Sequence[Section], *, title: str, summary: Sequence[str], pictures: str
) -> str:
    """Return the whole page as Markdown.

    `summary` are sentences before all; `pictures` is the folder of pictures, as seen from the page:
    `SECTION.png` for each chart.
    """
    parts = [f"# {title}", *summary]
    for section in sections:
        parts.append(f"## {section.heading}")
        for block in section.blocks:
            match block:
                case Table():
                    parts += [block.markdown(), *block.notes]
                case Chart():
                    picture_file = f"{pictures}/{section.name}.png"
                    parts += [f"![{block.caption}]({picture_file})", f"*{block.caption}*"]
                case Facts():
                    parts.append(markdown_table(("what", "value"), block.pairs))
                case Text():
                    parts += block.paragraphs
                case Missing():
                    parts.append(f"{block.text} `{block.command}`")
                case _:
                    raise AssertionError(f"{type(block).__name__} is not in reports of ablations")
    return "\n\n".join(parts) + "\n"
