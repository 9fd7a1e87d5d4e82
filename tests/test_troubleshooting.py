"""docs/troubleshooting.md: each message that it quotes is one that this code prints."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.support.commands import RunHere

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "troubleshooting.md"
SOURCES = ("train.py", "common", "data", "launch", "profiling", "retinanet")

ENTRY = re.compile(r"^### `(.+)`(?: \((.+)\))?$", re.MULTILINE)
STAND_IN = "…"
OTHERS = {"pip", "Python", "torch", "mpirun", "libgomp", "the shell"}
"""Whose messages are quoted beside ours."""

SHORTEST = 4
"""Characters of a piece of a literal that a quoted message may be made of."""


def entries() -> list[tuple[str, str]]:
    """Each quoted message, and who says it: empty for this program."""
    return ENTRY.findall(PAGE.read_text(encoding="utf-8"))


OURS = [message for message, speaker in entries() if not speaker]


def fixed_parts(tree: ast.AST) -> list[str]:
    """All text between the values of a module's strings."""
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


BETWEEN = "\0"
"""Stands between two parts of a file's strings, and in no message."""


@cache
def texts_of_sources() -> dict[str, str]:
    """The fixed parts of the strings of each file, in a row."""
    roots = [REPOSITORY / name for name in SOURCES]
    files = [file for root in roots for file in ([root] if root.is_file() else root.rglob("*.py"))]
    texts = {
        str(file.relative_to(REPOSITORY)): BETWEEN.join(fixed_parts(ast.parse(file.read_text())))
        for file in files
    }
    return texts | {"setup.sh": (REPOSITORY / "setup.sh").read_text()}


def is_made_of(message: str, text: str) -> bool:
    """Whether a message is a row of pieces of a text, each of at least `SHORTEST` characters.

    A colon may stand between two of them, as `Finding` joins its subject and what was found.
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
    """What is the same each time, without what commands put before every line."""
    text = re.sub(r"^(error|warning|note|setup): ", "", message)
    pieces = (piece.strip(" ;:,()[].×") for piece in text.split(STAND_IN))
    return [piece for piece in pieces if len(piece) >= SHORTEST]


def pattern_of(message: str) -> re.Pattern[str]:
    """What the message matches when it is printed."""
    return re.compile(".*?".join(map(re.escape, message.split(STAND_IN))))


def test_the_page_quotes_some_forty_messages_of_ours_and_names_other_speakers() -> None:
    assert len(OURS) >= 40
    assert {speaker for _, speaker in entries()} - {""} <= OTHERS


@pytest.mark.parametrize("message", OURS)
def test_a_quoted_message_stands_in_the_sources(message: str) -> None:
    wanted = fragments(message)
    assert wanted, "only stand-ins"
    files = [
        file
        for file, text in texts_of_sources().items()
        if all(is_made_of(piece, text) for piece in wanted)
    ]
    assert files, f"no file prints all of {wanted}"


def test_a_message_that_nobody_prints_is_found_out() -> None:
    text = texts_of_sources()["retinanet/training/run_folder.py"]
    assert is_made_of("holds another run's work; give --resume", text)
    assert not is_made_of("holds another run's work; give --force", text)


# A good share is provoked: what the command says is what the page quotes.

Provoke = Callable[[Path], list[str]]


def train(*words: str) -> Provoke:
    return lambda folder: ["train", *words, f"run.root={folder / 'runs'}"]


def own_data(name: str, *words: str, **changes: object) -> Provoke:
    """Training on a JSON of one image, with changed fields."""

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
        given = [f"data.{split}_annotations={file}" for split in splits]
        given += [f"data.{split}_images={folder}" for split in splits]
        own = ["--config", "coco.yaml", "model.norm=batch", "model.trainable_layers=5"]
        own += ["model.pretrained_backbone=null", "launch.pin=false", "data.image_size=64"]
        own += ["data.class_indices=contiguous", "model.num_classes=null"]
        return train(*own, *given, *words)(folder)

    return command


def verify(file_text: str) -> Provoke:
    def command(folder: Path) -> list[str]:
        (folder / "labels.json").write_text(file_text)
        return ["data", "convert", str(folder / "labels.json")]

    return command


def occupied(folder: Path) -> list[str]:
    (folder / "runs" / "mine").mkdir(parents=True)
    (folder / "runs" / "mine" / "metrics.jsonl").write_text("{}\n")
    return train("run.name=mine", "launch.pin=false")(folder)


def no_log(folder: Path) -> list[str]:
    (folder / "run").mkdir()
    (folder / "run" / "config.yaml").write_text("")
    return [
        "profiling",
        "report",
        str(folder / "run"),
        "--peaks",
        "none",
        "--out",
        str(folder / "report.html"),
    ]


PROVOKED: dict[str, Provoke] = {
    "no such field; did you mean": train("batch_size=2"),
    "no such configuration file": train("--config", "cocoo.yaml"),
    "needs pretrained weights": own_data("a.jpg", "model.norm=frozen"),
    "is given beside data.scenes": train("data.root=/nowhere", "launch.pin=false"),
    "is not a folder; give the data set's": own_data(
        "a.jpg", "data.root=/nowhere", "data.train_images=null"
    ),
    "holds no … split": lambda folder: own_data(
        "a.jpg", f"data.root={folder}", "data.train_images=null"
    )(folder),
    "images: missing": verify('{"annotations": [], "categories": []}'),
    "not JSON": verify('{"images": [{]}'),
    "categories: empty": own_data("a.jpg", categories=[]),
    "no such image file; check the folder of images and file_name": own_data("nowhere.jpg"),
    "is no id in categories": own_data("a.jpg", category_id=7),
    "no image has a box": own_data("a.jpg", iscrowd=1),
    "model.num_classes is": own_data("a.jpg", "model.num_classes=7"),
    "launch.threads=… is more": train("launch.threads=4096", "--dry-run"),
    "holds another run's work": occupied,
    "holds no run to resume": train("--resume", "run.name=new", "launch.pin=false"),
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
def test_what_a_command_says_is_what_the_page_quotes(
    part: str, tmp_path: Path, run_here: RunHere
) -> None:
    [quoted] = [message for message in OURS if part in message]
    (tmp_path / "a.jpg").write_bytes(b"")
    program, *words = PROVOKED[part](tmp_path)
    done = run_here(mains()[program], *words)
    assert done.returncode == 2
    assert pattern_of(quoted).match(done.stderr), done.stderr


def test_the_set_up_without_a_python_says_what_the_page_quotes(tmp_path: Path) -> None:
    (tmp_path / "setup.sh").write_text((REPOSITORY / "setup.sh").read_text())
    for name in ("requirements.txt", "requirements-dev.txt"):
        (tmp_path / name).write_text("")
    done = subprocess.run(
        ["bash", str(tmp_path / "setup.sh")],
        env=os.environ | {"PYTHON": "/nowhere/python"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    [quoted] = [message for message in OURS if "needs Python 3.11" in message]
    assert pattern_of(quoted).match(done.stderr)


def test_the_number_that_openmp_does_not_read_is_quoted_as_it_says_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import torch"],
        env=os.environ | {"OMP_NUM_THREADS": "auto"},
        capture_output=True,
        text=True,
        check=False,
    )
    [quoted] = [message for message, speaker in entries() if speaker == "libgomp"]
    assert quoted in done.stderr
