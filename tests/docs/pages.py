"""README and the pages of docs/: their text, their blocks, and the commands in them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
SHELL = ("bash", "sh", "console")
PROMPT = "$ "
"""Before a command in a block that shows what it prints."""

PROGRAMS = re.compile(
    r"(?:[A-Z_]+=\S+ )*"  # variables of its environment
    r"(?:make|bash|sbatch|srun|mpirun|torchrun|docker|podman|apptainer|kubectl|buildah|lscpu|cp|"
    r"apt-get|numastat|python|retinanet|tensorboard|"
    r"\./setup\.sh|\.ci/run|\.venv/bin/[\w.-]+)(?= |$)"
)
"""How a command begins, in `inline code` and in blocks that are not marked as shell."""

FENCE = re.compile(r"^ *```")
COMMENT = re.compile(r"(?:^|\s+)#(?:\s.*)?$")


class Command(NamedTuple):
    """One command of a page, on one line (a loop keeps its lines)."""

    text: str
    place: str
    """File and line, as `docs/data.md:6`."""
    shown: tuple[str, ...] = ()
    """The output that the page shows below it."""
    is_inline: bool = False


class Block(NamedTuple):
    """A fenced block."""

    language: str
    line: int
    """The number of its first line within the fence, from 1."""
    lines: tuple[str, ...]


def all_pages() -> list[Path]:
    """Return README and the pages beside it, except the changelog, and all of docs."""
    top = [page for page in sorted(REPOSITORY.glob("*.md")) if page.name != "CHANGELOG.md"]
    return [*top, *sorted((REPOSITORY / "docs").rglob("*.md"))]


def blocks_and_prose(text: str) -> tuple[list[Block], list[tuple[int, str]]]:
    """Return the fenced blocks, and all other lines with their numbers."""
    blocks: list[Block] = []
    prose: list[tuple[int, str]] = []
    inside: list[str] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if FENCE.match(line):
            if inside is None:
                inside, language, first = [], line.strip().removeprefix("```"), number + 1
            else:
                blocks.append(Block(language, first, tuple(inside)))
                inside = None
        elif inside is None:
            prose.append((number, line))
        else:
            inside.append(line)
    return blocks, prose


def python_programs(page: str) -> list[str]:
    """Return the Python blocks of a page in docs."""
    blocks, _ = blocks_and_prose((REPOSITORY / "docs" / page).read_text(encoding="utf-8"))
    return ["\n".join(block.lines) for block in blocks if block.language == "python"]


def page_commands(text: str, page: str) -> Iterator[Command]:
    """Yield a page's commands: in shell blocks, behind prompts, below `next:`, in sentences."""
    blocks, prose = blocks_and_prose(text)
    for block in blocks:
        if any(line.startswith(PROMPT) for line in block.lines):
            yield from commands_behind_prompts(block, page)
        elif block.language in SHELL:
            yield from commands_of_shell_block(block, page)
        yield from suggested_commands(block, page)
    for number, line in prose:
        for code in re.findall(r"`([^`]+)`", line):
            if PROGRAMS.match(code):
                yield Command(code, f"{page}:{number}", is_inline=True)


def unmarked_commands(text: str) -> list[str]:
    """Return first lines of blocks that are commands, but not marked as such."""
    blocks, prose = blocks_and_prose(text)
    firsts = [block.lines[0] for block in blocks if block.language not in SHELL and block.lines]
    indented = [line.strip() for _, line in prose if line.startswith("    ")]
    return [line for line in [*firsts, *indented] if PROGRAMS.match(line)]


def commands_of_shell_block(block: Block, page: str) -> Iterator[Command]:
    """Yield lines with their continuations; a loop is one command."""
    begun: list[str] = []
    first = 0
    for number, line in joined_lines(block):
        if not line.strip():
            continue
        first = first if begun else number
        begun.append(line)
        if line == "done" or not begun[0].startswith("for "):
            yield Command("\n".join(begun), f"{page}:{first}")
            begun = []


def joined_lines(block: Block) -> Iterator[tuple[int, str]]:
    """Yield lines without comments; a line that ends in a backslash is joined with the next."""
    begun, first = "", block.line
    for number, line in enumerate(block.lines, start=block.line):
        first = first if begun else number
        whole = f"{begun} {line.strip()}".strip() if begun else line.rstrip()
        if whole.endswith("\\"):
            begun = whole.removesuffix("\\").rstrip()
            continue
        begun = ""
        yield first, COMMENT.sub("", whole)


def commands_behind_prompts(block: Block, page: str) -> Iterator[Command]:
    """Yield each command with the lines up to the next."""
    command, place = "", 0
    shown: list[str] = []
    for number, line in [*joined_lines(block), (0, PROMPT)]:
        if not line.startswith(PROMPT):
            shown += [line] * bool(line)
            continue
        if command:
            yield Command(command, f"{page}:{place}", tuple(shown))
        command, place, shown = line.removeprefix(PROMPT), number, []


def suggested_commands(block: Block, page: str) -> Iterator[Command]:
    """Yield the commands that a command prints below `next:`."""
    is_next = False
    for number, line in enumerate(block.lines, start=block.line):
        is_next = line == "next:" or (is_next and line.startswith("  "))
        if is_next and PROGRAMS.match(line.strip()):
            yield Command(line.strip(), f"{page}:{number}")
