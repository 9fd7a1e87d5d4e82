"""docs/troubleshooting.md quotes the messages that this code prints."""

import ast
import json
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.support.commands import RunHere, run_program
from tests.support.training_runs import mark_as_run

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "troubleshooting.md"
SOURCES = ("train.py", "common", "data", "launch", "profiling", "retinanet")

ENTRY = re.compile(r"^### `(.+)`(?: \((.+)\))?$", re.MULTILINE)
PLACEHOLDER = "…"  # Stands for the parts of a message that vary
OTHER_PROGRAMS = {"uv", "Python", "torch", "mpirun", "libgomp", "the shell"}
SHORTEST = 4  # Characters of the shortest piece of a literal


def entries() -> list[tuple[str, str]]:
    """Return each quoted message and the program that prints it; empty for ours."""
    return ENTRY.findall(PAGE.read_text(encoding="utf-8"))


OURS = [message for message, program in entries() if not program]


def literals(tree: ast.AST) -> list[str]:
    """Return the literal parts of a module's strings."""
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


SEPARATOR = "\0"  # Between two literals; in no message


@cache
def texts_of_sources() -> dict[str, str]:
    """Return the literals of each file, joined."""
    roots = [REPOSITORY / name for name in SOURCES]
    files = [file for root in roots for file in ([root] if root.is_file() else root.rglob("*.py"))]
    texts = {
        str(file.relative_to(REPOSITORY)): SEPARATOR.join(literals(ast.parse(file.read_text())))
        for file in files
    }
    return texts | {"setup.sh": (REPOSITORY / "setup.sh").read_text()}


def is_composed_from(message: str, text: str) -> bool:
    """Return whether a message consists of pieces of a text of at least `SHORTEST` characters.

    Two pieces may be joined by a colon, as `Finding` joins its subject and its text.
    """
    reached = {0}
    for start in range(len(message)):
        if start not in reached:
            continue
        if message.startswith(": ", start):
            reached.add(start + len(": "))
        for end in range(start + SHORTEST, len(message) + 1):
            if message[start:end] not in text:
                break
            reached.add(end)
    return len(message) in reached


def fragments(message: str) -> list[str]:
    """Return the parts of a message that do not vary, without its prefix."""
    text = re.sub(r"^(error|warning|note|setup): ", "", message)
    pieces = (piece.strip(" ;:,()[].×") for piece in text.split(PLACEHOLDER))
    return [piece for piece in pieces if len(piece) >= SHORTEST]


def message_pattern(message: str) -> re.Pattern[str]:
    """Return what a printed message must match."""
    return re.compile(".*?".join(map(re.escape, message.split(PLACEHOLDER))))


def test_page_quotes_forty_messages_and_names_other_programs() -> None:
    assert len(OURS) >= 40
    assert {program for _, program in entries()} - {""} <= OTHER_PROGRAMS


@pytest.mark.parametrize("message", OURS)
def test_quoted_message_is_in_the_sources(message: str) -> None:
    parts = fragments(message)
    assert parts, "only placeholders"
    files = [
        file
        for file, text in texts_of_sources().items()
        if all(is_composed_from(piece, text) for piece in parts)
    ]
    assert files, f"no file prints all of {parts}"


def test_unprinted_message_is_detected() -> None:
    text = texts_of_sources()["retinanet/training/run_folder.py"]
    assert is_composed_from("contains another run; give --resume", text)
    assert not is_composed_from("contains another run; give --force", text)


# Many messages are provoked: the command must print what the page quotes.

Provoke = Callable[[Path], list[str]]


def train(*settings: str) -> Provoke:
    return lambda folder: ["train", *settings, f"run.root={folder / 'runs'}"]


def own_data(name: str, *settings: str, **changes: object) -> Provoke:
    """Train on a JSON of one image, with changed fields."""

    def command(folder: Path) -> list[str]:
        box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 9, 9], "iscrowd": 0}
        content: dict[str, object] = {
            "images": [{"id": 1, "file_name": name, "width": 32, "height": 32}],
            "annotations": [box | {key: changes[key] for key in box if key in changes}],
            "categories": changes.get("categories", [{"id": 1, "name": "cat"}]),
        }
        content = {key: value for key, value in content.items() if key != changes.get("without")}
        file = folder / "labels.json"
        file.write_text(json.dumps(content))
        splits = ("train", "validation")
        paths = [f"data.{split}_annotations={file}" for split in splits]
        paths += [f"data.{split}_images={folder}" for split in splits]
        data = ["--config", "coco.yaml", "model.norm=batch", "model.trainable_layers=5"]
        data += ["model.pretrained_backbone=null", "launch.pin=false", "data.image_size=64"]
        data += ["data.class_indices=contiguous", "model.num_classes=null"]
        return train(*data, *paths, *settings)(folder)

    return command


