"""Print statistics on the language of code and docs: `python -m tests.language`.

Docstrings by their first word, comments per line of code, variables and functions with vague
names, and the longest sentences of the docs. `make test` prints durations.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from common.cli import run_command

REPOSITORY = Path(__file__).resolve().parents[1]
PRODUCT = ("train.py", "common", "data", "launch", "retinanet", "profiling")
VAGUE_NAMES = ("one", "found", "own", "kept", "asked", "left", "rest", "told", "said")
"""Variables that should be nouns; `left` counts also where it is a coordinate."""
VAGUE_FUNCTIONS = re.compile(r"^(say|told)|_words$|_of$|^described$")
VAGUE_FIRST_WORDS = ("Of", "What", "Those", "All", "Where", "It", "Its")
COMMENTED = (
    "retinanet/training/trainer.py",
    "retinanet/training/loop.py",
    "retinanet/engine/folded_forward.py",
    "retinanet/engine/convolution.py",
    "launch/process_group.py",
    "launch/pinning.py",
)
"""Files with the most surprising steps."""
SENTENCES = 50


def source_files(folders: Sequence[str], suffixes: Sequence[str] = (".py",)) -> list[Path]:
    """Return all files with one of the suffixes, sorted by path."""
    paths: list[Path] = []
    for name in folders:
        path = REPOSITORY / name
        files = [path] if path.is_file() else path.rglob("*")
        paths += sorted(file for file in files if file.suffix in suffixes)
    return paths


def docstrings(file: Path) -> Iterator[str]:
    """Return the docstrings of a file's module, classes and functions."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text


def vague_names(file: Path) -> Iterator[str]:
    """Return the vague names that a file binds: variables, parameters and functions."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.FunctionDef) and VAGUE_FUNCTIONS.search(node.name):
            yield "functions"
            continue
        else:
            continue
        if name in VAGUE_NAMES:
            yield name


def count_comments(file: Path) -> tuple[int, int]:
    """Return a Python file's numbers of comments and of lines with code."""
    comments, code = 0, set()
    skipped = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    text = file.read_text(encoding="utf-8")
    docstring_lines = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstring_lines |= set(range(node.lineno, (node.end_lineno or 0) + 1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments += 1
        elif token.type not in skipped:
            code |= set(range(token.start[0], token.end[0] + 1))
    return comments, len(code - docstring_lines)


def sentences(page: Path) -> Iterator[tuple[int, str]]:
    """Return the sentences of a page's paragraphs and lists with their numbers of words."""
    text = re.sub(r"^```.*?^```", "\n", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    for paragraph in re.split(r"\n\s*\n|\n(?=[-*|#\d])", text):
        if paragraph.lstrip().startswith(("|", "#", "<", "!")):
            continue
        for sentence in re.split(r"(?<=[.!?:;])\s+(?=[A-Z`*\[])", " ".join(paragraph.split())):
            yield len(sentence.split()), sentence


def print_ratio(label: str, comments: int, code: int) -> None:
    """Print how many lines of code there are per comment."""
    ratio = f"1 in {code / comments:.0f} lines of code" if comments else "none"
    print(f"  {label:40} {comments:5} {ratio}")


def main() -> int:
    """Print all counts; return the exit status."""
    for label, folders in (("product", PRODUCT), ("tests", ("tests",))):
        files = source_files(folders)
        print(f"{label}: {sum(len(file.read_text().splitlines()) for file in files):,} lines")
        words = Counter(text.split()[0] for file in files for text in docstrings(file))
        print("  docstrings by first word:", *(f"{w} {n}," for w, n in words.most_common(25)))
        print("  vague first words:", {word: words[word] for word in VAGUE_FIRST_WORDS})
        print("  vague names:", dict(Counter(name for f in files for name in vague_names(f))))
    print("comments")
    for name in (*PRODUCT, *COMMENTED):
        counts = [count_comments(file) for file in source_files([name])]
        print_ratio(name, sum(c for c, _ in counts), sum(n for _, n in counts))
    cpp = [file.read_text() for file in source_files(PRODUCT, (".cpp", ".h"))]
    lines = [line.strip() for text in cpp for line in text.splitlines() if line.strip()]
    comments = sum("//" in line for line in lines)
    print_ratio("C++", comments, sum(not line.startswith("//") for line in lines))
    pages = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
    print(f"docs: {sum(len(p.read_text().splitlines()) for p in pages):,} lines; longest sentences")
    longest = sorted(
        ((*item, page.name) for page in pages for item in sentences(page)), reverse=True
    )
    for count, sentence, page in longest[:SENTENCES]:
        print(f"  {count:3} words, {page}: {sentence[:100]}…")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
