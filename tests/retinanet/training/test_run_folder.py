import errno
import fcntl
import json
import multiprocessing
import shutil
import signal
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from common.errors import InputError, StoppedBeforeStart
from retinanet.training import run_folder
from retinanet.training.run_folder import (
    ENVIRONMENT,
    LOCK,
    OWN_FILES,
    OWN_FOLDERS,
    RECIPE,
    claim_run_folder,
)
from tests.support.training_runs import mark_as_run


def claim(path: Path, *, resume: bool = False, overwrite: bool = False) -> None:
    with claim_run_folder(path, resume=resume, overwrite=overwrite):
        pass


def begin_run(path: Path, *, resume: bool = False, overwrite: bool = False) -> tuple[str, ...]:
    """Begin a run in a folder; return the notes about the folder."""
    with claim_run_folder(path, resume=resume, overwrite=overwrite) as folder:
        folder.begin({"run": {"name": "x"}}, ranks={"size": 1}, resume=resume)
    return folder.notes


@pytest.mark.parametrize(
    "error",
    [
        InputError("wrong"),
        StoppedBeforeStart("SIGTERM"),
        KeyboardInterrupt(),
        OSError(errno.ENAMETOOLONG, "File name too long", "x"),
    ],
)
def test_failed_start_removes_only_new_folders(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "runs" / "mine"
    for remaining in ([], ["other"]):
        for name in remaining:
            (tmp_path / "runs" / name).mkdir(parents=True)
        with (
            pytest.raises(type(error)),
            claim_run_folder(path, resume=False, overwrite=False) as folder,
        ):
            assert path.is_dir()
            folder.scenes.mkdir()
            raise error
        assert [entry.name for entry in tmp_path.glob("runs/*")] == remaining
        assert (tmp_path / "runs").exists() == bool(remaining)


def test_failed_start_removes_the_folder_while_loading_processes_live(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=signal.pause)
    with (
        pytest.raises(InputError),
        claim_run_folder(tmp_path / "mine", resume=False, overwrite=False),
    ):
        process.start()  # a fork of this process, with the lock
        raise InputError("wrong")
    assert list(tmp_path.iterdir()) == []
    process.kill()
    process.join()


def test_failed_start_leaves_no_lock_in_an_existing_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError), claim_run_folder(tmp_path, resume=False, overwrite=False):
        raise InputError("wrong")
    assert list(tmp_path.iterdir()) == []


def test_error_after_the_start_keeps_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    with (
        pytest.raises(InputError),
        claim_run_folder(path, resume=False, overwrite=False) as folder,
    ):
        folder.begin({}, ranks={"size": 1}, resume=False)
        (folder.checkpoints / "step-000001").mkdir()
        raise InputError("a damaged image in the third epoch")
    assert (path / "checkpoints" / "step-000001").is_dir()


@pytest.mark.parametrize("folders", [[], ["mine"], ["mine", "mine/checkpoints"]])
def test_auto_resume_accepts_existing_and_new_folders(folders: list[str], tmp_path: Path) -> None:
    for name in folders:
        (tmp_path / name).mkdir()
        (tmp_path / "mine" / LOCK).touch()  # as after every run
    with claim_run_folder(tmp_path / "mine", resume=False, overwrite=False, auto_resume=True):
        pass
    assert (tmp_path / "mine").is_dir()


@pytest.mark.parametrize("name", [*OWN_FILES, *OWN_FOLDERS])
def test_folder_of_another_run_is_refused_without_an_option(name: str, tmp_path: Path) -> None:
    mark_as_run(tmp_path)
    if name != ENVIRONMENT:
        (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=r"--resume, --overwrite, or run\.name=NEW"):
        claim(tmp_path)
    claim(tmp_path, overwrite=True)
    assert (tmp_path / name).exists()  # removed only once the input has been checked


