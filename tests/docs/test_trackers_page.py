"""The programs of the page about trackers are run, and what each tracker wrote is read back.

TensorBoard's runs everywhere. The other trackers are in the environment that the page makes, or
beside the tests; one that is in neither is skipped, with its name.
"""

import importlib.util
import json
import re
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData  # type: ignore[import-untyped]

from common.files import read_json_lines
from common.yaml_text import read_yaml
from tests.docs.fixtures import run_ours
from tests.docs.pages import REPOSITORY, python_programs
from tests.docs.rules import SCENES, SMALL
from tests.docs.runner import run_training_program
from tests.support.commands import run_program

TRACKERS = REPOSITORY / ".venv-trackers" / "bin" / "python"
RUN = "tracked"
TWO_NAMES = re.compile(r"^import (\w+) as tracker  # or: import (\w+) as tracker$", re.MULTILINE)

pytestmark = pytest.mark.slow


class Tracked(NamedTuple):
    """What a tracker has of the run."""

    settings: dict[str, str]  # By name, such as training.epochs
    best_map: float
    curves: dict[str, dict[int, float]]  # Values by name and step


def page_programs() -> dict[str, str]:
    """Return the programs by tracker, each with the lines that it begins with; last `train`."""
    first, board, both, mlflow, train = python_programs("trackers.md")
    assert first.count("runs/demo") == 1
    first = first.replace("runs/demo", f"runs/{RUN}")
    [names] = TWO_NAMES.findall(both)
    programs = {name: TWO_NAMES.sub(f"import {name} as tracker", both) for name in names}
    programs |= {"tensorboard": board, "mlflow": mlflow}
    return {name: f"{first}\n{text}" for name, text in programs.items()} | {"train": train}


@pytest.fixture(scope="module")
def finished(root: Path) -> Tracked:
    """Train a small run into the folder, and return what its files say."""
    run_ours(" ".join(("retinanet train", *SCENES, *SMALL, f"run.name={RUN}")), root)
    return read_run(root / "runs" / RUN)


def read_run(run: Path) -> Tracked:
    curves: dict[str, dict[int, float]] = defaultdict(dict)
    for record in read_json_lines(run / "metrics.jsonl"):
        for name in ("loss", "learning_rate", "map", "mar_100"):
            if name in record:
                curves[f"{record['kind']}/{name}"][record["step"]] = record[name]
    best_map = max(curves["evaluation/map"].values())
    settings = flat(read_yaml((run / "config.yaml").read_text(), "config.yaml"))
    return Tracked(settings, best_map, curves)


def flat(config: dict[str, Any]) -> dict[str, str]:
    return {
        f"{section}.{name}": str(value)
        for section, fields in config.items()
        if isinstance(fields, dict)
        for name, value in fields.items()
    }


def curves_of(rows: Iterable[tuple[int, dict[str, float]]]) -> dict[str, dict[int, float]]:
    curves: dict[str, dict[int, float]] = defaultdict(dict)
    for step, values in rows:
        for name, value in values.items():
            curves[name][step] = value
    return curves


def python_with(package: str) -> Path:
    """Return a Python that has a tracker; the test is skipped if there is none."""
    if importlib.util.find_spec(package):
        return Path(sys.executable)
    if TRACKERS.exists() and not run_program(TRACKERS, "-c", f"import {package}").returncode:
        return TRACKERS
    pytest.skip(f"{package} is not installed, see docs/trackers.md")


def read_tensorboard(folder: Path) -> Tracked:
    events = EventAccumulator(str(folder / "runs" / RUN / "tensorboard")).Reload()
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    start = HParamsPluginData.FromString(content).session_start_info
    settings = {name: value.string_value for name, value in start.hparams.items()}
    curves = {
        tag.replace("train/", "step/"): {event.step: event.value for event in events.Scalars(tag)}
        for tag in events.Tags()["scalars"]
    }
    [best_map] = curves["best_map"].values()
    return Tracked(settings, best_map, curves)


