import fcntl
import json
import multiprocessing
import signal
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from common.errors import InputError, StoppedBeforeStart
from retinanet.training.run_folder import LOCK, OWN_FILES, OWN_FOLDERS, claim_run_folder


def claim(path: Path, *, resume: bool = False, overwrite: bool = False) -> None:
    with claim_run_folder(path, resume=resume, overwrite=overwrite):
        pass


def test_a_mistake_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "mine"
    with (
        pytest.raises(InputError, match="wrong"),
        claim_run_folder(path, resume=False, overwrite=False),
    ):
        assert path.is_dir()
        (path / "scenes").mkdir()
        raise InputError("wrong")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stop", [StoppedBeforeStart("SIGTERM"), KeyboardInterrupt()])
def test_a_signal_before_the_start_leaves_nothing_behind(
    stop: BaseException, tmp_path: Path
) -> None:
    with (
        pytest.raises(type(stop)),
        claim_run_folder(tmp_path / "mine", resume=False, overwrite=False) as folder,
    ):
        folder.scenes.mkdir()
        raise stop
    assert list(tmp_path.iterdir()) == []


def test_loading_processes_that_still_live_keep_no_folder(tmp_path: Path) -> None:
    loading = multiprocessing.get_context("fork").Process(target=signal.pause)
    with (
        pytest.raises(InputError),
        claim_run_folder(tmp_path / "mine", resume=False, overwrite=False),
    ):
        loading.start()  # a copy of this process, with the lock
        raise InputError("wrong")
    assert list(tmp_path.iterdir()) == []
    loading.kill()
    loading.join()


@pytest.mark.parametrize("folders", [[], ["mine"], ["mine", "mine/checkpoints"]])
def test_a_requeued_job_finds_a_run_or_begins_one(folders: list[str], tmp_path: Path) -> None:
    for name in folders:
        (tmp_path / name).mkdir()
        (tmp_path / "mine" / LOCK).touch()  # which every run leaves
    with claim_run_folder(tmp_path / "mine", resume=False, overwrite=False, auto_resume=True):
        pass
    assert (tmp_path / "mine").is_dir()


def test_a_mistake_leaves_other_runs_alone(tmp_path: Path) -> None:
    (tmp_path / "runs" / "other").mkdir(parents=True)
    with (
        pytest.raises(InputError),
        claim_run_folder(tmp_path / "runs" / "mine", resume=False, overwrite=False),
    ):
        raise InputError("wrong")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["other"]


