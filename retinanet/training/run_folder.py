"""The folder of a run: its lock and its files."""

import io
import json
import os
import platform
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from ruamel.yaml import YAML

from common.errors import InputError, StoppedBeforeStart
from common.files import or_refused, read_text, write_atomically, write_json
from common.locks import FileLock, LockHeldError
from common.machine import code_version, installed_versions, processor_name
from common.outputs import format_names, other_entries
from common.walk import real_path
from data.synthetic import RECIPE
from launch.host_state import HostState
from launch.process_group import ProcessGroup
from retinanet.config import Config
from retinanet.config_types import STATE_FILE
from retinanet.training.checkpoint import newest_first
from retinanet.training.detector_weights import DetectorStart

WEIGHTS = "weights.json"  # The detector that the run started from, see `DetectorStart`
REPORT = "report.html"  # Written by `retinanet report`
ENVIRONMENT = "environment.json"
OWN_FILES = ("config.yaml", ENVIRONMENT, "metrics.jsonl", "mlperf.log", WEIGHTS, REPORT)
OWN_FOLDERS = ("checkpoints", "tensorboard", "eval", "pictures", "onednn", "trace", "perf")
LOCK = ".lock"
SCENES = "scenes"
OTHERS = (LOCK, SCENES, f".{SCENES}.lock")
FACTS = ("command", "host", "torch_threads", "packages")
"""Of `environment.json`, which marks the folder of a run: no other program writes all of them."""
MOST_BYTES = 10_000_000  # of `environment.json`

PACKAGES = ("torch", "torchvision", "numpy", "pillow", "simplejpeg", "accimage", "pycocotools",
            "safetensors")  # fmt: skip


class RunFolder:
    """Paths below `runs/<name>/`."""

    def __init__(self, path: Path, notes: tuple[str, ...] = ()) -> None:
        self.path = path
        self.notes = notes
        """Notes for rank 0 to print: about a link."""
        self.config = path / "config.yaml"
        """All settings, as of the last start."""
        self.start = path / WEIGHTS
        """The detector that the run started from, if it did."""
        self.metrics = path / "metrics.jsonl"
        """Numbers of steps and evaluations, one JSON object per line."""
        self.mlperf_log = path / "mlperf.log"
        self.checkpoints = path / "checkpoints"
        """`step-N/`, `last` and `best`."""
        self.pictures = path / "pictures"
        """Images with boxes, and curves."""
        self.evaluations = path / "eval"
        """Detections of each evaluation, in COCO's result format."""
        self.tensorboard = path / "tensorboard"
        self.scenes = path / SCENES
        """Synthetic scenes, in OpenImages' layout."""

    def begin(
        self,
        config: dict[str, Any],
        *,
        ranks: dict[str, Any],
        rare_classes: Mapping[str, str] | None = None,
        host_states: Mapping[str, HostState] | None = None,
        start: DetectorStart | None = None,
        resume: bool,
    ) -> None:
        """Write configuration and environment; unless resuming, remove files of an earlier run.

        `ranks` describes the ranks, see `ranks_as_json`, and `rare_classes` what is done for rare
        classes. `host_states` are those of all hosts at the start. `start` is what a new run took
        from another detector; a resumed run keeps the file of its start.

        Raises:
            InputError: It cannot be written.
        """
        if not resume:
            for folder in map(self.path.joinpath, OWN_FOLDERS):
                shutil.rmtree(folder, ignore_errors=True)
        # Never absent from here on: whenever this process is killed, the folder is that of a run.
        states = {host: state.to_dict() for host, state in (host_states or {}).items()}
        environment = collect_environment(command_line()) | {"ranks": ranks, "host_state": states}
        if rare_classes:
            environment["rare_classes"] = dict(rare_classes)
        write_atomically(self.path / ENVIRONMENT, json.dumps(environment, indent=1))
        if not resume:
            for name in {*OWN_FILES} - {ENVIRONMENT}:
                (self.path / name).unlink(missing_ok=True)
        text = io.StringIO()
        YAML().dump(config, text)
        write_atomically(self.config, text.getvalue())
        if start is not None:
            write_json(self.start, start.to_dict())
        for folder in (self.checkpoints, self.pictures, self.evaluations, self.tensorboard):
            with or_refused(folder, "cannot be created"):
                folder.mkdir(exist_ok=True)


