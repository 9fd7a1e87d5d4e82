"""Packed folders of images: tars, and an index of where each image lies in them.

A folder that holds an index (`images.index`) stands for the images that `retinanet data pack` took:
`FOLDER/train/a.jpg` is read from `FOLDER/images-00000.tar`. Everything that reads or lists images
does it by the functions below, so that it need not know which kind of folder it has.

An image is read by one call, with the tar's own header in front of it. People exchange such
folders: the index may be anybody's, but an image has the name and the size of its header.
"""

import errno
import io
import json
import os
import resource
import tarfile
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from shlex import quote
from typing import BinaryIO, Unpack

import numpy as np

from common.errors import InputError
from common.files import open_regular, read_bytes, regular_descriptor
from common.walk import LeftOut, Options, Reach, walk_files
from data.annotations import leaves_folder, offsets_of, shown
from data.index import map_column

INDEX = "images.index"
DESCRIPTION = "pack.json"
FORMAT = 1  # another number for every change of the files
COLUMNS = ("file_names", "order", "offsets", "sizes")
"""Names, offsets and sizes [bytes] of images are in the order of the tars; `order` sorts names."""
MOST_BYTES = 1_500_000_000
"""Of an image file: more than `decoding.MAX_PIXELS` need with 8 bytes each, uncompressed."""
BLOCK = tarfile.BLOCKSIZE


def tar_name(number: int) -> str:
    """Return the name of a tar in its folder."""
    return f"images-{number:05}.tar"


def open_image_file(path: Path) -> BinaryIO:
    """Open an image file, also one from outside: a regular one of at most `MOST_BYTES`, or packed.

    Raises OSError, at once: a pipe might never begin, and a device never end. Raises InputError if
    the image is packed, and the index is damaged.
    """
    path = path.absolute()
    if pack := pack_of(path.parent):
        return io.BytesIO(pack.read(pack.name_of(path)))
    file = open_regular(path)
    if os.fstat(file.fileno()).st_size > MOST_BYTES:
        file.close()
        raise OSError(errno.EFBIG, f"it is larger than {MOST_BYTES:,} bytes", str(path))
    return file


def is_image_file(path: Path) -> bool:
    """Return whether there is an image file; raise InputError for a damaged index."""
    path = path.absolute()
    pack = pack_of(path.parent)
    if pack is None:
        return os.path.isfile(path)  # noqa: PTH113 - False where the name is too long
    return pack.row_of(pack.name_of(path)) is not None


def list_images(
    folder: Path, reach: Reach, left_out: LeftOut, **options: Unpack[Options]
) -> Iterator[str]:
    """Yield the images of a folder: the packed ones, or those of `walk_files`.

    Raises InputError for a pack whose index is damaged, or whose files `reach` does not cover.
    """
    pack = pack_of(folder.absolute())
    if pack is None:
        yield from walk_files(folder, reach, left_out, **options)
        return
    for name in (INDEX, *map(tar_name, range(len(pack.sizes_of_tars)))):
        reach.require(pack.folder / name)
    for row in pack.order.tolist():
        name = pack.names[row]
        if leaves_folder(name):
            raise InputError(f"{pack.index}: file_names: {shown(name)}: is outside of {folder}")
        if name.lower().endswith(options.get("suffixes", ("",))):
            yield name


def missing_fix(path: Path) -> str:
    """Return what to do about an image file that is not there."""
    folder = next(parent for parent in path.absolute().parents if parent.is_dir())
    if (folder / tar_name(0)).is_file() and not (folder / INDEX).exists():
        command = f"retinanet data pack IMAGES --out {quote(str(folder))}"
        return f"packing was interrupted: run `{command}` again"
    return "check the folder of images"


@cache  # an index is opened once in a process; also where there is none, files are read often
def pack_of(folder: Path) -> "Pack | None":
    """Return the packed folder that this one is, or would be below; None for others.

    Raises InputError if the index is damaged.
    """
    if os.path.isdir(folder / INDEX):  # noqa: PTH112 - False where the name is too long
        return Pack(folder)
    # Folders of packed images exist in tars only.
    return None if os.path.isdir(folder) else pack_of(folder.parent)  # noqa: PTH112