def test_a_mistake_found_after_the_start_loses_no_work(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    with (
        pytest.raises(InputError),
        claim_run_folder(path, resume=False, overwrite=False) as folder,
    ):
        folder.begin({}, ranks={"size": 1}, resume=False)
        (folder.checkpoints / "step-000001").mkdir()
        raise InputError("a damaged image in the third epoch")
    assert (path / "checkpoints" / "step-000001").is_dir()


@pytest.mark.parametrize("name", [*OWN_FILES, *OWN_FOLDERS])
def test_a_folder_with_work_is_refused_without_a_flag(name: str, tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=r"--resume, --overwrite, or run\.name=NEW"):
        claim(tmp_path)
    claim(tmp_path, overwrite=True)
    assert (tmp_path / name).exists()  # nothing is removed before the input is known to be good


def test_overwriting_removes_nothing_behind_a_link(tmp_path: Path) -> None:
    elsewhere, path = tmp_path / "elsewhere", tmp_path / "mine"
    (elsewhere / "step-000009").mkdir(parents=True)
    path.mkdir()
    (path / "checkpoints").symlink_to(elsewhere)
    with claim_run_folder(path, resume=False, overwrite=True) as folder:
        folder.begin({}, ranks={"size": 1}, resume=False)
    assert (elsewhere / "step-000009").is_dir()
    assert not folder.checkpoints.is_symlink() and not any(folder.checkpoints.iterdir())


def test_a_folder_that_holds_files_of_no_run_is_used_and_named(tmp_path: Path) -> None:
    (tmp_path / "job-12.out").write_text("mine")
    with claim_run_folder(tmp_path, resume=False, overwrite=False) as folder:
        [note] = folder.notes
    assert "job-12.out" in note
    assert [path.name for path in tmp_path.iterdir()] == ["job-12.out"]


@pytest.mark.parametrize("name", [*OWN_FOLDERS, *OWN_FILES[:1], "train2017"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_is_used_for_something_else_is_refused(
    name: str, overwrite: bool, tmp_path: Path
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "kept").write_text("mine")
    with pytest.raises(InputError, match=rf"holds no run, but {name}; set run\.name"):
        claim(tmp_path, overwrite=overwrite)
    assert (tmp_path / name / "kept").exists() and not (tmp_path / LOCK).exists()


@pytest.mark.parametrize("marks", [["environment.json"], ["metrics.jsonl"], []])
def test_a_copied_run_is_a_run(marks: list[str], tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step-000004").mkdir(parents=True)
    for name in marks:
        (tmp_path / name).touch()
    claim(tmp_path, resume=True)
    with pytest.raises(InputError, match="holds another run's work"):
        claim(tmp_path)


def test_a_linked_folder_is_used_and_named(tmp_path: Path) -> None:
    disk, path = tmp_path / "disk", tmp_path / "mine"
    disk.mkdir()
    path.symlink_to(disk)
    with claim_run_folder(path, resume=False, overwrite=False) as folder:
        assert [str(disk) in note for note in folder.notes] == [True]
        folder.begin({}, ranks={"size": 1}, resume=False)
    claim(path, resume=True)
    with pytest.raises(InputError, match=r"is a link to .*--overwrite"):
        claim(path, overwrite=True)
    claim(disk, overwrite=True)


def test_a_linked_root_is_followed(tmp_path: Path) -> None:
    disk, root = tmp_path / "disk", tmp_path / "runs"
    disk.mkdir()
    root.symlink_to(disk)
    with claim_run_folder(root / "mine", resume=False, overwrite=False) as folder:
        assert [str(disk / "mine") in note for note in folder.notes] == [True]
        folder.begin({}, ranks={"size": 1}, resume=False)
    claim(root / "mine", overwrite=True)  # its own name is no link
    assert (disk / "mine" / "config.yaml").exists()


@pytest.mark.parametrize("link", ["mine", "."])
def test_a_link_to_nothing_is_refused(link: str, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    link_path = tmp_path / "runs" / link if link != "." else tmp_path / "linked"
    link_path.symlink_to(tmp_path / "not mounted")
    path = link_path if link != "." else link_path / "mine"
    with pytest.raises(InputError, match=r"is a link to .*, which does not exist"):
        claim(path)
    assert not (tmp_path / "not mounted").exists()


def test_a_mistake_leaves_no_lock_in_a_folder_that_was_there(tmp_path: Path) -> None:
    with pytest.raises(InputError), claim_run_folder(tmp_path, resume=False, overwrite=False):
        raise InputError("wrong")
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_resume_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run to resume"):
        claim(tmp_path / "mine", resume=True)
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_a_live_run_holds_is_refused(overwrite: bool, tmp_path: Path) -> None:
    with (tmp_path / LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another run is writing there"):
            claim(tmp_path, overwrite=overwrite)
    claim(tmp_path)  # its end lets go


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(InputError, match="is a file"):
        claim(tmp_path / "mine")
    with pytest.raises(InputError, match=r"cannot be written.*set run\.root"):
        claim(tmp_path / "mine" / "inner")


def test_beginning_anew_removes_the_earlier_work_alone(tmp_path: Path) -> None:
    for name in (*OWN_FOLDERS, "scenes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "old").write_text("")
    (tmp_path / "metrics.jsonl").write_text("old")
    (tmp_path / "notes.txt").write_text("mine")
    with claim_run_folder(tmp_path, resume=False, overwrite=True) as folder:
        folder.begin({"run": {"name": "x"}}, ranks={"size": 1}, resume=False)
    assert not list(tmp_path.glob("[a-z]*/old")) or [
        path.parent.name for path in tmp_path.glob("[a-z]*/old")
    ] == ["scenes"]
    assert not (tmp_path / "metrics.jsonl").exists()
    assert (tmp_path / "notes.txt").exists()
    folders = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert folders == {"checkpoints", "tensorboard", "eval", "pictures", "scenes"}


def test_resuming_keeps_the_earlier_work(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "last").mkdir(parents=True)
    (tmp_path / "checkpoints" / "last" / "state.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text("old")
    with claim_run_folder(tmp_path, resume=True, overwrite=False) as folder:
        folder.begin({}, ranks={"size": 1}, resume=True)
    assert (tmp_path / "metrics.jsonl").read_text() == "old"
    assert (tmp_path / "checkpoints" / "last" / "state.json").exists()


def test_configuration_and_environment_are_written_down(tmp_path: Path) -> None:
    with claim_run_folder(tmp_path / "mine", resume=False, overwrite=False) as folder:
        folder.begin({"training": {"learning_rate": 1e-4}}, ranks={"size": 1}, resume=False)
    config = YAML(typ="safe").load((tmp_path / "mine" / "config.yaml").read_text())
    assert config == {"training": {"learning_rate": 1e-4}}
    environment = json.loads((tmp_path / "mine" / "environment.json").read_text())
    assert environment["usable_cpus"] >= 1 and environment["torch_threads"] >= 1
    assert {"torch", "torchvision", "pycocotools"} <= environment["packages"].keys()
    assert environment["command"] and environment["cpu_capability"]