def input_paths(config: Config) -> list[Path]:
    """Return the files and folders that a training reads, as they are set."""
    data, model = config.data, config.model
    paths = [
        data.root,
        data.train_annotations,
        data.train_images,
        data.validation_annotations,
        data.validation_images,
        model.weights,
        model.pretrained_backbone,
    ]
    return [Path(path) for path in paths if path is not None]


def collect_environment(command: list[str]) -> dict[str, Any]:
    """Return the environment of a measurement: command, host, packages and code version."""
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
    inputs: Sequence[Path] = (),
    group: ProcessGroup | None = None,
) -> Iterator[RunFolder]:
    """Lock the folder of a run on rank 0, so that no other run can claim it.

    A folder that was created here is removed again if the input is bad, or if any rank receives a
    signal before the run begins: a mistake leaves no files. `inputs` are what the training reads.

    Raises:
        InputError: Another run holds the folder; or it has files of a run and no option decides
            about them; or other files, links, or an input that `overwrite` would remove; or there
            is nothing to resume; or it cannot be written.
    """
    group = group or ProcessGroup()
    if not group.is_first:
        group.barrier()
        yield RunFolder(path)
        return
    # Listed before anything is created: only new folders may be removed again.
    new_folders = [folder for folder in (path, *path.parents) if not folder.exists()]
    problem = problem_of_folder(path, resume=resume, overwrite=overwrite, inputs=inputs)
    if problem is not None:
        raise InputError(problem)
    if holds_work(path) and not (resume or auto_resume or overwrite):
        raise InputError(
            f"{path}: contains another run; give --resume, --overwrite, or run.name=NEW"
        )
    # Before the lock file is created, which marks a folder as that of a run.
    notes = notes_on_folder(path)
    lock, removing = None, threading.Lock()

    def remove() -> None:
        # The main thread and the watchdog's thread may both call `remove`.
        with removing:
            remove_if_nothing_began(path, new_folders, lock=lock)

    if group.watch:
        # The watchdog ends this process without unwinding when another rank fails.
        group.watch.clean_up = remove
    try:
        lock = make_lock(path)
        take_lock(lock, path)
        # The other ranks continue only once rank 0 holds the lock.
        group.barrier()
        yield RunFolder(path, notes)
    except (InputError, OSError, StoppedBeforeStart, KeyboardInterrupt):
        remove()
        raise
    finally:
        if lock:
            # A lock file that is left in an empty folder would mark the folder as that of a run.
            lock.release(remove=not holds_work(path))


def make_lock(path: Path) -> FileLock:
    """Create a run's folder and its lock file."""
    with or_refused(path, advice="set run.root"):
        path.mkdir(parents=True, exist_ok=True)
        return FileLock(path / LOCK)


def remove_if_nothing_began(path: Path, new_folders: list[Path], *, lock: FileLock | None) -> None:
    """Remove a run's folder and its new parents, unless a run has begun there.

    A signal may come at any line of the claim, and a damaged image may be found after hours. `lock`
    is the lock file, if the claim has already opened it.
    """
    if not new_folders or not path.is_dir() or holds_work(path):
        return
    # Keep using the open lock: loading processes are forks that share it, so a new file
    # description could not take the lock until they have ended.
    folder_lock = lock or make_lock(path)
    with suppress(InputError):
        take_lock(folder_lock, path)
        shutil.rmtree(path, ignore_errors=True)
        # A parent that is not empty stays: another run has begun there.
        with suppress(OSError):
            for parent in new_folders[1:]:
                parent.rmdir()
    folder_lock.release()


