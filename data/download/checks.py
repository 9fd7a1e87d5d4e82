"""Is what has arrived the file that was asked for? Each check raises AttemptError if not."""

import csv
import io
import zipfile
import zlib
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Protocol

from PIL import Image

from data.decoding.decode import DAMAGE
from data.decoding.jpeg_decoders import has_end_of_image
from data.download.failures import AttemptError

PNG_END = b"IEND\xaeB`\x82"

LONGEST_LINE = 4096


class Check(Protocol):
    """Looks at a file that has arrived."""

    def __call__(self, path: Path, /) -> None:
        """Raises AttemptError if it will not do."""


def check_image(path: Path) -> None:
    """A JPEG or PNG that decodes to its very end, whatever the server calls it."""
    content = path.read_bytes()
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
            # An eighth of the size reads every byte of a JPEG and costs half of the time.
            image.draft(image.mode, (1, 1))
            image.load()
    except Image.UnidentifiedImageError as error:
        raise AttemptError(f"what came is no image: {shown(content)}") from error
    except (*DAMAGE, Image.DecompressionBombError) as error:
        raise AttemptError(f"damaged image: {' '.join(str(error).split())}") from error
    # Pillow makes do without the end marker if all pixels are there; other decoders do not.
    if not has_end(content):
        raise AttemptError("damaged image: its end is missing")


def has_end(content: bytes) -> bool:
    """Whether the image's end marker follows its pixels; some files have padding after it."""
    if content.startswith(b"\x89PNG"):
        return PNG_END in content
    return has_end_of_image(content)


def zip_with(members: Iterable[str], *, limit: int) -> Check:
    """A check for a zip that has these members, with the checksums that it gives for them.

    `limit` is the most bytes that a member can have, inflated.
    """
    return partial(_check_zip, members=tuple(members), limit=limit)


def _check_zip(path: Path, *, members: tuple[str, ...], limit: int) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            for name in members:
                # What is read ends at this size, whatever the compressed bytes would give.
                size = archive.getinfo(name).file_size
                if size > limit:
                    raise AttemptError(
                        f"not the zip asked for: {name} has {size:,} bytes inflated, more than "
                        f"the {limit:,} expected"
                    )
                with archive.open(name) as member:
                    while member.read(1 << 20):
                        pass
    except KeyError as error:
        raise AttemptError(f"not the zip asked for: {error.args[0]}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        raise AttemptError(f"damaged zip: {error}") from error


def csv_with(columns: Iterable[str]) -> Check:
    """A check for a CSV file whose header has these columns and whose last line is whole."""
    return partial(_check_csv, columns=tuple(columns))


def _check_csv(path: Path, *, columns: tuple[str, ...]) -> None:
    first, last = end_lines(path)
    missing = [name for name in columns if name not in first]
    if missing:
        raise AttemptError(f"not the CSV asked for: no column {missing[0]} in {first[:4]}")
    if len(last) != len(first):
        raise AttemptError("the CSV ends in the middle of a line")


def check_class_descriptions(path: Path) -> None:
    """OpenImages' labels and names of classes: `/m/011k07,Tortoise`, with or without a header."""
    first, last = end_lines(path)
    if len(first) != 2 or not (first[0].startswith("/") or first[0] == "LabelName"):
        raise AttemptError(f"not the CSV asked for: it begins with {first[:4]}")
    if len(last) != 2:
        raise AttemptError("the CSV ends in the middle of a line")


def end_lines(path: Path) -> tuple[list[str], list[str]]:
    """The fields of a CSV file's first and last line; the file may be of gigabytes."""
    with path.open("rb") as file:
        first = file.readline(LONGEST_LINE)
        file.seek(-min(LONGEST_LINE, path.stat().st_size), io.SEEK_END)
        last = file.read().splitlines()[-1:]
    lines = [line.decode("utf-8-sig", "replace") for line in (first, *last)]
    fields = list(csv.reader(lines)) or [[]]
    return fields[0], fields[-1]


def shown(content: bytes) -> str:
    """The beginning of some bytes, for a message."""
    return repr(content[:40].decode("ascii", "replace").strip())
