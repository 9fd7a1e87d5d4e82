import fcntl
import json
from pathlib import Path

import pytest
import torch

from common.locks import owner_file, this_process
from retinanet.config import Config, config_to_tree
from retinanet.config_file import load_config
from retinanet.preflight.findings import Finding
from retinanet.preflight.run import check_run_folder
from retinanet.training.checkpoint import Contents, checkpoint_folder, write_checkpoint
from retinanet.training.train_state import ModelDescription, State, TrainingPosition, random_states


@pytest.fixture(scope="module")
def config() -> Config:
    return load_config("demo.yaml", [])


@pytest.mark.parametrize(
    ("flag", "level", "words"),
    [
        ("", "failure", "holds another run's work"),
        ("--overwrite", "warning", "the run that is there will be removed"),
        ("--resume", "ok", "holds no checkpoint yet: the run begins anew"),
    ],
)
def test_an_earlier_run(config: Config, tmp_path: Path, flag: str, level: str, words: str) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    (tmp_path / "checkpoints").mkdir()
    found = check_run_folder(
        tmp_path, config, resume=flag == "--resume", overwrite=flag == "--overwrite"
    )
    assert found.level == level and words in found.found


def test_a_folder_without_a_run(config: Config, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "new"):
        assert check_run_folder(path, config, resume=False, overwrite=False).level == "ok"
        assert check_run_folder(path, config, resume=True, overwrite=False).level == "failure"
    assert list(tmp_path.iterdir()) == []


def test_a_live_run_is_seen_and_keeps_its_lock(config: Config, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with (tmp_path / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = check_run_folder(tmp_path, config, resume=False, overwrite=True)
        with (tmp_path / ".lock").open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert found.level == "failure" and found.found.endswith("another run is writing there")


def test_what_a_run_would_refuse_is_a_failure(config: Config, tmp_path: Path) -> None:
    (tmp_path / "photos" / "2017").mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / "not mounted")
    for name in ("photos", "linked"):
        found = check_run_folder(tmp_path / name, config, resume=False, overwrite=False)
        assert found.level == "failure" and found.fix


def test_a_run_on_a_file_system_without_locks_is_seen(config: Config, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    owner_file(tmp_path / ".lock").write_text(json.dumps(this_process()))
    found = check_run_folder(tmp_path, config, resume=True, overwrite=False)
    assert found.level == "failure" and found.found.endswith("another run is writing there")


def write_small(run: Path, config: Config, *, step: int, epoch: int) -> Path:
    """A checkpoint of almost nothing."""
    state = State(
        model=ModelDescription(
            num_classes=1,
            norm=config.model.norm,
            trainable_layers=config.model.trainable_layers,
            image_size=config.data.image_size,
            precision=config.engine.precision,
            classes={"category_ids": [1], "names": ["kite"]},
        ),
        position=TrainingPosition(
            step=step, epoch=epoch, images=0, images_per_epoch=8, map_here=None, best_map=None
        ),
        setup={"ranks": 1},
        config=config_to_tree(config),
        random_states=[random_states()],
        parts={},
    )
    tensors = {"weight": torch.zeros(4)}
    parts = {"model.safetensors": tensors, "optimizer.safetensors": tensors}
    folder = checkpoint_folder(run / "checkpoints", step)
    folder.parent.mkdir(exist_ok=True)
    write_checkpoint(folder, Contents(parts, state))
    return folder


def resumed(run: Path, config: Config) -> Finding:
    return check_run_folder(run, config, resume=True, overwrite=False)


def test_the_newest_whole_checkpoint_is_named_and_damaged_ones_too(
    config: Config, tmp_path: Path
) -> None:
    older = write_small(tmp_path, config, step=4, epoch=0)
    newer = write_small(tmp_path, config, step=8, epoch=1)
    found = resumed(tmp_path, config)
    assert (found.level, found.found) == ("ok", f"goes on from {newer}, which is whole")
    part = newer / "model.safetensors"
    part.write_bytes(part.read_bytes()[:-1] + b"!")
    found = resumed(tmp_path, config)
    assert found.level == "warning"
    assert found.found.startswith(f"goes on from {older}, which is whole; {part}")
    (older / "state.json").unlink()
    assert resumed(tmp_path, config).level == "failure"


def test_a_finished_run_and_other_settings_are_told(config: Config, tmp_path: Path) -> None:
    folder = write_small(tmp_path, config, step=30, epoch=config.training.epochs)
    found = resumed(tmp_path, config)
    assert found.level == "ok" and found.found.startswith(f"{folder} is a finished run's; raise")
    other = load_config("demo.yaml", ["data.image_size=64"])
    found = resumed(tmp_path, other)
    assert found.level == "failure" and "data.image_size was 128, is now 64" in found.found
