import json
import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from common.files import read_json_lines
from retinanet.evaluation.metric import METRICS, ClassResult, Evaluation
from retinanet.training.loop import StepResult
from retinanet.training.recorder import MetricsLog, drop_later_lines


def result(step: int, *, loss: float = 0.5) -> StepResult:
    return StepResult(
        step=step,
        losses={"classification": loss, "bbox_regression": 0.25},
        gradient_norm=2.5,
        learning_rate=step * 1e-4,
        images=6,
        seconds=1.5,
        data_seconds=0.5,
        page_faults=7,
        resident_mb=1500.5,
        peak_resident_mb=2000.0,
    )


@contextmanager
def opened(folder: Path, *, resumed_step: int = 0) -> Iterator[MetricsLog]:
    log = MetricsLog(folder / "metrics.jsonl", folder / "tensorboard", resumed_step=resumed_step)
    try:
        yield log
    finally:
        log.close()


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_a_step_is_one_line_with_its_numbers(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.step(result(3), epoch=0.123456)
    [line] = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "kind": "step",
        "step": 3,
        "epoch": 0.1235,
        "loss": 0.75,
        "classification": 0.5,
        "bbox_regression": 0.25,
        "gradient_norm": 2.5,
        "learning_rate": pytest.approx(3e-4),
        "images": 6,
        "images_per_second": 4.0,
        "seconds": 1.5,
        "data_seconds": 0.5,
        "exchange_seconds": 0.0,
        "page_faults": 7,
        "resident_mb": 1500.5,
        "peak_resident_mb": 2000.0,
    }


def test_lines_are_there_while_the_run_goes_on(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.step(result(1), epoch=0.1)
        assert len(read_json_lines(tmp_path / "metrics.jsonl")) == 1


def test_tensorboard_shows_the_same_numbers(tmp_path: Path) -> None:
    summary = dict.fromkeys(METRICS, 0.25) | {"map_small": math.nan}
    with opened(tmp_path) as log:
        for step in (1, 2, 3):
            log.step(result(step, loss=0.5 * step), epoch=0.1)
        log.evaluation(Evaluation(summary, (), {}), step=3, epoch=1.0, seconds=2.0)
        log.picture("validation", np.zeros((4, 6, 3), np.uint8), step=3)
    assert scalars(tmp_path, "train/loss") == [(1, 0.75), (2, 1.25), (3, 1.75)]
    assert scalars(tmp_path, "memory/page_faults") == [(1, 7), (2, 7), (3, 7)]
    assert scalars(tmp_path, "memory/peak_resident_mb")[0] == (1, 2000.0)
    assert scalars(tmp_path, "train/classification") == [(1, 0.5), (2, 1.0), (3, 1.5)]
    assert scalars(tmp_path, "evaluation/map") == [(3, 0.25)]
    with pytest.raises(KeyError):
        scalars(tmp_path, "evaluation/map_small")


def test_numbers_that_do_not_exist_are_null(tmp_path: Path) -> None:
    summary = dict.fromkeys(METRICS, 0.5) | {"map_small": math.nan}
    with opened(tmp_path) as log:
        cat = ClassResult(
            category_id=1,
            name="cat",
            map=0.5,
            map_50=0.5,
            map_75=0.5,
            mar_100=0.5,
            true_boxes=1,
            found_boxes=1,
        )
        log.evaluation(Evaluation(summary, (cat,), {}), step=4, epoch=1, seconds=2.0)
    text = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in text
    record = json.loads(text)
    assert record["map_small"] is None and record["map"] == 0.5
    assert record["per_class"] == {"cat": 0.5} and record["kind"] == "evaluation"


def test_a_resumed_log_drops_later_lines_and_makes_them_again(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        for step in range(1, 6):
            log.step(result(step), epoch=0.1)
    # TensorBoard orders files by the second in their names, then as text: 10 before 9.
    time.sleep(1 - time.time() % 1)
    with opened(tmp_path, resumed_step=3) as log:
        for step in range(4, 7):
            log.step(result(step, loss=9.0), epoch=0.1)
    records = read_json_lines(tmp_path / "metrics.jsonl")
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert [record["classification"] for record in records] == [0.5] * 3 + [9.0] * 3
    # TensorBoard's reader drops what a later file purges
    assert [step for step, _ in scalars(tmp_path, "train/loss")] == [1, 2, 3, 4, 5, 6]


def test_a_last_line_cut_short_is_left_out_and_repaired(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"kind": "step", "step": 1}\n{"kind": "step", "st')
    assert read_json_lines(file) == [{"kind": "step", "step": 1}]
    drop_later_lines(file, step=10)
    assert file.read_text() == '{"kind": "step", "step": 1}\n'


def test_a_missing_file_has_no_records(tmp_path: Path) -> None:
    assert read_json_lines(tmp_path / "none.jsonl") == []
    drop_later_lines(tmp_path / "none.jsonl", step=3)
    assert not (tmp_path / "none.jsonl").exists()


def test_lines_that_a_full_disk_does_not_take_wait_for_room(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a disk of its own takes root, and the right to mount")
    try:
        log = MetricsLog(disk / "metrics.jsonl", disk / "tensorboard")
        log.step(result(1), epoch=0)
        with (disk / "ballast").open("wb") as ballast, pytest.raises(OSError, match="No space"):
            ballast.write(bytes(1_000_000))
        failed = 0
        for step in range(2, 40):
            try:
                log.step(result(step), epoch=0)
            except OSError:
                failed += 1
        assert failed > 0
        shutil.copy(disk / "metrics.jsonl", tmp_path / "while-full")
        (disk / "ballast").unlink()
        log.step(result(40), epoch=0)
        log.close()
        assert all(
            line.endswith(b"}") for line in (tmp_path / "while-full").read_bytes().split(b"\n")[:-1]
        )
        assert [one["step"] for one in read_json_lines(disk / "metrics.jsonl")] == list(
            range(1, 41)
        )
    finally:
        subprocess.run(["umount", str(disk)], check=True)
