"""The folder of a run: who may write there, and what belongs to it."""

import fcntl
import io
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from ruamel.yaml import YAML

from launch.group.process_group import ProcessGroup
from retinanet.code_version import code_version
from retinanet.errors import InputError, StoppedBeforeStart
from retinanet.output_files import write_whole
from retinanet.processor import processor_name
from retinanet.versions import installed_versions

OWN_FILES = ("config.yaml", "environment.json", "metrics.jsonl", "mlperf.log")
OWN_FOLDERS = ("checkpoints", "tensorboard", "eval", "pictures", "onednn", "trace", "perf")
LOCK = ".lock"

PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "pillow",
    "simplejpeg",
    "pycocotools",
    "safetensors",
)


@dataclass(frozen=True)
class RunFolder:
    """Paths below `runs/<name>/`."""

    path: Path

    @property
    def metrics(self) -> Path:
        """A JSON object a line."""
        return self.path / "metrics.jsonl"

    @property
    def mlperf_log(self) -> Path:
        """What MLCommons' checkers read."""
        return self.path / "mlperf.log"

    @property
    def checkpoints(self) -> Path:
        """`step-N/`, `last` and `best`."""
        return self.path / "checkpoints"

    @property
    def pictures(self) -> Path:
        """What is to be looked at."""
        return self.path / "pictures"

    @property
    def evaluations(self) -> Path:
        """Detections of each evaluation, in COCO's result format."""
        return self.path / "eval"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def scenes(self) -> Path:
        """Drawn scenes, in OpenImages' tree."""
        return self.path / "scenes"

    def begin(self, config: dict[str, Any], *, ranks: dict[str, Any], resume: bool) -> None:
        """Write down what is about to run; unless it resumes, remove an earlier run's work.

        `ranks`: how many, where, and how they exchange gradients, for whoever reads the numbers.

        Raises:
            InputError: It cannot be written.
        """
        if not resume:
            for folder in map(self.path.joinpath, OWN_FOLDERS):
                if folder.is_symlink():  # what lies behind it is not in this run's folder
                    folder.unlink()
                shutil.rmtree(folder, ignore_errors=True)
            for name in OWN_FILES:
                (self.path / name).unlink(missing_ok=True)
        text = io.StringIO()
        YAML().dump(config, text)
        write_whole(self.path / "config.yaml", text.getvalue())
        environment = {**environment_of(command_line()), "ranks": ranks}
        write_whole(self.path / "environment.json", json.dumps(environment, indent=1))
        for folder in (self.checkpoints, self.pictures, self.evaluations, self.tensorboard):
            try:
                folder.mkdir(exist_ok=True)
            except OSError as error:
                raise InputError(f"{folder}: cannot be made: {error.strerror}") from error


def environment_of(command: list[str]) -> dict[str, Any]:
    """What a reader of the numbers needs to know about where they came from."""
    return {
        "command": command,
        "host": platform.node(),
        "system": platform.platform(),
        "processor": processor_name(),
        "usable_cpus": len(os.sched_getaffinity(0)),
        "torch_threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "packages": installed_versions(PACKAGES),
        "code": code_version(),
    }


@contextmanager
def claim_run_folder(
    path: Path,
    *,
    resume: bool,
    overwrite: bool,
    auto_resume: bool = False,
    group: ProcessGroup | None = None,
) -> Iterator[RunFolder]:
    """Hold the folder of a run: no other run can claim it meanwhile. Of several ranks 0 does it.

    A folder that was made here is removed again when the input turns out to be bad, or a signal
    comes, before the run begins: a mistake leaves nothing behind.

    Raises:
        InputError: A live run holds the folder, or it holds work that the flags do not speak of, or
            nothing that could be resumed, or it cannot be written.
    """
    group = group or ProcessGroup()
    if not group.is_first:
        group.barrier()
        yield RunFolder(path)
        return
    new_folders = [folder for folder in (path, *path.parents) if not folder.exists()]
    require_permission(path, resume=resume, auto_resume=auto_resume, overwrite=overwrite)
    lock = None
    try:
        lock = make_lock(path)
        take_lock(lock, path)
        group.barrier()
        yield RunFolder(path)
    except (InputError, StoppedBeforeStart, KeyboardInterrupt):
        remove_if_nothing_began(path, new_folders, lock=lock)
        raise
    finally:
        if lock:
            lock.close()


def make_lock(path: Path) -> TextIO:
    """Make a run's folder, and the file by which it is held.

    Raises:
        InputError: It cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        return (path / LOCK).open("a", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}; set run.root") from error


def remove_if_nothing_began(path: Path, new_folders: list[Path], *, lock: TextIO | None) -> None:
    """Remove a folder that was made just now, unless a run has begun there or holds it.

    A signal may come at any line of the claim, and a damaged image may turn up after hours.

    Args:
        path: The run's folder.
        new_folders: It and those above it, as far as they were made just now.
        lock: The file as the claim has opened it, if it came so far. It stays open until the folder
            is gone: loading processes are copies of this one and share the lock, so that nobody
            could take it anew while they end.
    """
    if not new_folders or not path.is_dir() or holds_work(path):
        return
    with lock or make_lock(path) as held, suppress(InputError):
        take_lock(held, path)
        remove_new(path, new_folders)


def remove_new(path: Path, new_folders: list[Path]) -> None:
    """Remove a run's folder, and those above it that were made for it just now."""
    shutil.rmtree(path)
    for parent in new_folders[1:]:
        try:
            parent.rmdir()
        except OSError:  # another run has begun there meanwhile
            return


def take_lock(lock: TextIO, path: Path) -> None:
    """Lock the file for as long as it is open; the system lets go when the process ends."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(
            f"{path}: another run is writing there; set run.name, or wait for its end"
        ) from error


def require_permission(path: Path, *, resume: bool, auto_resume: bool, overwrite: bool) -> None:
    """Refuse what would mix or lose work; `auto_resume` fits a folder with and without a run."""
    if path.exists() and not path.is_dir():
        raise InputError(f"{path}: is a file; set run.name or run.root")
    if resume and not holds_work(path):
        raise InputError(f"{path}: holds no run to resume; leave --resume out, or set run.name")
    if holds_work(path) and not (resume or auto_resume or overwrite):
        raise InputError(
            f"{path}: holds another run's work; give --resume, --overwrite, or run.name=NEW"
        )


def holds_work(path: Path) -> bool:
    """Whether a run has begun in the folder."""
    return any((path / name).exists() for name in (*OWN_FILES, *OWN_FOLDERS))


def command_line() -> list[str]:
    """The command as it was typed, without the interpreter."""
    return [Path(sys.argv[0]).name, *sys.argv[1:]]
