"""Packages import in one direction, without circles, and files have a reasonable size."""

from pathlib import Path
from statistics import median

from tests.structure import SMALL, backward_imports, import_circle, read_product


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


def test_files_are_chapters() -> None:
    files = read_product()
    chapters = [file for file in files if not file.is_package_docstring]
    assert len(files) <= 258
    assert max(file.lines for file in chapters) <= 570
    assert median(file.lines for file in chapters) >= 200
    assert sum(file.lines < SMALL for file in chapters) <= 15


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