def take_lock(lock: FileLock, path: Path) -> None:
    """Lock a run's folder; raise InputError if another run has locked it."""
    try:
        with or_refused(path, "cannot be locked", advice="set run.root"):
            lock.take()
    except LockHeldError as error:
        raise InputError(
            f"{path}: another run is writing there; set run.name, or wait for its end"
        ) from error


def problem_of_folder(
    path: Path, *, resume: bool, overwrite: bool, inputs: Sequence[Path] = ()
) -> str | None:
    """Return the reason why a run cannot use a folder, `; `, and the fix; None if it can."""
    if path.exists() and not path.is_dir():
        return f"{path}: is a file; set run.name or run.root"
    # A link without a target often stands for a disk that is not mounted. For such a path `mkdir`
    # only reports that a file exists.
    for link in (path, *path.parents):
        if link.is_symlink() and not link.exists():
            target = link.readlink()
            return (
                f"{link}: is a link to {target}, which does not exist; create it, or set run.root"
            )
    if resume and not holds_work(path):
        return f"{path}: --resume: the folder contains no run; omit --resume, or set run.name"
    if overwrite and path.is_symlink() and holds_work(path):
        return (
            f"{path}: --overwrite: the folder is a link to {path.readlink()}, which contains a "
            "run; set run.root and run.name to that folder, or set another run.name"
        )
    return problem_of_content(path, removed_inputs=inputs if overwrite else ())


def problem_of_content(path: Path, *, removed_inputs: Sequence[Path]) -> str | None:
    """Return the reason why a run cannot use what is in a folder, `; `, and the fix."""
    run = real_path(path)
    removed = [run / name for name in (*OWN_FILES, *OWN_FOLDERS)]
    for source in removed_inputs:
        place = real_path(source)
        if place == run or any(place.is_relative_to(part) for part in removed):
            return (
                f"{path}: --overwrite would remove {source}, which this training reads; set "
                "another run.name"
            )
    # Whatever a run writes there would be written, and removed, where the link leads.
    for entry in (path / name for name in (*OWN_FILES, *OWN_FOLDERS, *OTHERS)):
        if entry.is_symlink():
            return f"{entry}: is a link; remove it, or set run.name"
    if foreign := foreign_entries(path):
        return f"{path}: contains {format_names(foreign)}, but no run; set run.name or run.root"
    return None


def foreign_entries(path: Path) -> list[str]:
    """Return the names in a folder that show that it is not a run's, and not free for one.

    A log may be there, of the shell or the batch system that starts this command, and so may what a
    run leaves that was killed before its first step: scenes, and folders that are still empty.
    """
    if holds_run(path):
        return []
    return [
        entry.name
        for entry in other_entries(path, advice="set run.root")
        if not (entry.name == SCENES and (entry / RECIPE).is_file())
        and not (entry.name in OWN_FOLDERS and entry.is_dir() and not any(entry.iterdir()))
    ]


def notes_on_folder(path: Path) -> tuple[str, ...]:
    """Return notes on a usable folder: that it is a link."""
    if not (path.is_symlink() or path.parent.is_symlink()):
        return ()
    return (f"{path}: is or contains a link; the run writes to {real_path(path)}",)


def holds_run(path: Path) -> bool:
    """Return whether a folder is that of a run of this program, which may have been copied."""
    try:
        facts = json.loads(read_text(path / ENVIRONMENT, most_bytes=MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        facts = None
    if isinstance(facts, dict) and facts.keys() >= set(FACTS):
        return True
    folders = newest_first(path / "checkpoints")
    return any((folder / STATE_FILE).is_file() for folder in folders)


def holds_work(path: Path) -> bool:
    """Return whether a run has begun in the folder."""
    return any((path / name).exists() for name in (*OWN_FILES, *OWN_FOLDERS))


def command_line() -> list[str]:
    """Return the command line of this process, without the interpreter."""
    return [Path(sys.argv[0]).name, *sys.argv[1:]]
