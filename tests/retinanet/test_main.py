"""The command `retinanet`, which has all commands."""

import platform
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import data.__main__
import launch.__main__
import profiling.__main__
import train
from retinanet.__main__ import CHAPTERS, COMMANDS, main
from tests.support.commands import RunHere, run_program

LAZY = (" torch\n", " numpy\n", " pydantic\n", " shtab\n")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Return a console script as pip writes it."""
    file = tmp_path / "retinanet"
    file.write_text("import sys\nfrom retinanet.__main__ import run\nsys.exit(run())\n")
    return file


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_start_loads_no_library_of_a_command(option: str) -> None:
    done = run_program(
        *(sys.executable, "-m", "retinanet", option), PYTHONPROFILEIMPORTTIME="1", check=True
    )
    assert [name for name in LAZY if name in done.stderr] == []
    assert " retinanet\n" in done.stderr


def test_help_lists_commands_by_chapter(run_here: RunHere) -> None:
    lines = run_here(main, "--help", program="retinanet").stdout.splitlines()
    listed = [line.split()[0].rstrip(":") for line in lines if re.match(r"  [a-z]+ ", line)]
    assert listed[: len(COMMANDS)] == list(COMMANDS)
    assert [f"{chapter}:" for chapter in CHAPTERS if f"{chapter}:" not in lines] == []
    assert any(line.strip().startswith("retinanet train") for line in lines)


def test_version_names_program_torch_and_python(run_here: RunHere) -> None:
    done = run_here(main, "--version")
    assert done.returncode == 0 and done.stderr == ""
    program, torch, python = done.stdout.splitlines()
    assert re.fullmatch(r"retinanet-cpu \d+\.\d+\.\d+( \(commit [0-9a-f]{40}.*\))?", program)
    assert torch == f"torch {version('torch')}"
    assert python == f"Python {platform.python_version()}"


@pytest.mark.parametrize("program", ["/usr/bin/retinanet", "/code/retinanet/__main__.py"])
@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "completion"])
def test_help_of_a_command_names_the_program(run_here: RunHere, program: str, command: str) -> None:
    done = run_here(main, command, "--help", program=program)
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: retinanet {command} ")


@pytest.mark.parametrize(
    ("group", "package"),
    [("data", data.__main__), ("launch", launch.__main__), ("profile", profiling.__main__)],
)
def test_groups_have_the_commands_of_their_packages(
    run_here: RunHere, group: str, package: object
) -> None:
    commands = vars(package)["COMMANDS"]
    listed = run_here(main, group, "--help").stdout
    assert [name for name in commands if not re.search(rf"^ +{name}\b", listed, re.MULTILINE)] == []


def test_command_of_a_group_runs(run_here: RunHere) -> None:
    done = run_here(main, "launch", "plan", "--np", "3", "--cpus", "0-1", program="retinanet")
    alone = run_here(launch.__main__.main, "plan", "--np", "3", "--cpus", "0-1")
    assert (done.returncode, done.stdout, done.stderr) == (2, alone.stdout, alone.stderr)


def test_train_is_train_py(run_here: RunHere) -> None:
    options = ("--dry-run", "--config", "coco", "training.epochs=3", "run.name=a")
    done, alone = run_here(main, "train", *options), run_here(train.main, *options)
    assert done.returncode == 0 and "epochs: 3" in done.stdout
    assert (done.stdout, done.stderr) == (alone.stdout, alone.stderr)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["training.epocks=3"], ["training.epocks", "training.epochs"]),
        (["--nothing"], ["retinanet train", "--nothing"]),
        (["--check-ranks", "2"], ["retinanet train", "--check"]),
    ],
)
def test_mistake_in_train(run_here: RunHere, arguments: list[str], words: list[str]) -> None:
    done = run_here(main, "train", *arguments, program="retinanet")
    assert done.returncode == 2 and done.stdout == ""
    assert [word for word in words if word not in done.stderr] == []


@pytest.mark.parametrize("words", [(), ("trane",), ("profile",), ("profile", "statz")])
def test_unknown_or_missing_command(run_here: RunHere, words: tuple[str, ...]) -> None:
    done = run_here(main, *words, program="retinanet")
    assert done.returncode == 2 and done.stdout == ""
    assert "usage: retinanet" in done.stderr and "COMMAND" in done.stderr


@pytest.mark.slow
def test_console_script_prints_one_line_for_a_mistake(script: Path, tmp_path: Path) -> None:
    repository = str(Path(__file__).parents[2])
    done = run_program(
        *(sys.executable, script, "train", "--config", "none.yaml"),
        cwd=tmp_path,
        PYTHONPATH=repository,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: none.yaml: ") and done.stderr.count("\n") == 1
