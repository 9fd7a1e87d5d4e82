"""Writing checkpoints: a folder gets its name once it is whole and on the disk."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from retinanet.training.checkpoint.finding import BEST, LAST, name_of, newest_first
from retinanet.training.checkpoint.reading import file_digest
from retinanet.training.checkpoint.state import STATE_FILE, Part, State, state_text

PARTIAL = ".partial"
REMOVED = ".removed"
"""A folder's name before it is whole, and while it is being removed: a dot before, this behind."""


@dataclass(frozen=True)
class Contents:
    """What a checkpoint is made of. The tensors belong to it alone: training goes on meanwhile."""

    parts: Mapping[str, Mapping[str, Tensor]]
    """Tensors by file and name."""
    state: State
    """Without the parts, which are known once they are written."""


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies as safetensors takes them."""
    return {
        name: one.detach().clone(memory_format=torch.contiguous_format)
        for name, one in tensors.items()
    }


def write_checkpoint(final: Path, contents: Contents, *, texts: Mapping[str, str] = {}) -> None:
    """Write a checkpoint's folder.

    Args:
        final: Its name, in a folder that exists; replaced if it is there.
        contents: What goes into it.
        texts: Other files, by name.

    Raises:
        OSError: It cannot be written; nothing is left of it, and what was there stays.
    """
    partial = final.with_name(f".{final.name}{PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        parts = {}
        for name, tensors in contents.parts.items():
            file = partial / name
            save(tensors, file)
            parts[name] = Part(sha256=file_digest(file), bytes=file.stat().st_size)
        written = {STATE_FILE: state_text(replace(contents.state, parts=parts)), **texts}
        for name, text in written.items():
            (partial / name).write_text(text, encoding="utf-8", errors="backslashreplace")
        for path in [*partial.iterdir(), partial]:
            flush_to_disk(path)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    remove(final)
    partial.rename(final)
    flush_to_disk(final.parent)


def save(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Write a safetensors file.

    Raises:
        OSError: It cannot be written.
    """
    try:
        save_file(dict(tensors), file, metadata={"format": "pt"})
    except SafetensorError as error:  # which is what a full disk is told as
        raise OSError(None, str(error)) from error


def flush_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk: then no crash undoes them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rewrite_state(folder: Path, state: State) -> None:
    """Replace what a checkpoint says of itself, at once; its tensors stay.

    Raises:
        OSError: It cannot be written; what was there stays.
    """
    partial = folder / f".{STATE_FILE}{PARTIAL}"
    try:
        partial.write_text(state_text(state), encoding="utf-8")
        flush_to_disk(partial)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    partial.replace(folder / STATE_FILE)
    flush_to_disk(folder)


def point_to(link: Path, folder: Path) -> None:
    """Make `link` name `folder` beside it, at once."""
    partial = link.with_name(f".{link.name}{PARTIAL}")
    partial.unlink(missing_ok=True)
    partial.symlink_to(folder.name)
    partial.replace(link)


def remove(folder: Path) -> None:
    """Remove a checkpoint: first its name, so that none is ever half there."""
    if not folder.exists():
        return
    doomed = folder.with_name(f".{folder.name}{REMOVED}")
    shutil.rmtree(doomed, ignore_errors=True)
    folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def remove_old(checkpoints: Path, *, keep: int) -> None:
    """Keep the newest `keep` checkpoints, and those that `best` and `last` point to."""
    linked = {(checkpoints / name).resolve() for name in (BEST, LAST)}
    for folder in newest_first(checkpoints)[keep:]:
        if folder.resolve() not in linked:
            remove(folder)


def remove_unfinished(checkpoints: Path) -> None:
    """Remove what writers and removers that were killed have left."""
    for pattern in (f".*{PARTIAL}", f".*{REMOVED}"):
        for path in checkpoints.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def checkpoint_folder(checkpoints: Path, step: int) -> Path:
    """Where the checkpoint after so many steps is."""
    return checkpoints / name_of(step)
