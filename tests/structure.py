"""Print statistics of the product's layout: `python -m tests.structure`.

What counts: every Python file of `train.py` and the packages, `__init__` included, every line of
it. An import counts wherever it stands, at the top, in a function, or under `TYPE_CHECKING`.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from statistics import median

from common.cli import run_command

REPOSITORY = Path(__file__).resolve().parents[1]
LEVELS = {"common": 0, "data": 1, "launch": 1, "retinanet": 2, "profiling": 3, "train": 4}
"""A package imports itself and packages of a lower level: `data` and `launch` not each other."""
SMALL = 40
"""A file of fewer lines is a paragraph, not a chapter."""


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


def main() -> int:
    """Print the numbers; return 0."""
    files = read_product()
    chapters = [file for file in files if not file.is_package_docstring]
    print(f"product files                     {len(files)}")
    print(f"median lines, without __init__    {median(file.lines for file in chapters):g}")
    print(f"below {SMALL} lines, without __init__ {sum(f.lines < SMALL for f in chapters):5}")
    print(f"product lines                     {sum(file.lines for file in files)}")
    for package in LEVELS:
        lines = [file.lines for file in files if file.package == package]
        print(f"    {package:<10} {len(lines):4} files {sum(lines):7} lines")
    back = backward_imports(files)
    print(f"imports against the order         {len(back)}")
    for importing, imported in back:
        print(f"    {importing} -> {imported}")
    circle = import_circle(files)
    print(f"circles of imports                {int(bool(circle))}")
    if circle:
        print(f"    {' -> '.join(circle)}")
    print("longest files")
    for file in sorted(chapters, key=lambda file: -file.lines)[:10]:
        print(f"    {file.lines:5} {file.path.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
