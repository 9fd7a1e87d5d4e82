"""Checks of a run: its folder, disk space, ranks and data."""

import fcntl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from retinanet.config import Config, config_to_tree
from retinanet.config_file import config_from_tree, load_config
from retinanet.preflight import run
from retinanet.preflight.findings import Finding
from retinanet.preflight.run import (
    DiskNeed,
    FreeSpace,
    check_data,
    check_disk,
    check_run_folder,
    check_writing,
    disk_usage,
    free_space,
)
from retinanet.training.checkpoint import Contents, checkpoint_folder, write_checkpoint
from retinanet.training.train_state import random_states
from tests.data.samples import write_json
from tests.support.mounts import needs_root, tmpfs
from tests.support.states import MODEL, POSITION, STATE
from tests.support.training_runs import mark_as_run


@pytest.fixture(scope="module")
def config() -> Config:
    return load_config("demo.yaml", [])


@pytest.mark.parametrize(
    ("flag", "level", "keyword"),
    [
        ("", "failure", "another run"),
        ("--overwrite", "warning", "removed"),
        ("--resume", "ok", "no checkpoint yet"),
    ],
)
def test_folder_of_an_earlier_run(
    config: Config, tmp_path: Path, flag: str, level: str, keyword: str
) -> None:
    mark_as_run(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    finding = check_run_folder(
        tmp_path, config, resume=flag == "--resume", overwrite=flag == "--overwrite"
    )
    assert finding.level == level and keyword in finding.detail


def test_folder_without_a_run(config: Config, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "new"):
        assert check_run_folder(path, config, resume=False, overwrite=False).level == "ok"
        assert check_run_folder(path, config, resume=True, overwrite=False).level == "failure"
    assert list(tmp_path.iterdir()) == []


def test_active_run_is_detected_and_keeps_its_lock(config: Config, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with (tmp_path / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        finding = check_run_folder(tmp_path, config, resume=False, overwrite=True)
        with (tmp_path / ".lock").open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert finding.level == "failure" and "another run is writing" in finding.detail


def test_folders_that_a_run_refuses_are_failures(config: Config, tmp_path: Path) -> None:
    (tmp_path / "photos" / "2017").mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / "not mounted")
    for name in ("photos", "linked"):
        finding = check_run_folder(tmp_path / name, config, resume=False, overwrite=False)
        assert finding.level == "failure" and finding.fix


def write_small_checkpoint(folder: Path, config: Config, *, step: int, epoch: int) -> Path:
    model = replace(
        MODEL,
        norm=config.model.norm,
        trainable_layers=config.model.trainable_layers,
        image_size=config.data.image_size,
        precision=config.engine.precision,
    )
    position = replace(POSITION, step=step, epoch=epoch)
    tree, states = config_to_tree(config), [random_states()]
    state = replace(STATE, model=model, position=position, config=tree, random_states=states)
    tensors = {"weight": torch.zeros(4)}
    parts = {"model.safetensors": tensors, "optimizer.safetensors": tensors}
    checkpoint = checkpoint_folder(folder / "checkpoints", step)
    checkpoint.parent.mkdir(exist_ok=True)
    write_checkpoint(checkpoint, Contents(parts, state))
    return checkpoint


def check_resume(folder: Path, config: Config) -> Finding:
    return check_run_folder(folder, config, resume=True, overwrite=False)


def test_newest_intact_checkpoint_and_damaged_ones(config: Config, tmp_path: Path) -> None:
    older = write_small_checkpoint(tmp_path, config, step=4, epoch=0)
    newer = write_small_checkpoint(tmp_path, config, step=8, epoch=1)
    finding = check_resume(tmp_path, config)
    assert finding.level == "ok" and str(newer) in finding.detail
    part = newer / "model.safetensors"
    part.write_bytes(part.read_bytes()[:-1] + b"!")
    finding = check_resume(tmp_path, config)
    assert finding.level == "warning"
    assert str(older) in finding.detail.partition(";")[0] and str(part) in finding.detail
    (older / "state.json").unlink()
    assert check_resume(tmp_path, config).level == "failure"


def test_finished_run_and_changed_settings(config: Config, tmp_path: Path) -> None:
    checkpoint = write_small_checkpoint(tmp_path, config, step=30, epoch=config.training.epochs)
    finding = check_resume(tmp_path, config)
    assert finding.level == "ok" and f"{checkpoint} is the end of a finished run" in finding.detail
    finding = check_resume(tmp_path, load_config("demo.yaml", ["data.image_size=64"]))
    assert finding.level == "failure" and "data.image_size was 128, is now 64" in finding.detail


def test_writing_is_tried_in_the_nearest_existing_folder(tmp_path: Path) -> None:
    finding = check_writing(tmp_path / "runs" / "demo")
    assert finding.level == "ok" and str(tmp_path) in finding.detail
    assert list(tmp_path.iterdir()) == []


def test_file_in_place_of_the_run_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    finding = check_writing(tmp_path / "runs" / "demo")
    assert finding.level == "failure" and f"{tmp_path / 'runs'}: is a file" in finding.line


@needs_root
def test_read_only_file_systems_are_failures(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "mounted", "ro") as folder:
        finding = check_writing(folder / "runs" / "demo")
    assert finding.level == "failure"
    assert finding.detail == f"{folder}: cannot be written: Read-only file system"
    with tmpfs(tmp_path / "checkpoints", "ro") as folder:  # only a part of an earlier run
        finding = check_writing(tmp_path)
    assert (finding.level, finding.detail.partition(":")[0]) == ("failure", str(folder))


MB = 1_000_000
NEED = DiskNeed(checkpoint=400 * MB, checkpoints=5, results=50 * MB)


def check_space(free: int, *, files: int | None = None, held: int = 0, freed: int = 0) -> Finding:
    space = FreeSpace(size=free * MB, files=files)
    return check_disk(Path("/disk"), free=space, need=NEED, held=held * MB, freed=freed * MB)


@pytest.mark.parametrize(
    ("free", "changes", "level"),
    [
        (2050, {}, "ok"),
        (2049, {}, "warning"),  # not all checkpoints fit
        (400, {}, "warning"),
        (399, {}, "failure"),  # not one fits
        (450, {"held": 1600}, "ok"),  # space that the run uses already is not needed again
        (399, {"held": 800}, "warning"),  # the last intact checkpoint stays
        (50, {"freed": 2000}, "ok"),  # --overwrite frees space
        (9000, {"files": 12}, "warning"),  # inodes
        (9000, {"files": 25}, "ok"),
    ],
)
def test_disk_space(free: int, changes: dict[str, int], level: str) -> None:
    finding = check_space(free, **changes)
    assert finding.level == level
    assert ("2.0 GB that --overwrite removes" in finding.detail) == ("freed" in changes)
    assert ("only 12 inodes" in finding.detail) == (changes.get("files") == 12)


@needs_root
def test_a_small_file_system_is_measured(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", "size=8m", "nr_inodes=40") as folder:
        before = free_space(folder)
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints" / "model.safetensors").write_bytes(bytes(3 << 20))
        after = free_space(folder)
        assert (before.size, before.size - after.size) == (8 << 20, 3 << 20)
        assert before.files is not None and after.files == before.files - 2
        freed = disk_usage(folder / "checkpoints")
        assert freed == 3 << 20
        need = DiskNeed(checkpoint=6 << 20, checkpoints=5, results=0)
        finding = check_disk(folder, free=after, need=need, held=0, freed=0)
        assert finding.level == "failure" and "takes 6.3 MB" in finding.line
        assert f"5.2 MB are free on the file system of {folder}; " in finding.line
        assert check_disk(folder, free=after, need=need, held=0, freed=freed).level == "warning"


@pytest.mark.parametrize(
    ("override", "ranks", "subject", "level", "text"),
    [
        ("batch_split=[3, 1]", 2, "batches", "ok", "3 images on rank 0"),
        ("batch_split=[3, 1]", 4, "batches", "failure", "distributed.batch_split"),
        ("groups=2", 4, "compute groups", "ok", "2 of 2 ranks"),
        ("groups=2", 3, "compute groups", "failure", "distributed.groups"),
    ],
)
def test_batch_split_and_groups_are_checked_against_the_ranks(
    override: str, ranks: int, subject: str, level: str, text: str
) -> None:
    config = load_config("demo.yaml", ["training.batch_size=2", f"distributed.{override}"])
    [finding] = run.check_ranks(config, ranks=ranks)
    assert (finding.subject, finding.level) == (subject, level) and text in finding.detail


def test_even_batches_and_a_single_group_have_no_finding(config: Config) -> None:
    assert run.check_ranks(config, ranks=3) == []


IMAGES = 6


def coco_content(split: str) -> dict[str, Any]:
    box = {"category_id": 7, "bbox": [4, 4, 20, 20], "area": 400, "iscrowd": 0}
    return {
        "images": [
            {"id": number, "file_name": f"{split}-{number}.jpg", "width": 48, "height": 40}
            for number in range(IMAGES)
        ],
        "annotations": [{"id": number + 1, "image_id": number, **box} for number in range(IMAGES)],
        "categories": [{"id": 7, "name": "kite"}],
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data set in COCO's folder layout."""
    (tmp_path / "annotations").mkdir()
    for folder in ("train2017", "val2017"):
        (tmp_path / folder).mkdir()
        content = coco_content(folder)
        write_json(tmp_path / "annotations" / f"instances_{folder}.json", content)
        for image in content["images"]:
            Image.new("RGB", (48, 40)).save(tmp_path / folder / image["file_name"])
    return tmp_path


def data_findings(
    folder: Path | None,
    *,
    gradient_accumulation: int = 1,
    weights: object = None,
    **changes: object,
) -> list[Finding]:
    tree = {
        "run": {"name": "tried"},
        "data": {"root": folder and str(folder), "image_size": 64, **changes},
        "training": {"gradient_accumulation": gradient_accumulation, "class_weights": weights},
    }
    return check_data(config_from_tree(tree, "test"), ranks=1)


def test_checked_data_set_is_left_unchanged(root: Path) -> None:
    before = sorted(root.rglob("*"))
    train, validation, steps = data_findings(root)
    assert train.level == validation.level == steps.level == "ok"
    assert train.detail.startswith(f"6 images in {root / 'train2017'}, 1 classes; 6 decoded")
    assert steps.detail == "3 per epoch, of 2 × 1 images"
    assert sorted(root.rglob("*")) == before  # no index


@pytest.mark.parametrize(("on_bad_image", "level"), [("stop", "failure"), ("skip", "warning")])
def test_truncated_image_is_named(root: Path, on_bad_image: str, level: str) -> None:
    image = root / "val2017" / "val2017-5.jpg"
    image.write_bytes(image.read_bytes()[:200])
    findings = data_findings(root, on_bad_image=on_bad_image)
    [finding] = [finding for finding in findings if finding.level != "ok"]
    assert finding.level == level and finding.detail.startswith(str(image))


def test_missing_images_and_annotations_are_named(root: Path) -> None:
    (root / "train2017" / "train2017-0.jpg").unlink()
    [finding] = [finding for finding in data_findings(root) if finding.level == "failure"]
    assert "train2017-0.jpg" in finding.detail
    (root / "annotations" / "instances_val2017.json").unlink()
    [finding] = data_findings(root)
    assert "data.validation_annotations" in finding.detail


def test_different_categories_of_the_splits_are_a_failure(root: Path) -> None:
    content = coco_content("val2017") | {"categories": [{"id": 7, "name": "dog"}]}
    write_json(root / "annotations" / "instances_val2017.json", content)
    [finding] = data_findings(root)
    assert finding.level == "failure" and "'dog'" in finding.detail and "'kite'" in finding.detail


def test_large_annotations_without_index_are_a_warning(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "READ_UP_TO", 10)
    findings = data_findings(root)
    assert [finding.level for finding in findings] == ["warning", "warning"]
    assert "no index yet" in findings[0].detail


def test_rare_classes_are_described_and_lengthen_the_epoch(root: Path) -> None:
    content = coco_content("train2017")
    content["categories"].append({"id": 9, "name": "frisbee"})
    content["annotations"][0]["category_id"] = 9
    for split in ("train2017", "val2017"):
        named = [image | {"file_name": f"{split}-{image['id']}.jpg"} for image in content["images"]]
        write_json(root / "annotations" / f"instances_{split}.json", content | {"images": named})
    # Factors sqrt(6 / 1) and five of sqrt(6 / 5), together 7.93 images an epoch.
    findings = {f.subject: f for f in data_findings(root, weights="balanced", repeat_rare=1.0)}
    assert findings["class weights"].detail == "frisbee 1.62, kite 0.724"
    assert findings["repeats"].detail == ("6 of 6 images, up to 2.45 times each: 8 places an epoch")
    assert findings["steps"].detail == "4 per epoch, of 2 × 1 images"
    findings = {f.subject: f for f in data_findings(root, weights={"kite": 2}, repeat_rare=0.1)}
    assert findings["class weights"].detail == "kite 2, frisbee 1"
    assert findings["repeats"].detail == "none: every class is in 0.1 of the images or more"
    [finding] = data_findings(root, weights={"kites": 2})
    assert finding.level == "failure" and "no class 'kites'; did you mean 'kite'?" in finding.line
    [finding] = data_findings(None, weights={"bus": 2}, scenes={"train": 5, "validation": 2})
    assert finding.level == "failure" and "'bus'; did you mean 'Bus'?" in finding.line


def test_epoch_without_a_step_is_a_failure(root: Path) -> None:
    finding = data_findings(root, gradient_accumulation=4)[-1]
    assert finding.level == "failure" and "an epoch has only 3" in finding.detail


def test_synthetic_data_excludes_files(tmp_path: Path) -> None:
    [finding] = data_findings(None, scenes={"train": 5, "validation": 2})
    assert finding.level == "ok" and "5 images for training and 2" in finding.detail
    [finding] = data_findings(tmp_path, scenes={"train": 5, "validation": 2})
    assert finding.level == "failure" and "data.scenes" in finding.detail


def test_first_and_last_image_are_always_sampled() -> None:
    assert {0, 999} <= set(run.sampled(1000)) and len(run.sampled(1000)) == 24
    assert sorted(run.sampled(3)) == [0, 1, 2]
    assert list(run.sampled(1)) == [0]