class Tar:
    """An open tar. It is closed when it is dropped, by the last thread that reads it."""

    def __init__(self, file: Path, *, size: int) -> None:
        """Open the file; raise OSError if it has another size [bytes] than the index says."""
        self.descriptor = -1
        try:
            self.descriptor = regular_descriptor(file)
        except FileNotFoundError as error:  # which would say that the image is missing
            raise OSError(errno.EIO, f"{file.name} is missing; copy it again", str(file)) from error
        if (found := os.fstat(self.descriptor).st_size) != size:
            text = f"{file.name} has {found:,} bytes, {INDEX} says {size:,}; copy it again"
            raise OSError(errno.EIO, text, str(file))

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the file; fewer at its end."""
        # Not from a place that moves: after a fork, processes share the place of a descriptor.
        content = os.pread(self.descriptor, size, offset)
        while 0 < len(content) < size:
            more = os.pread(self.descriptor, size - len(content), offset + len(content))
            if not more:
                break
            content += more
        return content


class Pack:
    """The index of a packed folder, and its tars, which are opened when they are first read."""

    def __init__(self, folder: Path) -> None:
        """Map the index into memory; raise InputError if it is damaged."""
        self.folder, self.index = folder, folder / INDEX
        try:
            tars = read_tars(self.index)
            columns = {name: map_column(self.index, name) for name in COLUMNS}
            self.starts = offsets_of(np.array([count for count, _ in tars], dtype=np.int64))
            self.sizes_of_tars = [size for _, size in tars]
            self.names, self.order = columns["file_names"], columns["order"]
            self.offsets, self.sizes = columns["offsets"], columns["sizes"]
            for name, column in columns.items():
                if len(column) != self.starts[-1]:
                    raise ValueError(  # noqa: TRY301
                        f"{name} has {len(column)} rows, {DESCRIPTION} says {self.starts[-1]}"
                    )
            self._check_places()
        except (OSError, ValueError, EOFError, OverflowError) as error:
            raise InputError(
                f"{self.index}: damaged index ({error}); copy the folder again, or pack again"
            ) from error
        # Least recently used ones are closed where the system allows fewer files than tars.
        self._open = lru_cache(room_for_files(len(tars)))(self._open_tar)

    def _check_places(self) -> None:
        """Raise ValueError for an image that is not in its tar, or overlaps the one before."""
        order, rows = self.order, len(self.order)
        if rows and not 0 <= order.min() <= order.max() < rows:
            raise ValueError(f"order: {order.min()} to {order.max()}, of {rows} rows")
        counts = np.diff(self.starts)
        ends = np.concatenate([[0], self.offsets + self.sizes])[:-1]
        ends[self.starts[:-1][counts > 0]] = 0
        last = np.repeat(np.array(self.sizes_of_tars, dtype=np.int64), counts) - self.sizes
        faults = {
            "sizes": (self.sizes < 0) | (self.sizes > MOST_BYTES),
            "offsets": (self.offsets < ends + BLOCK) | (self.offsets > last),
        }
        for name, are_bad in faults.items():
            if are_bad.any():
                row = int(are_bad.argmax())
                tar = tar_name(self._tar_of(row))
                value = getattr(self, name)[row]
                text = f"{name}[{row}]: {value}, {shown(self.names[row])} does not fit {tar}"
                raise ValueError(text)

    def _tar_of(self, row: int) -> int:
        return bisect_right(self.starts, row) - 1

    def _open_tar(self, number: int) -> Tar:
        return Tar(self.folder / tar_name(number), size=self.sizes_of_tars[number])

    def name_of(self, path: Path) -> str:
        """Return the name of an image by its path, which is below the folder."""
        return path.relative_to(self.folder).as_posix()

    def row_of(self, name: str) -> int | None:
        """Return the row of an image; None if there is none of this name."""
        place = bisect_left(self.order, name, key=self.names.__getitem__)
        row = int(self.order[place]) if place < len(self.order) else -1
        return row if row >= 0 and self.names[row] == name else None

    def read(self, name: str) -> bytes:
        """Return the content of an image; raise OSError if it is not there or cannot be read."""
        row = self.row_of(name)
        if row is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        number, size = self._tar_of(row), int(self.sizes[row])
        content = self._open(number).read(int(self.offsets[row]) - BLOCK, BLOCK + size)
        if not (len(content) == BLOCK + size and is_header(content[:BLOCK], name, size)):
            text = f"{INDEX} does not fit {tar_name(number)}; copy both again, or pack again"
            raise OSError(errno.EIO, text, name)
        return content[BLOCK:]


def read_tars(index: Path) -> list[tuple[int, int]]:
    """Return the number of images and the bytes of each tar; raise ValueError or OSError."""
    try:
        description = json.loads(read_bytes(index / DESCRIPTION))
        if description["format"] != FORMAT:
            raise ValueError(f"format {shown(description['format'])}, {FORMAT} is read")
        tars = [(tar["images"], tar["bytes"]) for tar in description["tars"]]
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{DESCRIPTION} is not that of packed images") from error
    for number, counts in enumerate(tars):
        if set(map(type, counts)) != {int} or min(counts) < 0:
            raise ValueError(f"{DESCRIPTION}: tars[{number}]: {shown(counts)}")
    return tars


def is_header(block: bytes, name: str, size: int) -> bool:
    """Return whether a block of a tar is the header of a file of this name and size [bytes]."""
    try:
        header = tarfile.TarInfo.frombuf(block, "ascii", "replace")
    except tarfile.HeaderError:
        return False
    # Long names, and others than ASCII, are whole in a record before, and shortened here.
    short = name.encode("ascii", "replace")[: tarfile.LENGTH_NAME].decode()
    return header.isreg() and header.size == size and header.name == short


def room_for_files(count: int) -> int:
    """Return how many of `count` files may stay open, after raising the process's limit for them.

    Linux allows 1,024 by default, and usually more where a process asks for it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    more = count if hard == resource.RLIM_INFINITY else min(count, hard - soft)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft + more, hard))
    return max(1, min(count, max(more, soft // 4)))
