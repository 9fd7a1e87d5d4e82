"""`retinanet profile ablate report`: the report's chapters, as HTML and as Markdown."""

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from common.charts import Column, Table, markdown_table, text_column
from common.console import make_console
from common.errors import FINISHED, InputError
from common.files import require_free, write_atomically
from common.options import included, option, overwrite_option
from common.page import (
    Block,
    Chart,
    Facts,
    Missing,
    Section,
    Text,
    chart,
    render_page,
    sentence,
)
from profiling.ablate.analysis import (
    ALIKE,
    HOLDS,
    NOTHING,
    OUTCOME_COLUMNS,
    Outcome,
    Row,
    describe_machine,
    format_figure,
    format_interval,
    left_out_lines,
    ratio_cell,
    read_study,
    variants_table,
)
from profiling.ablate.charts import KINDS, picture
from profiling.ablate.definition import read_all
from profiling.ablate.result import Place

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILES = ("ablations.html", "ablations.md")
PICTURES = "pictures"
PICTURE_DPI = 70
COLOURS = 16
SECOND = "second"
"""Default folder of the results of a second run, inside that of the first."""


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """The options of `ablate report`."""

    place: Place = included(Place)
    again: Path | None = option(
        "results of a second run, to check each conclusion (default: the folder `second` in the "
        "results folder, if it exists)",
        default=None,
        metavar="DIR",
    )
    to: Path | None = option(
        "folder of the report (default: the results folder)", default=None, metavar="DIR"
    )
    overwrite: bool = overwrite_option("replace an existing report")


def make_report(options: ReportOptions) -> int:
    """Write the report and its charts from the results; return the exit code.

    Raises:
        InputError: There are no results, or a file cannot be read or written.
    """
    place = options.place
    target = options.to or place.folder
    files = [target / name for name in FILES]
    require_free(files, overwrite=options.overwrite, advice="give --overwrite or another --to")
    study = read_study(read_all(), place, options.again or place.folder / SECOND)
    if not any(row.result for row in study):
        command = Place(quick=place.quick).command("run")
        raise InputError(f"{place.folder}: contains no results; run `{command}`")
    for file, content in zip(files, render_pages(study), strict=True):
        write_atomically(file, content)
    for row in study:
        if row.result is not None and row.is_measured:
            # The HTML page holds its charts; Markdown needs files beside it.
            figure = picture(row.ablation, row.result, row.outcomes)
            write_atomically(target / PICTURES / f"{row.name}.png", as_small_png(figure))
    console = make_console()
    for line in summary(study):
        console.print(line, soft_wrap=True)
    console.print(f"report: {files[0]}; Markdown: {files[1]}", soft_wrap=True)
    return FINISHED


def as_small_png(figure: "Figure") -> bytes:
    """Return the figure as a PNG of few colours: a sixth of the bytes, for a repository."""
    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=PICTURE_DPI)
    image = Image.open(full).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    image.save(small, "PNG", optimize=True)
    return small.getvalue()


def render_pages(study: Sequence[Row]) -> tuple[str, str]:
    """Return the report as HTML and as Markdown, in the order of `FILES`."""
    results = [row.result for row in study if row.result]
    sizes = [result.definition["workload"]["image_size"] for result in results]
    # Ablations may have a size of their own, so the most frequent one is named.
    usual = max(set(sizes), key=sizes.count)
    cores = " or ".join(map(str, sorted({result.environment["cores"] for result in results})))
    title = f"The papers' ablations on this machine ({usual}×{usual}, {cores} cores)"
    sections, sentences = make_sections(study), summary(study)
    return (
        render_page(sections, title=title, summary=sentences),
        markdown_page(sections, title=title, summary=sentences),
    )


def make_sections(study: Sequence[Row]) -> list[Section]:
    """Return all comparisons, a chapter for each ablation, the method, the machine."""
    results = [row.result for row in study if row.result]
    left_out = {
        f"{row.name}: {variant}": reason
        for row in study
        for variant, reason in (row.result.left_out if row.result else {}).items()
    }
    lacking = [f"{sentence(why)} Affected: {names}." for names, why in left_out_lines(left_out)]
    blocks: list[Block] = [comparisons_table(study)]
    if lacking:
        blocks.append(Text(["Not available on this machine:", *lacking]))
    return [
        Section("all", "All comparisons", blocks),
        *map(row_section, study),
        Section("method", "Method", [Text(METHOD)]),
        Section("machine", "Machine", [Facts(list(describe_machine(results).items()))]),
    ]


def comparisons_table(study: Sequence[Row]) -> Table:
    """Return a row for every comparison."""
    columns = [
        text_column("ablation"),
        *OUTCOME_COLUMNS,
        text_column("allocator"),
        Column("second run"),
        text_column("confirmed", meaning="the second run has the same sign and a similar size"),
    ]
    rows = [
        [
            row.name,
            *outcome.cells(),
            row.allocators(outcome),
            ratio_cell(outcome.again, outcome.comparison.ratio),
            {True: "yes", False: "no", None: ""}[outcome.holds],
        ]
        for row in study
        for outcome in row.outcomes
    ]
    return Table("All comparisons with the paper's figures", columns, rows)


