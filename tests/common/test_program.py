"""Names of modules and commands in a checkout; those of an installation: tests/test_wheel.py."""

import ast
import re
import tomllib

from common.program import FOLDER, command_words, module_command, module_name, program_version
from tests.structure import read_product
from tests.support.commands import REPOSITORY

OURS = re.compile(r"(common|data|launch|profiling)(\.\w+)*|train\.py")
ALLOWED = {"common.program", "launch.mpirun"}


def test_names_of_a_checkout() -> None:
    assert module_name("data.loader") == "data.loader" and FOLDER == REPOSITORY
    assert module_command("profiling.bench.worker")[1:] == ["-m", "profiling.bench.worker"]
    assert command_words("retinanet") == ["python", "-m", "retinanet"]
    assert command_words("train") == ["python", "train.py"]


def test_version_is_that_of_the_project() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert program_version() == project["version"]


def test_no_module_is_run_by_its_name_in_a_checkout() -> None:
    for file in read_product():
        for node in ast.walk(ast.parse(file.path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.List | ast.Tuple) and file.module not in ALLOWED:
                words = [word.value for word in node.elts if isinstance(word, ast.Constant)]
                is_ours = any(OURS.fullmatch(str(word)) for word in words)
                assert not ({"-m", "python"} & set(words) and is_ours), (file.module, words)
