"""Print the product's size and what it repeats: `python -m tests.structure`.

What counts: every Python file of `train.py` and the packages, `__init__` included, every line of
it. An import counts wherever it stands, at the top, in a function, or under `TYPE_CHECKING`.
"""

import ast
import keyword
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import combinations
from pathlib import Path

from common.cli import run_command

REPOSITORY = Path(__file__).resolve().parents[1]
LEVELS = {"common": 0, "data": 1, "launch": 1, "retinanet": 2, "profiling": 3, "train": 4}
"""A package imports itself and packages of a lower level: `data` and `launch` not each other."""
MOST_PARAMETERS = 9
RUN = 6
"""Lines in a row that are equal, but for names and values, are a repetition."""
COMMON = 8
"""What stands in more places is the shape of the language, such as a list of imported names."""
IGNORED = re.compile(r'#|//|import |from |#include|\W*$|\w+=[^=].*,$|"?[\w-]+"?,$')
"""Lines that do not count: comments, imports, punctuation, arguments by name, single words."""
TOKENS = re.compile(r'"[^"]*"|\'[^\']*\'|\d[\w.]*|[A-Za-z_]\w*')


@dataclass(frozen=True)
class SourceFile:
    """A product file: its module, its number of lines, and the product modules that it imports."""

    path: Path
    module: str
    lines: int
    imports: frozenset[str]

    @property
    def package(self) -> str:
        """The top-level package, or `train`."""
        return self.module.partition(".")[0]

    @property
    def is_package_docstring(self) -> bool:
        """Whether it is an `__init__`."""
        return self.path.name == "__init__.py"


def read_product(repository: Path = REPOSITORY) -> list[SourceFile]:
    """Return all product files, by path."""
    paths = [repository / "train.py"]
    for package in LEVELS:
        paths += sorted((repository / package).rglob("*.py"))
    modules = {module_name(path, repository): path for path in paths}
    return [read_file(path, module, known=modules) for module, path in modules.items()]


def module_name(path: Path, repository: Path) -> str:
    """Return the dotted name of a file; that of an `__init__` is its package's."""
    parts = path.relative_to(repository).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_file(path: Path, module: str, *, known: Mapping[str, Path]) -> SourceFile:
    """Read one file; of what it imports the modules among `known` are kept."""
    text = path.read_text(encoding="utf-8")
    imports = {name for name in imported_names(ast.parse(text)) if name in known}
    return SourceFile(path, module, text.count("\n"), frozenset(imports - {module}))


def imported_names(tree: ast.Module) -> Iterator[str]:
    """Yield every dotted name that may be an imported module, functions' own imports included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def backward_imports(files: list[SourceFile]) -> list[tuple[str, str]]:
    """Return pairs of modules (importing, imported) that violate the order of packages."""
    return [
        (file.module, imported)
        for file in files
        for imported in sorted(file.imports)
        if (package := imported.partition(".")[0]) != file.package
        and LEVELS[package] >= LEVELS[file.package]
    ]


def import_circle(files: list[SourceFile]) -> list[str]:
    """Return the modules of one circle of imports; empty where there is none."""
    graph: dict[str, set[str]] = defaultdict(set)
    for file in files:
        # A module's own package is imported with it, and so no dependency that could be removed.
        graph[file.module] = {name for name in file.imports if not is_parent(name, file.module)}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def is_parent(package: str, module: str) -> bool:
    """Return whether `module` lies in `package`."""
    return module.startswith(f"{package}.")


def many_parameters(files: Iterable[SourceFile]) -> list[tuple[str, str, int]]:
    """Return functions with more than nine parameters: module, name, number."""
    found = []
    for file in files:
        for node in ast.walk(ast.parse(file.path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                count = len(given) - (bool(given) and given[0].arg in ("self", "cls"))
                if count > MOST_PARAMETERS:
                    found.append((file.module, node.name, count))
    return found


def repeated_places(paths: Iterable[Path]) -> dict[tuple[Path, Path], list[tuple[int, int]]]:
    """Return, for each pair of files, the lines at which a run of six has the same shape."""
    places: dict[tuple[str, ...], list[tuple[Path, int, int]]] = defaultdict(list)
    for path in paths:
        lines = [
            (number, shape(line))
            for number, line in enumerate(code_lines(path), 1)
            if not IGNORED.match(line)
        ]
        for row in range(len(lines) - RUN + 1):
            numbers, shapes = zip(*lines[row : row + RUN], strict=True)
            places[shapes].append((path, numbers[0], row))
    pairs: dict[tuple[Path, Path], list[tuple[int, int]]] = defaultdict(list)
    for shapes, found in places.items():
        # A list of names or arguments in one shape repeats nothing but the shape.
        if len(found) > COMMON or len(set(shapes)) < RUN - 1:
            continue
        for (one, first, row), (other, second, row_of_other) in combinations(found, 2):
            if one != other or row_of_other - row >= RUN:
                pairs[one, other].append((first, second))
    return pairs


def code_lines(path: Path) -> list[str]:
    """Return a file's lines without margins; those of Python's docstrings are empty."""
    text = path.read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines()]
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) or isinstance(
                node, ast.Import | ast.ImportFrom
            ):
                for row in range(node.lineno - 1, node.end_lineno or node.lineno):
                    lines[row] = ""
    return lines


def shape(line: str) -> str:
    """Return a line with its names, texts and numbers made equal."""
    return TOKENS.sub(lambda m: m[0] if keyword.iskeyword(m[0]) else "x", line)


def count_lines(paths: Iterable[Path]) -> int:
    """Return the number of all lines of files."""
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def product_sources() -> list[Path]:
    """Return the product's files of C++."""
    return sorted(path for path in (REPOSITORY / "retinanet").rglob("csrc/*") if path.is_file())


def main() -> int:
    """Print the numbers; return 0."""
    files = read_product()
    sources = product_sources()
    print(f"product lines, Python             {sum(file.lines for file in files)}")
    for package in LEVELS:
        lines = [file.lines for file in files if file.package == package]
        print(f"    {package:<10} {len(lines):4} files {sum(lines):7} lines")
    print(f"product lines, C++                {count_lines(sources)}")
    print(f"lines of tests                    {count_lines((REPOSITORY / 'tests').rglob('*.py'))}")
    # The pages of ablations are made by a command.
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]
    print(f"lines of pages (README, docs)     {count_lines(pages)}")
    many = many_parameters(files)
    print(f"functions with over {MOST_PARAMETERS} parameters   {len(many)}")
    for module, name, count in many:
        print(f"    {count:3} {module}.{name}")
    repeated = repeated_places([*(file.path for file in files), *sources])
    print(f"pairs of files that repeat {RUN} lines {len(repeated):3}")
    for (one, other), lines_of_pair in sorted(repeated.items()):
        first, second = lines_of_pair[0]
        names = [path.relative_to(REPOSITORY) for path in (one, other)]
        print(f"    {names[0]}:{first} ~ {names[1]}:{second} ({len(lines_of_pair)})")
    back = backward_imports(files)
    print(f"imports against the order         {len(back)}")
    for importing, imported in back:
        print(f"    {importing} -> {imported}")
    circle = import_circle(files)
    print(f"circles of imports                {int(bool(circle))}")
    if circle:
        print(f"    {' -> '.join(circle)}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