def row_section(row: Row) -> Section:
    """Return a chapter: the question, picture, sentences, variants and command."""
    ablation, result = row.ablation, row.result
    question = Text([f"{ablation.question} {ablation.source}: {ablation.says}."])
    calls = filter(None, [calls_sentence(row)])
    sentences = Text([*map(verdict, row.outcomes), *calls, *remarks(row)])
    if result is None:
        blocks: list[Block] = [question, sentences, Missing("Not measured yet:", row.command)]
        return Section(row.name, row.name, blocks)
    facts = Facts([("measured", result.ended), ("command", result.command)])
    if not row.is_measured:
        return Section(row.name, row.name, [question, sentences, facts])
    parts = "Colours: medians of the parts, whose sum may differ from the median. "
    drawing = chart(
        lambda: picture(ablation, result, row.outcomes),
        name=row.name,
        label=ablation.question,
        caption=f"Left: {KINDS[ablation.chart.kind][1]}. {parts if ablation.chart.parts else ''}"
        "Right: ratios with intervals.",
    )
    table = variants_table(ablation, result, for_page=True)
    return Section(row.name, row.name, [question, drawing, sentences, table, facts])


METHOD = (
    "Each variant has its own process with its own memory policy and one core per thread. Variants "
    "run one at a time, in turn (A B A B), so that a temporary slowdown of the machine affects all "
    "of them. Weights, images and boxes are generated from one seed. All runs after the warm-up "
    "are included.",
    "Ratios are computed in each round, and the median is reported. The interval contains the true "
    "median with at least 90 % confidence by the sign test, which assumes no distribution of the "
    "times; with fewer than five rounds it extends from the lowest to the highest ratio.",
    f"A measured ratio agrees with the paper's within a factor of {ALIKE:g}. If the interval "
    "contains both the paper's figure and no difference, there is no conclusion. A difference of "
    f"less than {NOTHING:.0%}, or one whose interval contains 1, counts as no difference.",
    "A second run confirms a conclusion if the ratio has the same sign and lies within a factor of "
    f"{HOLDS:g}; if neither run finds a difference, only the factor is checked.",
    "The paper gives ratios only, for other processors (Cooper Lake, 28 cores per socket) and "
    "other versions; nothing is scaled to them.",
)


def summary(study: Sequence[Row]) -> list[str]:
    """Return the report's summary in a few sentences."""
    outcomes = [outcome for row in study for outcome in row.outcomes]
    measured = [outcome for outcome in outcomes if outcome.ratio]
    beside = [outcome.beside_paper for outcome in measured if outcome.beside_paper]
    count = Counter(beside)
    unsure = f"; {count['unsure']} without a conclusion." if count["unsure"] else "."
    lines = [
        f"{sum(row.is_measured for row in study)} of {len(study)} ablations and "
        f"{len(measured)} of {len(outcomes)} comparisons were measured. "
        f"The paper has a figure for {len(beside)} of them: {count['alike']} measured ratios are "
        f"about the same, {count['more']} larger and {count['less']} smaller{unsure}"
    ]
    second = [outcome.holds for outcome in measured if outcome.holds is not None]
    if second:
        lines.append(
            f"A second run confirms {sum(second)} of {len(second)} conclusions (sign and size)."
        )
    unfinished = [row.name for row in study if row.state]
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
    interval = format_interval(ratio, kind)
    text = f"{outcome.what}: {format_figure(ratio.median, kind)}{TERMS[kind]}"
    text += f" ({interval})" if interval else ""
    if kind != "share" and ratio.rounds > 1 and not ratio.is_clear:
        text += ", no difference"
    if paper:
        relation = RELATIONS.get(outcome.beside_paper, "compared with")
        text += f", {relation} the paper's {format_figure(paper, kind)}"
    return f"{text}. {outcome.why}".strip()


def remarks(row: Row) -> list[str]:
    """Return further remarks on an ablation."""
    texts = [row.ablation.remark] if row.ablation.remark else []
    if row.state:
        texts.append(f"Incomplete: {row.state}.")
    if row.has_other_again:
        texts.append("The second run has another definition and is ignored.")
    cores = max(row.result.busy_cores, default=0.0) if row.result else 0.0
    if cores > 0.1:
        texts.append(f"Other processes kept {cores:.2f} cores busy during the measurement.")
    return texts


def calls_sentence(row: Row) -> str:
    """Return the differences between two logs; empty where none were compared."""
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
        f"`profiling compare` on the logs of one step, {calls['first']} against "
        f"{calls['second']}: {differences or 'the same number of calls of every kind'}."
    )


def markdown_page(sections: Sequence[Section], *, title: str, summary: Sequence[str]) -> str:
    """Return the page as Markdown; `summary` are sentences before all."""
    parts = [f"# {title}", *summary]
    for section in sections:
        parts.append(f"## {section.heading}")
        for block in section.blocks:
            match block:
                case Table():
                    parts += [block.markdown(), *block.notes]
                case Chart():
                    picture_file = f"{PICTURES}/{section.name}.png"
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
