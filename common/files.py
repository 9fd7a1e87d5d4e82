"""Files that commands read and write.

Written files are whole or not there, nothing is overwritten unasked, and nothing is written through
a link, which a folder from somebody else may hold. Files that users name are read with a limit and
without waiting: opening a FIFO waits for a writer, and a device such as /dev/zero has no end.
Regular files are accepted and, where they are read once from beginning to end, the pipe of a
shell's `<(command)`. In CSV no cell is a formula for a spreadsheet.
"""

import csv
import errno
import glob
import io
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from io import BufferedReader, BufferedWriter
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from common.errors import InputError, printable


def require_free(files: Sequence[Path], *, overwrite: bool, advice: str) -> None:
    """Refuse to replace files, before the work; `advice` ends the message about one that exists.

    Raises:
        InputError: Names the first that exists, is a link or a folder, is given twice, or cannot be
            written.
    """
    seen = set()
    for file in files:
        if file in seen:
            raise InputError(f"{file}: two outputs have this name; give them different names")
        seen.add(file)
        if file.is_symlink():
            raise InputError(f"{file}: is a link, which is not written through; give another name")
        if file.is_dir():
            raise InputError(f"{file}: is a folder; give a file name")
        with or_refused(file):
            require_replaceable(file)
        if file.exists() and not overwrite:
            raise InputError(f"{file}: exists; {advice}")
    for file in {file.parent: file for file in reversed(files)}.values():
        require_writable_later(file)


def require_free_outputs(files: Sequence[Path], *, overwrite: bool) -> None:
    """Refuse to replace outputs of a command in its `--out`, unless `--overwrite` is given."""
    require_free(files, overwrite=overwrite, advice="give --overwrite or another --out")


PARTIAL = ".partial"
"""The end of a temporary name, so that no reader takes the file for one of its format."""


def temporary_name(target: Path) -> Path:
    """Return a name beside a file or folder that nobody can predict, such as `.a.json.….partial`.

    A folder from somebody else may hold links; with a predictable name, one of them would be
    written through. It is in the same folder, since a rename is atomic in one file system only.
    """
    return target.with_name(f"{temporary_stem(target)}{secrets.token_hex(8)}{PARTIAL}")


def temporary_stem(target: Path) -> str:
    """Return how temporary names of a target begin."""
    # A part of the name is enough to recognize it, and leaves room below the limit of 255 bytes.
    return f".{target.name[:40]}."


def create_file(file: Path, *, mode: int = 0o666) -> BufferedWriter:
    """Return a stream to a new file; raise OSError if the name exists, also as a link.

    A library that writes by name gets `stream.name`.
    """
    # A stream of `os.fdopen` would have a number as its name.
    return open(file, "wb", opener=lambda name, _: new_descriptor(Path(name), mode=mode))


def create_anew(file: Path) -> BufferedWriter:
    """Return a stream as `create_file` does; an earlier file or link of this name is removed."""
    remove_earlier_file(file)
    return create_file(file)


def remove_earlier_file(file: Path) -> None:
    """Remove a file or link, if it is there; raise OSError for a device, FIFO or socket."""
    require_replaceable(file)
    file.unlink(missing_ok=True)


def require_replaceable(file: Path) -> None:
    """Raise OSError if a device, FIFO or socket has this name: root could replace /dev/null."""
    mode = file.lstat().st_mode if os.path.lexists(file) else stat.S_IFREG
    if stat.S_IFMT(mode) not in (stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR):
        raise OSError(errno.EINVAL, NOT_REGULAR, str(file))


def new_descriptor(file: Path, flags: int = 0, *, mode: int = 0o666) -> int:
    """Return a descriptor to write a new file; raise OSError if the name exists, also as a link."""
    flags |= os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(file, flags, mode)


def updated_descriptor(file: Path, flags: int = 0) -> int:
    """Return a descriptor to read and write a regular file as it is; it is made if missing.

    Raises OSError for a link and for anything else that is not a regular file.
    """
    flags |= os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(file, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and file.is_symlink():
            raise OSError(errno.ELOOP, "it is a link", str(file)) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, NOT_REGULAR, str(file))
    return descriptor


def require_writable(files: Sequence[Path]) -> None:
    """Check before the work that `write_atomically` can write files; makes their folders.

    Raises:
        InputError: Names the first that cannot be written, and the reason.
    """
    for file in files:
        with or_refused(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=file.parent):  # leaves nothing, also after Ctrl-C
                pass


def require_writable_later(file: Path) -> None:
    """Check like `require_writable`, without making the folders of a file."""
    while not os.path.lexists(file.parent):
        file = file.parent  # the first missing folder is what must be made
    require_writable([file])


def write_atomically(file: Path, content: str | bytes) -> None:
    """Write a file under a temporary name, then rename it; text in UTF-8.

    Half of a surrogate pair, which UTF-8 does not have, is written as JSON escapes it.
    Raises InputError if the file cannot be written there.
    """
    write_parts(file, [encoded(content)])