def read_trackio(folder: Path) -> Tracked:
    with closing(sqlite3.connect(folder / "trackio" / "retinanet.db")) as database:
        [(text,)] = database.execute("SELECT config FROM configs WHERE run_name = ?", [RUN])
        rows = database.execute("SELECT step, metrics FROM metrics WHERE run_name = ?", [RUN])
        curves = curves_of((step, json.loads(values)) for step, values in rows)
    config = json.loads(text)
    return Tracked(flat(config), config["best_map"], curves)


def read_mlflow(folder: Path) -> Tracked:
    with closing(sqlite3.connect(folder / "mlflow.db")) as database:
        [(name,)] = database.execute("SELECT name FROM runs")
        assert name == RUN
        rows = database.execute("SELECT step, key, value FROM metrics")
        curves = curves_of((step, {key: value}) for step, key, value in rows)
        settings = dict(database.execute("SELECT key, value FROM params").fetchall())
    return Tracked(settings, float(settings["best_map"]), curves)


WANDB_RECORDS = """
import json, struct, sys
from wandb.proto.wandb_internal_pb2 import Record

data = open(sys.argv[1], "rb").read()
place, parts = 7, b""
while place < len(data):
    if 32768 - place % 32768 < 7:  # too short for a header: filled with zeros
        place += 32768 - place % 32768
        continue
    size, kind = struct.unpack_from("<HB", data, place + 4)
    parts += data[place + 7 : place + 7 + size]
    place += 7 + size
    if kind in (1, 4):  # all of a record, or its last part
        record, parts = Record.FromString(parts), b""
        pairs = [*record.run.config.update, *record.history.item]
        values = {pair.key or pair.nested_key[0]: json.loads(pair.value_json) for pair in pairs}
        print(json.dumps(values))
"""
"""Print the settings and the values of each step in the file of a run of Weights & Biases.

It is a log of LevelDB: blocks of 32 KiB, and records in parts with checksum, size and kind.
"""


def read_wandb(folder: Path) -> Tracked:
    [file] = folder.glob("wandb/offline-run-*/run-*.wandb")
    done = run_program(python_with("wandb"), "-c", WANDB_RECORDS, file, check=True)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    [config] = (record for record in records if "training" in record)
    rows = ((record["_step"], record) for record in records if "_step" in record)
    return Tracked(flat(config), config["best_map"], curves_of(rows))


READERS: dict[str, Callable[[Path], Tracked]] = {
    "tensorboard": read_tensorboard,
    "trackio": read_trackio,
    "wandb": read_wandb,
    "mlflow": read_mlflow,
}


@pytest.mark.parametrize("tracker", READERS)
def test_program_of_the_page_brings_a_run_to_the_tracker(
    tracker: str, root: Path, finished: Tracked
) -> None:
    python = python_with(tracker)
    program = page_programs()[tracker]
    done = run_program(
        *(python, "-c", program), cwd=root, timeout=300,
        TRACKIO_DIR=str(root / "trackio"), WANDB_MODE="offline",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tracked = READERS[tracker](root)
    assert tracked.settings["training.epochs"] == "1"
    assert finished.settings.items() <= tracked.settings.items()
    assert tracked.best_map == pytest.approx(finished.best_map)
    for name, values in finished.curves.items():
        assert tracked.curves[name] == pytest.approx(values), name


@pytest.mark.exhaustive
def test_program_of_the_page_gets_the_numbers_during_a_training(tmp_path: Path) -> None:
    done = run_training_program(page_programs()["train"], tmp_path)
    assert done.returncode == 0, done.stderr
    trained = read_run(tmp_path / "runs" / RUN)
    curves = (trained.curves[name] for name in ("step/loss", "evaluation/map"))
    lines = {f"{step} {value}" for curve in curves for step, value in curve.items()}
    assert set(done.stdout.splitlines()) == lines
