"""Packages import one way, without circles, and files stay chapters."""

from statistics import median

from tests.structure import SMALL, backward_imports, import_circle, read_product


def test_packages_import_one_way() -> None:
    assert backward_imports(read_product()) == []


def test_no_circle_of_imports() -> None:
    assert import_circle(read_product()) == []


def test_files_are_chapters() -> None:
    files = read_product()
    chapters = [file for file in files if not file.is_package_docstring]
    assert len(files) <= 220
    assert median(file.lines for file in chapters) >= 200
    assert sum(file.lines < SMALL for file in chapters) <= 15