def encoded(content: str | bytes) -> bytes:
    """Return content as bytes; see `write_atomically`."""
    return content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")


def write_parts(file: Path, parts: Iterable[bytes]) -> None:
    """Write a file like `write_atomically`, in parts that need not be in memory at once."""
    with in_place_when_whole(file) as stream:
        stream.writelines(parts)


def copy_atomically(
    source: Path, target: Path, *, open_source: Callable[[Path], BinaryIO] | None = None
) -> None:
    """Copy a regular file, or what `open_source` opens, like `write_atomically`.

    Raises InputError that names both if the source cannot be read or the target not be written.
    """
    problem, opened = f"cannot be copied from {source}", open_source or open_regular
    with in_place_when_whole(target, problem, flush=False) as stream, opened(source) as old:
        shutil.copyfileobj(old, stream, 1 << 20)


@contextmanager
def in_place_when_whole(
    file: Path, problem: str = "cannot be written", *, flush: bool = True
) -> Iterator[BufferedWriter]:
    """Make a file's folder, and write the file as `replacing` does.

    Raises InputError that begins with the file and the `problem` for an error of the system.
    """
    with or_refused(file, problem):
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file, flush=flush) as stream:
            yield stream


@contextmanager
def or_refused(
    file: Path | str, problem: str = "cannot be written", *, advice: str = ""
) -> Iterator[None]:
    """Turn an error of the system into an InputError: the file, the problem, and the `advice`."""
    try:
        yield
    except OSError as error:
        fix = f"; {advice}" if advice else ""
        raise InputError(f"{file}: {problem}: {error.strerror or error}{fix}") from error


def or_unreadable(file: Path | str, *, advice: str = "") -> AbstractContextManager[None]:
    """Turn an error of the system into an InputError: the file `cannot be read`, as above."""
    return or_refused(file, "cannot be read", advice=advice)


@contextmanager
def replacing(file: Path, *, flush: bool = True) -> Iterator[BufferedWriter]:
    """Yield a stream to a new file, which takes the file's place at the end, complete and on disk.

    If the context fails, also by Ctrl-C or by an error of what makes the content, nothing remains.
    Many files of a data set, each of which can be made again, are written without `flush`: a disk
    needs 10 ms for each. Raises OSError.
    """
    temporary = temporary_name(file)
    try:
        with create_file(temporary) as stream:
            yield stream
        put_in_place(temporary, file, flush=flush)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)  # a full disk needs the room
        raise


def put_in_place(whole: Path, target: Path, *, flush: bool = True) -> None:
    """Rename a file, or a folder of files, to `target` beside it, after its content is on the disk.

    A link of the name `target` is replaced; what it leads to stays. Raises OSError.
    """
    # All before the new name: after a power failure a name without content would look complete.
    if flush:
        flush_content(whole)
    require_replaceable(target)
    whole.replace(target)
    if flush:
        flush_to_disk(target.parent)


