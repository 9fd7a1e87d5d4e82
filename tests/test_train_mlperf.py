"""Whole runs, checked by MLCommons' own checkers."""

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torchvision.models import resnext50_32x4d

from data.synthetic import make_synthetic_data
from retinanet.__main__ import main
from retinanet.evaluation.metric import Evaluation, coco_metric
from retinanet.mlperf.log import LogLine, read_events
from retinanet.mlperf.official import check_compliance
from retinanet.training import evaluation
from tests.launch.ranks import TrainHere
from tests.support.commands import RunHere, run_program

pytestmark = pytest.mark.slow


OPENED = """
import json, runpy, sys, time

folder, file, *words = sys.argv[1:]
opened = []

def note(event, arguments):
    if event == "open" and folder in str(arguments[0]):
        opened.append((time.time(), str(arguments[0])))

sys.addaudithook(note)
sys.argv = ["train.py", *words]
try:
    runpy.run_path("train.py", run_name="__main__")
finally:
    with open(file, "w") as stream:
        json.dump(opened, stream)
"""
"""`train.py`, and a list of the files below a folder that it opened, and when."""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path)  # a checkpoint has 400 MB


def event_times(lines: list[LogLine]) -> dict[str, int]:
    return {line.key: line.time_ms for line in lines}


def test_run_that_reaches_its_target_can_be_submitted(
    run_here: RunHere, train_here: TrainHere, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = root / "submission"

    def good_metric(*inputs: Any) -> Evaluation:
        found = coco_metric(*inputs)
        return replace(found, summary={**found.summary, "map": 0.5})

    monkeypatch.setattr(evaluation, "coco_metric", good_metric)
    trained = train_here(
        *(f"run.root={root}", "run.name=a", "data.scenes.train=4", "data.scenes.validation=2"),
        *("data.image_size=64", "training.batch_size=2", "training.optimizer=sgd"),
        *("training.epochs=2", "training.target_map=0.4", "evaluation.pictures=0"),
    )
    assert trained.code == 0, trained.errors
    lines = read_events(root / "a" / "mlperf.log")
    assert lines[-1].metadata["status"] == "success"
    times = event_times(lines)
    assert 0 <= times["run_stop"] - times["eval_stop"] < 1000  # pictures are not on the clock
    assert check_compliance(root / "a" / "mlperf.log", rules="5.1.0").passed
    added = run_here(main, "mlperf", "submission", root / "a", "--out", out)
    assert "1 of 5 runs" in added.stdout and "Incorrect number of files" in added.stdout
    [result] = out.glob("results/*/retinanet/result_0.txt")
    assert result.read_bytes() == (root / "a" / "mlperf.log").read_bytes()
    done = run_here(main, "mlperf", "check", root / "a")
    assert done.returncode == 0 and "success" in done.stdout


def test_closed_division_run_opens_data_after_run_start_and_lacks_only_accuracy_and_data_set(
    run_here: RunHere, root: Path
) -> None:
    torch.manual_seed(0)
    backbone = root / "backbone.safetensors"
    save_file(dict(resnext50_32x4d(weights=None).state_dict()), backbone)
    data = root / "data"
    make_synthetic_data(data, seed=0, train=1, validation=1)
    for split in ("train", "validation"):
        [file] = (data / split / "labels").glob("*.json")
        content = json.loads(file.read_text())
        names = [{"id": number, "name": f"class {number}"} for number in range(1, 265)]
        file.write_text(json.dumps({**content, "categories": names}))
    opened = root / "opened.json"
    trained = run_program(
        *(sys.executable, "-c", OPENED, data, opened, "--config", "openimages.yaml"),
        *("mlperf.division=closed", "mlperf.organization=Us", f"data.root={data}"),
        *(f"model.pretrained_backbone={backbone}", "training.epochs=1", "training.batch_size=1"),
        *(f"run.root={root}", "run.name=a", "launch.threads=1", "evaluation.pictures=0"),
    )
    assert trained.returncode == 0, trained.stderr
    log = root / "a" / "mlperf.log"
    openings = json.loads(opened.read_text())
    assert {".json", ".jpg"} <= {Path(name).suffix for _, name in openings}
    assert event_times(read_events(log))["run_start"] <= 1000 * min(when for when, _ in openings)
    done = run_here(main, "mlperf", "check", root / "a")
    assert done.returncode == 4
    faults = [line for line in done.stdout.splitlines() if "✗" in line]
    assert len(faults) == 1 and "eval_accuracy" in faults[0] and "0.340" in faults[0]
    assert "train_samples: 1 training images; MLPerf's data set has 1,170,301" in done.stdout
    # The same log under the rules that list every tensor of the model.
    log.write_text(log.read_text().replace('"retinanet"', '"ssd"'))
    verdict = check_compliance(log, rules="2.1.0")
    assert len(verdict.faults) == 1 and "eval_accuracy" in verdict.faults[0]