def verify(file_text: str) -> Provoke:
    def command(folder: Path) -> list[str]:
        (folder / "labels.json").write_text(file_text)
        return ["data", "convert", str(folder / "labels.json")]

    return command


def occupied(folder: Path) -> list[str]:
    mark_as_run(folder / "runs" / "mine")
    return train("run.name=mine", "launch.pin=false")(folder)


def no_log(folder: Path) -> list[str]:
    (folder / "run").mkdir()
    (folder / "run" / "config.yaml").write_text("")
    out = str(folder / "report.html")
    return ["profiling", "report", str(folder / "run"), "--peaks", "none", "--out", out]


PROVOKED: dict[str, Provoke] = {
    "no such field; did you mean": train("batch_size=2"),
    "no such configuration file": train("--config", "cocoo.yaml"),
    "needs pretrained weights": own_data("a.jpg", "model.norm=frozen"),
    "is given together with data.scenes": train("data.root=/nowhere", "launch.pin=false"),
    "is not a folder; set the data set's": own_data(
        "a.jpg", "data.root=/nowhere", "data.train_images=null"
    ),
    "contains no … split": lambda folder: own_data(
        "a.jpg", f"data.root={folder}", "data.train_images=null"
    )(folder),
    "images: missing": verify('{"annotations": [], "categories": []}'),
    "not JSON": verify('{"images": [{]}'),
    "categories: empty": own_data("a.jpg", categories=[]),
    "no such image file; check the folder of images": own_data("nowhere.jpg"),
    "is not an id in categories": own_data("a.jpg", category_id=7),
    "no image has a box": own_data("a.jpg", iscrowd=1),
    "model.num_classes is": own_data("a.jpg", "model.num_classes=7"),
    "ipex is not installed beside torch": train("engine=ipex", "launch.pin=false"),
    "launch.threads=… requests more": train("launch.threads=4096", "--dry-run"),
    "contains another run": occupied,
    "the folder contains no run": train("--resume", "run.name=new", "launch.pin=false"),
    "does not exist; give runs/NAME": lambda folder: [
        "retinanet",
        "evaluate",
        "--checkpoint",
        str(folder / "none"),
    ],
    "contains no oneDNN lines": lambda _: ["profiling", "stats", str(PAGE), "--peaks", "none"],
    "this run has no oneDNN log": no_log,
}
"""By a part of the message."""


def mains() -> dict[str, Callable[[], int]]:
    import data.__main__
    import profiling.__main__
    import retinanet.__main__
    import train as training

    return {
        "train": training.main,
        "data": data.__main__.main,
        "profiling": profiling.__main__.main,
        "retinanet": retinanet.__main__.main,
    }


@pytest.mark.parametrize("part", PROVOKED)
def test_command_prints_the_quoted_message(part: str, tmp_path: Path, run_here: RunHere) -> None:
    [quoted] = [message for message in OURS if part in message]
    (tmp_path / "a.jpg").write_bytes(b"")
    program, *arguments = PROVOKED[part](tmp_path)
    done = run_here(mains()[program], *arguments)
    assert done.returncode == 2
    assert message_pattern(quoted).match(done.stderr), done.stderr


def test_setup_without_python_prints_the_quoted_message(tmp_path: Path) -> None:
    (tmp_path / "setup.sh").write_text((REPOSITORY / "setup.sh").read_text())
    (tmp_path / "requirements.txt").write_text("")
    # Of `make update` both variables would be set.
    done = run_program("bash", tmp_path / "setup.sh", PYTHON="/nowhere/python", PINS="")
    assert done.returncode == 2
    [quoted] = [message for message in OURS if "needs Python 3.11" in message]
    assert message_pattern(quoted).match(done.stderr)


@pytest.mark.exhaustive
def test_openmp_prints_the_quoted_message() -> None:
    done = run_program(sys.executable, "-c", "import torch", OMP_NUM_THREADS="auto")
    [quoted] = [message for message, program in entries() if program == "libgomp"]
    assert quoted in done.stderr
