"""Packages import in one direction, and what is installed."""

import ast
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.structure import (
    LEVELS,
    REPOSITORY,
    backward_imports,
    import_circle,
    imported_names,
    many_parameters,
    product_sources,
    read_product,
    repeated_places,
)

REPEATED = 5
"""Pairs of files that repeat six lines; a change may only lower it."""


def write_product(folder: Path, **texts: str) -> None:
    """Write a product of the given modules, `data__dataset="…"` being data/dataset.py."""
    (folder / "train.py").write_text("")
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_packages_import_one_way() -> None:
    assert backward_imports(read_product()) == []


def test_no_circle_of_imports() -> None:
    assert import_circle(read_product()) == []


def test_links_are_followed_without_an_error_for_a_circle_of_them() -> None:
    # `Path.resolve` raises RuntimeError before Python 3.13. The program's own files are no links.
    for file in read_product():
        for number, line in enumerate(file.path.read_text(encoding="utf-8").splitlines(), 1):
            place = f"{file.path}:{number}: {line.strip()}"
            assert ".resolve()" not in line or "__file__" in line, f"{place}: take real_path"


def test_import_within_a_function_counts(tmp_path: Path) -> None:
    late = "def f():\n    from retinanet.config import Config\n"
    write_product(tmp_path, data__dataset=late, retinanet__config="import data.dataset\n")
    pair = ("data.dataset", "retinanet.config")
    assert backward_imports(read_product(tmp_path)) == [pair]


def test_packages_of_one_level_must_not_import_each_other(tmp_path: Path) -> None:
    write_product(tmp_path, data__dataset="import launch.ranks\n", launch__ranks="")
    assert backward_imports(read_product(tmp_path)) == [("data.dataset", "launch.ranks")]


def test_import_for_types_counts_in_a_circle(tmp_path: Path) -> None:
    typed = "if TYPE_CHECKING:\n    from retinanet.b import B\n"
    write_product(tmp_path, retinanet__a=typed, retinanet__b="from retinanet import a\n")
    assert set(import_circle(read_product(tmp_path))) == {"retinanet.a", "retinanet.b"}


def test_installation_brings_all_that_is_imported() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    brought = distributions(project["dependencies"])
    # A package that a declared one needs is there as well, such as MarkupSafe with Jinja2.
    brought |= set().union(*(distributions(requires(name) or []) for name in brought))
    extras = project["optional-dependencies"].values()
    optional = set().union(*map(distributions, extras))
    of_module = packages_distributions()
    known = {*sys.stdlib_module_names, *LEVELS, "configs"}
    missing = set()
    for file in read_product():
        tops = {name.partition(".")[0] for name in imported_names(ast.parse(file.path.read_text()))}
        for top in tops - known:
            names = {canonicalize_name(name) for name in of_module.get(top, [top])}
            if not names & brought:
                missing.add((top, file.module) if names & optional else (top, ""))
    # Each says how to get it where it is missing.
    assert missing == {
        ("intel_extension_for_pytorch", ""),
        ("onnxruntime", "retinanet.export.program"),
        ("onnxscript", "retinanet.export.program"),
        ("nncf", "retinanet.export.program"),
        ("openvino", "retinanet.export.program"),
        ("av", "retinanet.predict.video"),
    }


def distributions(requirements: list[str]) -> set[str]:
    """Return the packages of requirements that hold here without an extra."""
    parsed = [Requirement(text) for text in requirements]
    here = {"extra": ""}
    return {
        canonicalize_name(item.name)
        for item in parsed
        if item.marker is None or item.marker.evaluate(here)
    }


def test_product_repeats_itself_ever_less() -> None:
    pairs = repeated_places([*(file.path for file in read_product()), *product_sources()])
    assert len(pairs) <= REPEATED, sorted(pairs)


def test_repetition_is_found_under_other_names(tmp_path: Path) -> None:
    lines = "a = f(1)\nif a < b:\n    c += a * 2\nfor d in c:\n    print(d)\ne = [a, b, c]\n"
    other = lines.replace("a", "left").replace("c", "right").replace("1", "22")
    write_product(tmp_path, data__a=lines, data__b=f"import os\n\n{other}# end\n")
    one, two = tmp_path / "data/a.py", tmp_path / "data/b.py"
    assert (one, two) in repeated_places([one, two])


def test_functions_with_many_parameters(tmp_path: Path) -> None:
    names = ", ".join(f"p{row}" for row in range(10))
    write_product(tmp_path, data__a=f"def f({names}):\n    pass\n")
    assert many_parameters(read_product(tmp_path)) == [("data.a", "f", 10)]


def test_installing_is_short() -> None:
    texts = [(REPOSITORY / name).read_text() for name in ("setup.sh", "Makefile")]
    assert sum(text.count("\n") for text in texts) <= 208
