"""Writing a card beside a checkpoint, unless somebody has made it their own."""

import hashlib
from contextlib import suppress
from pathlib import Path

CARD = "MODEL_CARD.md"
MARK = "<!-- Written by the training. SHA-256 of all above: "


def write_card(folder: Path, text: str) -> bool:
    """Write `MODEL_CARD.md` into a checkpoint's folder, in place of one of our own.

    Args:
        folder: Is not made: a checkpoint that was removed meanwhile does not come back.
        text: Ends with an end of line.

    Returns:
        Whether it was written: not where the card that is there was changed by somebody.

    Raises:
        OSError: It cannot be written.
    """
    file = folder / CARD
    if file.exists() and not is_ours(file.read_bytes()):
        return False
    content = text.encode("utf-8", "backslashreplace")
    partial = folder / f".{CARD}.partial"
    try:
        partial.write_bytes(content + f"{MARK}{hashlib.sha256(content).hexdigest()} -->\n".encode())
        partial.replace(file)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    return True


def is_ours(content: bytes) -> bool:
    """Whether a card is as the training has written it."""
    text, mark, rest = content.rpartition(MARK.encode())
    digest = hashlib.sha256(text).hexdigest().encode()
    return bool(mark) and rest.split(b" ")[0] == digest
