"""Pack the images of a data set into tars, for disks that are slow to open files.

  retinanet data pack /data/open-images/train/data --out /data/packed/train
  retinanet data pack photos --annotations train.json validation.json --out packed

Give DIR where the folder of images is given: `data.train_images=/data/packed/train`. Training,
evaluation, `data verify`, `report` and `predict` read the same bytes under the same names, in the
same order, so that a run, also one that is resumed, computes what it computes with the folder.

DIR gets images-00000.tar and so on, with --per-tar images each (plain tar files: `tar xf` unpacks
them), and images.index, which says where each image lies. `sha256sum --check
images.index/SHA256SUMS` in DIR finds damaged tars. Images are packed in the order of the
annotations, or of their names. The folder of images does not change.

Each tar is read back and compared. After Ctrl-C or a kill, run the same command again: finished
tars stay, if they have the same images. The index is written last.
"""

import argparse
import errno
import hashlib
import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from posixpath import normpath
from statistics import fmean
from typing import NamedTuple

import numpy as np
from rich.console import Console

from common.cli import add_command, positive
from common.console import Rate, make_console, print_line, progress
from common.errors import FINISHED, InputError
from common.files import in_place_when_whole, open_regular, or_refused, or_unreadable
from common.locks import locked_folder
from common.options import argument, flag, option
from common.outputs import check_space
from common.walk import LeftOut, Reach, real_path, walk_files
from common.wording import counted
from data.annotations import TextColumn, image_path
from data.decoding import SUFFIXES
from data.index import digest, open_annotations, write_columns
from data.packed import BLOCK, DESCRIPTION, FORMAT, INDEX, open_image_file, pack_of, tar_name
from data.parts import read_ahead

CHECKSUMS = "SHA256SUMS"  # as sha256sum reads it
WORK = "packing"
READERS = 16  # threads: most of them wait for the disk
AT_ONCE = 32  # images that are read while as many are written
SAMPLE = 200  # images from which the size of all is estimated
NO_SUCH_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
UNFINISHED = re.compile(r"\.images(-\d{5,}\.tar|\.index)\.[0-9a-f]{16}\.partial")
"""What a killed process was writing."""


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """The options of `retinanet data pack`."""

    images: Path = argument("folder of images", metavar="IMAGES")
    out: Path = option("folder for the tars and their index", metavar="DIR")
    annotations: list[Path] | None = option(
        "pack the images of these annotations, COCO format (default: all images of the folder)",
        default=None,
        metavar="JSON",
        nargs="+",
    )
    per_tar: int = option("images in a tar", default=1000, parse=positive, metavar="N")
    allow_outside: bool = flag("also pack images to which links lead, outside of their folder")


