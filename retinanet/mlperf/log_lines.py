"""Lines of a `mlperf.log`, and what a run that goes on keeps of them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlperf_logging.mllog import constants

from retinanet.output_files import write_whole
from retinanet.regular_files import read_text

BEGIN = ":::MLLOG "
MOST_BYTES = 256_000_000
"""Of a log: some have the output of all ranks in them."""
LATEST_MS = 2**53
"""A time beyond is none."""
LARGEST = 1e15
"""A number beyond counts nothing in a log."""
OF_EVALUATIONS = (constants.EVAL_START, constants.EVAL_ACCURACY, constants.EVAL_STOP)


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One event."""

    text: str
    """The whole line, without its end."""
    key: str
    value: Any
    time_ms: int
    """Milliseconds since 1970."""
    metadata: dict[str, Any]

    @property
    def said(self) -> str:
        """Key and value, which tell whether two lines say the same."""
        return json.dumps([self.key, self.value])


def log_lines(texts: Iterable[str]) -> list[LogLine]:
    """The events among lines of text; what is none, such as a line cut short, is left out."""
    return [line for text in texts if (line := event_of(text)) is not None]


def event_of(text: str) -> LogLine | None:
    """What a line says; None where it is no event.

    Launchers put a rank before each line (`0: :::MLLOG …`), which is left out.
    """
    text = text[max(text.rfind(BEGIN), 0) :]
    try:
        fields = json.loads(text.removeprefix(BEGIN))
        key, value, time_ms = fields["key"], fields["value"], fields["time_ms"]
        metadata = fields["metadata"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    known = isinstance(key, str) and isinstance(metadata, dict)
    if not known or type(time_ms) is not int or not 0 <= time_ms < LATEST_MS:
        return None
    return LogLine(text=text, key=key, value=value, time_ms=time_ms, metadata=metadata)


def damaged_lines(texts: Iterable[str]) -> list[int]:
    """Return the numbers, from 1, of lines that begin as events and are none: most were cut."""
    return [
        number
        for number, text in enumerate(texts, start=1)
        if BEGIN in text and event_of(text) is None
    ]


def number_of(value: object) -> float | None:
    """A number that is finite; None for anything else."""
    if type(value) not in (int, float):
        return None
    return value if abs(value) <= LARGEST else None  # type: ignore[arg-type,return-value]


def lines_of(file: Path) -> list[LogLine]:
    """The events in a file.

    Raises:
        OSError: It cannot be read.
    """
    return log_lines(texts_of(file))


def texts_of(file: Path) -> list[str]:
    """Return the lines of a file.

    Raises:
        OSError: It cannot be read.
    """
    return read_text(file, most_bytes=MOST_BYTES, errors="replace").splitlines()


def continued(file: Path, *, step: int, is_evaluated: bool) -> list[LogLine]:
    """Take out of a file what a run that goes on after `step` says once more; give what is left.

    That is its end, all that came after `step`, the epoch that begins there, and an evaluation that
    has to be repeated.

    Raises:
        InputError: It cannot be written.
    """
    if not file.exists():
        return []
    last = dict.fromkeys(OF_EVALUATIONS, step if is_evaluated else step - 1)
    last[constants.EPOCH_START] = step - 1
    lines = lines_of(file)
    kept = [
        line
        for line in lines
        if line.key != constants.RUN_STOP
        and (number_of(line.metadata.get("step_num")) or 0) <= last.get(line.key, step)
    ]
    write_whole(file, "".join(f"{line.text}\n" for line in kept))
    return kept


def not_yet_said(texts: Sequence[str], *, before: Sequence[LogLine]) -> list[str]:
    """Of lines at a run's start those that say something new: after an earlier start, nothing but
    settings that are no longer what they were.
    """
    said = {line.said for line in before}
    return [line.text for line in log_lines(texts) if line.said not in said]
