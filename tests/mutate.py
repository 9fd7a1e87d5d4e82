"""Break the product in 100 places, one at a time, and count how often the tests notice.

  python -m tests.mutate                        # about an hour on two idle cores
  python -m tests.mutate --count 5 --seed 1     # other places, fewer

Each mutant changes one operator, comparison or number of a file in a copy of the repository, and
runs the fast tests of that file's package there. The places follow from the seed. Survivors are
listed: nothing pins what they changed. It is no part of the test suite.
"""

import argparse
import ast
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from common.cli import run_command

REPOSITORY = Path(__file__).resolve().parents[1]
TESTS = {
    "retinanet/model": ["tests/retinanet/model"],
    "retinanet/loss": ["tests/retinanet/loss"],
    "retinanet/training": ["tests/retinanet/training"],
    "retinanet/evaluation": ["tests/retinanet/evaluation"],
    "data": ["tests/data"],
    "launch/placement.py": ["tests/launch/test_placement.py", "tests/launch/test_plan.py"],
    "profiling/stats.py": ["tests/profiling"],
}
"""The tests for the files of a folder; each folder has an equal share of the mutants."""
FAST = "not slow and not exhaustive and not ipex and not whole_machine"
SECONDS = 600  # A mutant may never end.
SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.And: (" and ", " or "),
    ast.Or: (" or ", " and "),
}


@dataclass(frozen=True)
class Mutant:
    """A file with one change, and the line as it is and as it becomes."""

    path: Path
    line: int
    before: str
    after: str
    text: str


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield all mutants of a file: operators, comparisons and whole numbers in functions."""
    text = path.read_text(encoding="utf-8")
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                yield from changed(path, text, node)


def changed(path: Path, text: str, node: ast.AST) -> Iterator[Mutant]:
    """Yield the mutants of one node of the syntax tree, if it has any."""
    if isinstance(node, ast.Compare):
        yield from swapped(path, text, node.left, node.ops[0], node.comparators[0])
    elif isinstance(node, ast.BinOp):
        yield from swapped(path, text, node.left, node.op, node.right)
    elif isinstance(node, ast.BoolOp):
        yield from swapped(path, text, node.values[0], node.op, node.values[1])
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        place = (node.lineno, node.col_offset, node.end_col_offset or 0)
        yield replaced(path, text, place, f"{node.value + 1}")


def swapped(
    path: Path, text: str, left: ast.expr, operator: ast.AST, right: ast.expr
) -> Iterator[Mutant]:
    """Yield the mutant that has another operator, where both operands are on one line."""
    if type(operator) not in SWAPS or left.end_lineno != right.lineno:
        return
    old, new = SWAPS[type(operator)]
    line = text.encode().splitlines()[right.lineno - 1]
    between = line[left.end_col_offset : right.col_offset].decode()
    if between.count(old) == 1:
        begin = (left.end_col_offset or 0) + len(between[: between.index(old)].encode())
        yield replaced(path, text, (right.lineno, begin, begin + len(old)), new)


def replaced(path: Path, text: str, place: tuple[int, int, int], new: str) -> Mutant:
    """Return the mutant with `new` instead of the bytes at a place: line, first, end."""
    line, begin, end = place
    lines = text.encode().splitlines(keepends=True)
    before = lines[line - 1]
    lines[line - 1] = before[:begin] + new.encode() + before[end:]
    shown = (before.decode().strip(), lines[line - 1].decode().strip())
    return Mutant(path, line, *shown, b"".join(lines).decode())


def choose(seed: int, count: int, root: Path) -> list[tuple[Mutant, list[str]]]:
    """Return mutants with their tests, shared out among the folders."""
    chosen = []
    random = Random(seed)
    for row, (folder, tests) in enumerate(TESTS.items()):
        place = root / folder
        files = [place] if place.is_file() else sorted(place.rglob("*.py"))
        mutants = [mutant for path in files for mutant in mutants_of(path)]
        share = count * (row + 1) // len(TESTS) - count * row // len(TESTS)
        chosen += [(mutant, tests) for mutant in random.sample(mutants, min(share, len(mutants)))]
    return chosen


def is_killed(mutant: Mutant, tests: list[str], root: Path) -> bool:
    """Return whether the tests fail, or do not end, with a mutant in its file's place."""
    original = mutant.path.read_text(encoding="utf-8")
    mutant.path.write_text(mutant.text, encoding="utf-8")
    own = next(iter(sorted((root / "tests").rglob(f"test_{mutant.path.name}"))), None)
    ordered = [*([str(own)] if own else []), *tests]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-m", FAST, *ordered]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return True
    else:
        return done.returncode != 0
    finally:
        mutant.path.write_text(original, encoding="utf-8")


def main() -> int:
    """Run the mutants and print the survivors; return 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--count", type=int, default=100, metavar="N", help="mutants (default: 100)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the places (default: 0)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        root = Path(folder, "repository")
        ignored = shutil.ignore_patterns(".venv*", ".git", "runs", "__pycache__", ".*_cache")
        shutil.copytree(REPOSITORY, root, ignore=ignored, symlinks=True)
        chosen = choose(options.seed, options.count, root)
        killed = 0
        for number, (mutant, tests) in enumerate(chosen, 1):
            dead = is_killed(mutant, tests, root)
            killed += dead
            where = f"{mutant.path.relative_to(root)}:{mutant.line}"
            verdict = "killed  " if dead else "SURVIVES"
            print(f"{number:3} {verdict} {where}: {mutant.before}  ->  {mutant.after}", flush=True)
    print(f"killed: {killed} of {len(chosen)}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
