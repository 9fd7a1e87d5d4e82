"""What a run's folder holds, and what the command would do with it."""

from pathlib import Path

from retinanet.config import Config, TrainingConfig
from retinanet.errors import InputError
from retinanet.file_lock import is_locked
from retinanet.preflight.finding import Finding, failure, ok, warning
from retinanet.training.checkpoint import TrainingPosition, newest_whole
from retinanet.training.resume import require_same_settings
from retinanet.training.run_folder import (
    LOCK,
    holds_work,
    notes_on_folder,
    refusal_of_folder,
)

SUBJECT = "run folder"


def check_run_folder(path: Path, config: Config, *, resume: bool, overwrite: bool) -> Finding:
    """Look at the folder, and at the newest checkpoint in it; nothing there is changed.

    Args:
        path: `runs/NAME`.
        config: What the command would run.
        resume: Whether the command goes on with what is there.
        overwrite: Whether it removes what is there.
    """
    if is_locked(path / LOCK):
        fix = "set run.name, or wait for its end"
        return failure(SUBJECT, f"{path}: another run is writing there", fix=fix)
    refused = refusal_of_folder(path, resume=resume, overwrite=overwrite)
    if refused is not None:
        found, _, fix = refused.rpartition("; ")
        return failure(SUBJECT, found, fix=fix)
    if holds_work(path):
        return work_there(path, config, resume=resume, overwrite=overwrite)
    found = f"{path} holds no run yet" if path.exists() else f"{path} will be made"
    return ok(SUBJECT, "; ".join((found, *notes_on_folder(path))))


def work_there(path: Path, config: Config, *, resume: bool, overwrite: bool) -> Finding:
    """What becomes of an earlier run's work."""
    if overwrite:
        fix = "leave --overwrite out to keep it, with --resume or run.name=NEW"
        return warning(SUBJECT, f"{path}: the run that is there will be removed", fix=fix)
    if not resume:
        fix = "give --resume, --overwrite, or run.name=NEW"
        return failure(SUBJECT, f"{path}: holds another run's work", fix=fix)
    return newest_checkpoint(path / "checkpoints", config)


def resumes(path: Path, *, resume: bool, auto_resume: bool) -> bool:
    """Whether the command goes on with what is there."""
    return resume or (auto_resume and holds_work(path))


def newest_checkpoint(folder: Path, config: Config) -> Finding:
    """The one that --resume goes on from, after looking at every byte of it."""
    checkpoint, problems = newest_whole(folder)
    fix = "give --overwrite to begin anew, or another run.name"
    if checkpoint is None:
        if problems:
            return failure(SUBJECT, f"{problems[0]}; no checkpoint in {folder} is whole", fix=fix)
        return ok(SUBJECT, f"{folder} holds no checkpoint yet: the run begins anew")
    try:
        require_same_settings(checkpoint, config)
    except InputError as error:
        return failure(SUBJECT, str(error), fix="")
    found = f"goes on from {checkpoint.folder}, which is whole"
    if is_finished(checkpoint.position, config.training):
        raised = "raise training.epochs or training.max_steps to train on"
        found = f"{checkpoint.folder} is a finished run's; {raised}"
    if problems:
        return warning(SUBJECT, f"{found}; {problems[0]}", fix="nothing: it will be skipped")
    return ok(SUBJECT, found)


def is_finished(position: TrainingPosition, training: TrainingConfig) -> bool:
    """Whether no step is left; a target that was reached is not looked at."""
    limit = training.max_steps
    return position.epoch >= training.epochs or (limit is not None and position.step >= limit)