def add_pack(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `pack`."""
    # The docstring of this module is the text of --help.
    add_command(commands, "pack", about=__doc__ or "", options=PackOptions, run=run_pack)


class Packing(NamedTuple):
    """What is packed, by which threads."""

    images: Path
    reach: Reach
    pool: ThreadPoolExecutor


class Tar(NamedTuple):
    """A finished tar, with its images in their order."""

    names: list[str]
    offsets: list[int]  # of the images' content [bytes]
    sizes: list[int]  # [bytes]
    size: int  # [bytes]
    sha256: str


def run_pack(options: PackOptions) -> int:
    """Pack the images, or those that an interrupted call has left; return the exit code."""
    images, out, console = options.images, options.out, make_console()
    if not images.is_dir():
        raise InputError(f"{images}: is not a folder; give a folder of images")
    if pack_of(images.absolute()):
        raise InputError(f"{images}: is packed; give a folder of image files")
    if real_path(out) == real_path(images):
        raise InputError(f"--out: {out}: is the folder of images; give another one")
    if os.path.lexists(out / INDEX):
        raise InputError(f"--out: {out}: is packed already; give another folder")
    reach = Reach.of(images, allow_outside=options.allow_outside)
    names = names_to_pack(options, reach, console=console)
    parts = [names[at : at + options.per_tar] for at in range(0, len(names), options.per_tar)]
    with locked_folder(out, WORK), ThreadPoolExecutor(READERS) as pool:
        tars = write_tars(parts, Packing(images, reach, pool), out, console=console)
        write_pack_index(out, tars)
    packed = [name for tar in tars for name in tar.names]
    if missing := sorted(set(names) - set(packed)):
        text = f"{counted(len(missing), 'image')} without a file left out, first {missing[0]}"
        print_line(console, f"note: {text}")
    megabytes = sum(tar.size for tar in tars) / 1e6
    counts = f"{counted(len(packed), 'image')}, {counted(len(tars), 'tar')}, {megabytes:,.1f} MB"
    print_line(console, f"{counts}: {out}")
    print_line(console, f"train with data.train_images={out} (or data.validation_images)")
    return FINISHED


def write_tars(
    parts: Sequence[list[str]], packing: Packing, out: Path, *, console: Console
) -> list[Tar]:
    """Write the tars that are not there, each with a part of the images; return all of them."""
    present = tidy(out, tars=len(parts))
    left = [name for number, part in enumerate(parts) if number not in present for name in part]
    require_space(packing, left, out, console=console)
    tars, rate, done, size = list[Tar](), Rate(), 0, 0
    title, total = f"packing {packing.images.name}, images", sum(map(len, parts))
    with progress(console, title, total=total) as advance:

        def added(images: int, content: int) -> None:
            nonlocal done, size
            done, size = done + images, size + content
            advance(done, rate.note(size))

        for number, part in enumerate(parts):
            file, written = out / tar_name(number), None
            if number in present:
                added(len(part), 0)
            else:
                written = write_tar(file, part, packing, added)
            tars.append(check_tar(file, part, packing, written=written))
    return tars


def names_to_pack(options: PackOptions, reach: Reach, *, console: Console) -> list[str]:
    """Return the images of the annotations in their order, or else of the folder, each once."""
    images, left_out = options.images, LeftOut()
    if options.annotations is None:
        walk = walk_files(images, reach, left_out, suffixes=SUFFIXES, without=options.out)
        found = dict.fromkeys(walk)
    else:
        listed = (open_annotations(file, console=console) for file in options.annotations)
        found = {normpath(name): None for each in listed for name in each.file_names}
    others = [f"left out: {counted(left_out.others, 'other file')}"] if left_out.others else []
    for note in (*others, *left_out.notes()):
        print_line(console, f"note: {note}")
    if not found:
        raise InputError(f"{images}: has no {', '.join(SUFFIXES)} files; give another folder")
    return list(found)


def tidy(out: Path, *, tars: int) -> set[int]:
    """Remove what a killed call was writing; return the numbers of finished tars.

    Raises:
        InputError: The folder holds anything else, which would be hidden by the index.
    """
    names, present = {tar_name(number): number for number in range(tars)}, set[int]()
    with or_refused(out, "cannot be read"):
        for entry in list(os.scandir(out)):
            if UNFINISHED.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry)
            elif UNFINISHED.fullmatch(entry.name):
                Path(entry).unlink()
            elif entry.name in names and entry.is_file(follow_symlinks=False):
                present.add(names[entry.name])
            elif entry.name != f".{WORK}.lock":
                text = "is no tar of these images; give another --out, or --per-tar as before"
                raise InputError(f"{entry.path}: {text}")
    return present


def status_of(images: Path, name: str) -> os.stat_result | None:
    """Return the status of an image file; None if there is none."""
    path = image_path(images, name)
    with or_unreadable(path):
        try:
            return path.stat()
        except (OSError, UnicodeEncodeError) as error:
            if isinstance(error, OSError) and error.errno not in NO_SUCH_FILE:
                raise
            return None


def require_space(packing: Packing, left: Sequence[str], out: Path, *, console: Console) -> None:
    """Estimate the size of the images that are left, by a sample, and check that they fit.

    Raises:
        InputError: They do not fit, or none of the sample exists.
    """
    sample = left[:: max(1, len(left) // SAMPLE)]
    statuses = packing.pool.map(partial(status_of, packing.images), sample)
    sizes = [status.st_size + 2 * BLOCK for status in statuses if status is not None]
    if sample and not sizes:
        first = packing.images / sample[0]
        raise InputError(f"{first}: no such image file; give the folder that file_name begins in")
    if sizes:
        mean = round(fmean(sizes))
        check_space(
            out, images=len(left), bytes_each=mean, console=console, fix="or set another --out"
        )


def read_file(packing: Packing, name: str) -> tuple[bytes, int] | None:
    """Return the content of an image file and its time [s]; None if there is none.

    Raises:
        InputError: It cannot be read, is outside of the folder, or changed meanwhile.
    """
    before = status_of(packing.images, name)
    if before is None:
        return None
    path = packing.reach.require(image_path(packing.images, name))
    with or_unreadable(path), open_image_file(path) as file:
        content = file.read()
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (len(content), after.st_mtime_ns):
        raise InputError(f"{path}: changed while it was read; run the same command again")
    return content, int(after.st_mtime)


def write_tar(
    file: Path, names: Sequence[str], packing: Packing, added: Callable[[int, int], None]
) -> str:
    """Write the images that exist to a tar; return the SHA-256 of what was written.

    `added` is called with numbers of images and of bytes.

    Raises:
        InputError: The tar cannot be written, or an image not be read.
    """
    sha = hashlib.sha256()
    reads = read_ahead(names, partial(read_file, packing), packing.pool, batch_size=AT_ONCE)
    with in_place_when_whole(file) as stream:

        def write(content: bytes, *, unit: int = BLOCK) -> None:
            whole = content + bytes(-(stream.tell() + len(content)) % unit)
            stream.write(whole)
            sha.update(whole)

        for batch in reads:
            begin = stream.tell()
            for name, found in batch:
                if found is not None:
                    # The same on each machine: without owner and mode.
                    entry = tarfile.TarInfo(name)
                    content, entry.mtime = found
                    entry.size = len(content)
                    write(entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
                    write(content)
            added(len(batch), stream.tell() - begin)
        write(bytes(2 * BLOCK), unit=tarfile.RECORDSIZE)  # the end
    return sha.hexdigest()


def check_tar(file: Path, names: Sequence[str], packing: Packing, *, written: str | None) -> Tar:
    """Return a tar as the disk has it: one of an earlier call, or with its SHA-256 when `written`.

    Raises:
        InputError: It is damaged, or is not of these images as they are now.
    """
    try:
        with or_unreadable(file), open_regular(file) as stored:
            os.posix_fadvise(stored.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # the page cache's copy
            with tarfile.open(fileobj=stored, mode="r:") as tar:
                entries = tar.getmembers()
            size, sha256 = os.fstat(stored.fileno()).st_size, digest(file)
    except tarfile.TarError as error:
        raise InputError(f"{file}: damaged tar ({error}); remove it, and run again") from error
    if written not in (None, sha256):
        file.unlink()
        raise InputError(f"{file}: the disk returned other bytes than were written; check the disk")
    statuses = packing.pool.map(partial(status_of, packing.images), names)
    expected = [
        (name, status.st_size, int(status.st_mtime))
        for name, status in zip(names, statuses, strict=True)
        if status is not None
    ]
    if expected != [(entry.name, entry.size, int(entry.mtime)) for entry in entries]:
        raise InputError(
            f"{file}: has other images, or they changed since; remove it and run again, or give "
            "another --out or --per-tar"
        )
    offsets, sizes = [entry.offset_data for entry in entries], [entry.size for entry in entries]
    return Tar([entry.name for entry in entries], offsets, sizes, size, sha256)


def write_pack_index(out: Path, tars: Sequence[Tar]) -> None:
    """Write the index of all tars, and their checksums."""
    names = [name for tar in tars for name in tar.names]
    columns = {
        "file_names": TextColumn.of(names),
        "order": np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int32),
        "offsets": np.concatenate([np.array(tar.offsets, dtype=np.int64) for tar in tars]),
        "sizes": np.concatenate([np.array(tar.sizes, dtype=np.int64) for tar in tars]),
    }
    sizes = [{"images": len(tar.names), "bytes": tar.size} for tar in tars]
    sums = (f"{tar.sha256}  {tar_name(number)}\n" for number, tar in enumerate(tars))
    texts = {
        DESCRIPTION: json.dumps({"format": FORMAT, "tars": sizes}) + "\n",
        CHECKSUMS: "".join(sums),
    }
    with or_refused(out / INDEX):
        write_columns(out / INDEX, columns, texts)
