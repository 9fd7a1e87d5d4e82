"""Chapters of a report as Markdown, with pictures beside it."""

from collections.abc import Sequence

from profiling.report.blocks import Block, Chart, Facts, Missing, Section, Table, Text


def markdown_page(
    sections: Sequence[Section], *, title: str, summary: Sequence[str], pictures: str
) -> str:
    """The whole page.

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
    """A block's paragraphs."""
    match block:
        case Table():
            rows = [[one.text for one in row] for row in block.rows]
            return [table([one.name for one in block.columns], rows), *block.notes]
        case Chart():
            return [f"![{block.caption}]({picture})", f"*{block.caption}*"]
        case Facts():
            return [table(("what", "value"), block.pairs)]
        case Text():
            return list(block.paragraphs)
        case Missing():
            return [f"{block.text} `{block.command}`"]
        case _:
            raise AssertionError(f"{type(block).__name__} is not in reports of ablations")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In GitHub's notation."""
    lines = [columns, ["---"] * len(columns), *([cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(text: str) -> str:
    """Text that ends no cell."""
    return text.replace("|", "\\|").replace("\n", " ")