@contextmanager
def new_folder_beside(target: Path) -> Iterator[Path]:
    """Make an empty folder, from which files or which itself can be renamed to `target`.

    What is left of it at the end is removed. Raises OSError.
    """
    folder = temporary_name(target)
    try:
        folder.mkdir(parents=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def flush_content(whole: Path) -> None:
    """Wait until a file, or a folder's files and then their names, are on the disk."""
    for file in [*whole.iterdir(), whole] if whole.is_dir() else [whole]:
        flush_to_disk(file)


def flush_to_disk(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on the disk. Raises OSError."""
    # A folder can be opened only for reading, which is sufficient for `fsync`. It may be a link.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def removed_on_failure(outputs: Sequence[Path]) -> AbstractContextManager[None]:
    """Return a context that removes outputs (files, folders) if it ends with an error or Ctrl-C.

    Those that exist at this call stay, also if the context is entered later; of the folders they
    are in, those that did not exist are removed if they are empty.
    """
    new = [output for output in outputs if not os.path.lexists(output)]
    parents = {parent for output in outputs for parent in output.parents}
    # The innermost first: a folder can be removed once it is empty.
    new_folders = sorted((p for p in parents if not p.exists()), key=lambda p: -len(p.parts))

    @contextmanager
    def removed() -> Iterator[None]:
        try:
            yield
        except BaseException:
            for output in new:
                # A signal just after a context began leaves its file to the garbage collector.
                unfinished = output.parent.glob(f"{glob.escape(temporary_stem(output))}*{PARTIAL}")
                for path in (output, *unfinished):
                    if path.is_dir():
                        shutil.rmtree(path, ignore_errors=True)
                    else:
                        path.unlink(missing_ok=True)
            for parent in new_folders:
                with suppress(OSError):
                    parent.rmdir()
            raise

    return removed()


def write_json(file: Path, content: object) -> None:
    """Write JSON like `write_atomically`, indented by a space; texts of any language unescaped."""
    write_atomically(file, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


NOT_REGULAR = "it is not a regular file"
MOST_BYTES = 64_000_000  # of a file that is read whole, unless its reader sets a limit of its own


def open_regular(file: Path) -> BufferedReader:
    """Open a regular file to read bytes; raise OSError if it cannot be opened or is none."""
    return os.fdopen(regular_descriptor(file), "rb")


def regular_descriptor(file: Path, *, pipes: bool = False) -> int:
    """Return a descriptor for `open_regular` or, with `pipes`, of a pipe without a name."""
    # Without O_NONBLOCK opening a FIFO would wait for a writer before anything can be checked.
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    # A pipe that no file system has a name for has its writer already.
    if pipes and str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("pipe:"):
        os.set_blocking(descriptor, True)
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    raise OSError(errno.EINVAL, NOT_REGULAR, str(file))


def read_bytes(file: Path, *, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file or unnamed pipe; OSError if neither or too large."""
    with os.fdopen(regular_descriptor(file, pipes=True), "rb") as stream:
        # Files of /proc have a size of 0, whatever they hold: the limit is for the bytes read.
        content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes:,} bytes", str(file))
    return content


def read_text(file: Path, *, most_bytes: int = MOST_BYTES, errors: str = "strict") -> str:
    """Return the content of a file as UTF-8 text; `errors` as in `bytes.decode`.

    A byte order mark, as editors on Windows write it, is not part of the text.
    """
    return read_bytes(file, most_bytes=most_bytes).decode("utf-8-sig", errors)


def read_json_object(file: Path, *, advice: str) -> dict[str, Any]:
    """Return the JSON object of a file; raise InputError, with `advice`, if there is none."""
    with or_unreadable(file, advice=advice):
        text = read_bytes(file)
    try:
        content = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # also bytes that are no text
        raise InputError(f"{file}: is not JSON; {advice}") from error
    if not isinstance(content, dict):
        raise InputError(f"{file}: is not a JSON object; {advice}")
    return content


FORMULA = re.compile(r"\s*[=+\-@]")
"""The beginning of a cell that spreadsheets calculate: anybody can write names into logs."""
ROWS_AT_A_TIME = 1000
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def as_csv(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table with its header as CSV; None is an empty cell."""
    return b"".join(csv_parts(columns, rows)).decode()


def csv_parts(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[bytes]:
    """Yield a table as CSV in UTF-8, some rows at a time, for tables larger than memory."""
    lines = chain([columns], rows)
    while some := list(islice(lines, ROWS_AT_A_TIME)):
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(map(harmless, row) for row in some)
        yield text.getvalue().encode()


def harmless(cell: object) -> object:
    """Return a printable cell; an apostrophe keeps spreadsheets from calculating a formula."""
    if not isinstance(cell, str):
        return cell
    shown = printable(cell)
    return f"'{shown}" if FORMULA.match(shown) and not NUMBER.fullmatch(shown) else shown


class LineFile:
    """A file of complete lines; a line that could not be written is retried with the next one."""

    def __init__(self, file: Path) -> None:
        """Open the file to append to it; raise OSError for a link, as `updated_descriptor` does."""
        # No buffered file: it would keep a line that could not be written, and write it again
        # later.
        self._descriptor = updated_descriptor(file, os.O_APPEND)
        self._waiting: deque[bytes] = deque()

    def write(self, line: str) -> None:
        """Append a line after pending lines; raise OSError if it remains pending."""
        self._waiting.append(line.encode("utf-8", "backslashreplace") + b"\n")
        while self._waiting:
            begin, written = os.fstat(self._descriptor).st_size, 0
            try:
                # On an almost full disk `write` stores a part of the line, and only the next call
                # fails.
                while written < len(self._waiting[0]):
                    written += os.write(self._descriptor, self._waiting[0][written:])
            except OSError:
                os.ftruncate(self._descriptor, begin)  # removes a part of a line
                raise
            self._waiting.popleft()

    def close(self) -> None:
        """Close the file; lines that could not be written are dropped."""
        os.close(self._descriptor)


MOST_LINES = 1_000_000_000  # [B] of a run's metrics, which grow by a line each step


def read_json_lines(file: Path) -> list[dict[str, Any]]:
    """Return a file's JSON objects, one per line, until one that is none.

    A crash may have truncated the last line. Raises InputError if the file cannot be read.
    """
    try:
        with or_unreadable(file):
            text = read_text(file, most_bytes=MOST_LINES) if os.path.lexists(file) else ""
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: cannot be read: it is not UTF-8 text") from error
    records: list[dict[str, Any]] = []
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(record, dict):
            break
        records.append(record)
    return records