@pytest.mark.parametrize("marks", [[ENVIRONMENT], ["metrics.jsonl", ENVIRONMENT], []])
def test_copied_run_can_be_resumed(marks: list[str], tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step-000004").mkdir(parents=True)
    if ENVIRONMENT in marks:
        mark_as_run(tmp_path)
    else:
        (tmp_path / "checkpoints" / "step-000004" / "state.json").touch()
    for name in marks[:-1]:
        (tmp_path / name).touch()
    claim(tmp_path, resume=True)
    with pytest.raises(InputError, match="contains another run"):
        claim(tmp_path)


@pytest.mark.parametrize("name", ["job-12.out", "train.log", "train.sh.o12", ".gitignore"])
def test_folder_with_a_log_is_used(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    claim(tmp_path)
    claim(tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    begin_run(tmp_path)
    begin_run(tmp_path, overwrite=True)
    assert (tmp_path / name).read_text() == "mine"


def test_start_that_was_killed_leaves_a_folder_that_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "scenes").mkdir()
    (tmp_path / "scenes" / RECIPE).write_text("{}")
    for name in (".scenes.lock", LOCK):
        (tmp_path / name).touch()
    claim(tmp_path)
    claim(tmp_path, overwrite=True)


@pytest.mark.parametrize(
    "name", [*OWN_FOLDERS, *OWN_FILES[:1], "train2017", "scenes", "thesis.odt"]
)
@pytest.mark.parametrize("others", [[], [LOCK], ["metrics.jsonl", ENVIRONMENT]])
def test_folder_with_another_purpose_is_refused(
    name: str, others: list[str], tmp_path: Path
) -> None:
    content = tmp_path / name if name.endswith(".odt") else tmp_path / name / "other"
    content.parent.mkdir(exist_ok=True)
    content.write_text("mine")
    for file in others:  # of other programs
        (tmp_path / file).write_text('{"command": "train"}')
    for overwrite in (False, True):
        with pytest.raises(
            InputError, match=rf"{tmp_path}: contains .*{name}.*, but no run; set run\.name"
        ):
            claim(tmp_path, overwrite=overwrite)
    assert {path.name for path in tmp_path.iterdir()} == {name, *others}
    assert content.read_text() == "mine"


def test_links_are_followed_and_noted_but_not_overwritten(tmp_path: Path) -> None:
    disk, link = tmp_path / "disk", tmp_path / "link"
    disk.mkdir()
    link.symlink_to(disk)
    [note] = begin_run(link)
    assert str(disk) in note
    claim(link, resume=True)
    with pytest.raises(InputError, match=rf"{link}: --overwrite: .*{disk}"):
        claim(link, overwrite=True)
    claim(disk, overwrite=True)
    [note] = begin_run(tmp_path / "link" / "mine")  # the root of the run is a link
    assert str(disk / "mine") in note
    claim(link / "mine", overwrite=True)
    assert (disk / "mine" / "config.yaml").exists()


class KilledError(BaseException):
    """Stands for SIGKILL: nothing is cleaned up."""


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("file", [ENVIRONMENT, "config.yaml"])
def test_folder_whose_start_was_killed_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, overwrite: bool
) -> None:
    def kill(path: Path, content: str) -> None:
        if path.name == file:
            raise KilledError
        path.write_text(content)

    if overwrite:
        begin_run(tmp_path)
        (tmp_path / "checkpoints" / "step-000001").mkdir()
    with monkeypatch.context() as patched, pytest.raises(KilledError):
        patched.setattr(run_folder, "write_atomically", kill)
        begin_run(tmp_path, overwrite=overwrite)
    claim(tmp_path, overwrite=True)


@pytest.mark.parametrize("name", [*OWN_FOLDERS, *OWN_FILES, LOCK, "scenes", ".scenes.lock"])
def test_links_in_a_run_are_refused(tmp_path: Path, name: str) -> None:
    elsewhere, path = tmp_path / "elsewhere", tmp_path / "mine"
    begin_run(path)
    elsewhere.mkdir()
    (elsewhere / "other").write_text("mine")
    shutil.rmtree(path / name) if (path / name).is_dir() else (path / name).unlink(missing_ok=True)
    target = elsewhere if name in OWN_FOLDERS else elsewhere / "other"
    (path / name).symlink_to(target)
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(InputError, match=rf"{path / name}: is a link; remove it, or set run"):
            claim(path, **options)
    assert (path / name).readlink() == target and (elsewhere / "other").read_text() == "mine"


def test_overwriting_removes_nothing_that_the_training_reads(tmp_path: Path) -> None:
    path, link = tmp_path / "mine", tmp_path / "link"
    begin_run(path)
    link.symlink_to(path)
    other = tmp_path / "other" / "labels.json"
    for source in (path, link, path / "checkpoints" / "best", link / "eval" / "a.json"):
        inputs = [other, source]
        with (
            pytest.raises(InputError, match=rf"--overwrite would remove {source}, which this"),
            claim_run_folder(path, resume=False, overwrite=True, inputs=inputs),
        ):
            pass
        with claim_run_folder(path, resume=True, overwrite=False, inputs=inputs):
            pass
    with claim_run_folder(path, resume=False, overwrite=True, inputs=[other, path / "scenes"]):
        pass


def test_unusable_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "not mounted")
    (tmp_path / "file").write_text("")
    for path, reason in (
        ("link", r"is a link to .*, which does not exist"),
        ("link/mine", r"is a link to .*, which does not exist"),
        ("file", "is a file"),
        ("file/mine", r"cannot be written.*set run\.root"),
    ):
        with pytest.raises(InputError, match=reason):
            claim(tmp_path / path)
    with pytest.raises(InputError, match="mine: --resume: "):
        claim(tmp_path / "mine", resume=True)
    assert {path.name for path in tmp_path.iterdir()} == {"link", "file"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_folder_of_a_live_run_is_refused(overwrite: bool, tmp_path: Path) -> None:
    with (tmp_path / LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another run is writing there"):
            claim(tmp_path, overwrite=overwrite)
    assert [file.name for file in tmp_path.iterdir()] == [LOCK]
    claim(tmp_path)  # released at its end


def test_overwriting_removes_only_files_of_the_earlier_run(tmp_path: Path) -> None:
    for name in (*OWN_FOLDERS, "scenes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "old").write_text("")
    mark_as_run(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("old")
    (tmp_path / "notes.txt").write_text("mine")
    begin_run(tmp_path, overwrite=True)
    assert [path.parent.name for path in tmp_path.glob("*/old")] == ["scenes"]
    assert not (tmp_path / "metrics.jsonl").exists() and (tmp_path / "notes.txt").exists()
    folders = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert folders == {"checkpoints", "tensorboard", "eval", "pictures", "scenes"}


def test_resuming_keeps_files_and_describes_run_and_environment(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "last").mkdir(parents=True)
    (tmp_path / "checkpoints" / "last" / "state.json").write_text("{}")
    mark_as_run(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("old")
    begin_run(tmp_path, resume=True)
    assert (tmp_path / "metrics.jsonl").read_text() == "old"
    assert (tmp_path / "checkpoints" / "last" / "state.json").exists()
    config = YAML(typ="safe").load((tmp_path / "config.yaml").read_text())
    assert config == {"run": {"name": "x"}}
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["usable_cpus"] >= 1 and environment["torch_threads"] >= 1
    assert {"torch", "torchvision", "pycocotools"} <= environment["packages"].keys()
    assert environment["command"] and environment["cpu_capability"]
