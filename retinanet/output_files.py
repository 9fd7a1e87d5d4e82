"""Files that commands write: nothing is overwritten unasked, and nothing is left half written."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from retinanet.errors import InputError


def require_free(files: Sequence[Path], *, overwrite: bool, advice: str) -> None:
    """Refuse to replace files, before the work that fills them.

    Args:
        files: What will be written.
        overwrite: Whether files that exist may be replaced.
        advice: What the user can do about a file that exists.

    Raises:
        InputError: Names the first that exists, is a folder, or is asked for twice.
    """
    seen = set()
    for file in files:
        if file in seen:
            raise InputError(f"{file}: two outputs would have this name; give them separately")
        seen.add(file)
        if file.is_dir():
            raise InputError(f"{file}: is a folder; give the name of a file")
        if file.exists() and not overwrite:
            raise InputError(f"{file}: exists; {advice}")


def require_free_outputs(files: Sequence[Path], *, overwrite: bool) -> None:
    """`require_free` for what a command writes to its `--out`, and replaces with `--overwrite`."""
    require_free(files, overwrite=overwrite, advice="give --overwrite or another --out")


def require_free_json(json_file: Path | None, *, overwrite: bool = False) -> None:
    """`require_free` for the file that `--json` names, if it was given."""
    if json_file is not None:
        advice = "give --json another file"
        require_free([json_file], overwrite=overwrite, advice=advice)


def write_whole(file: Path, content: str | bytes) -> None:
    """Write a file under a temporary name, then give it its own; text in UTF-8.

    Half of a surrogate pair, which UTF-8 does not have, is written as JSON escapes it.

    Raises:
        InputError: It cannot be written there.
    """
    if isinstance(content, str):
        content = content.encode("utf-8", "backslashreplace")
    write_parts(file, [content])


def write_parts(file: Path, parts: Iterable[bytes]) -> None:
    """`write_whole` of what is too large to be in memory at once.

    Raises:
        InputError: It cannot be written there.
    """
    partial = file.with_name(f".{file.name}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as stream:
            stream.writelines(parts)
        partial.replace(file)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)  # a full disk needs the room
        raise InputError(f"{file}: cannot be written: {error.strerror}") from error
