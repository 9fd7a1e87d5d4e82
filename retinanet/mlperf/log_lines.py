"""Lines of a `mlperf.log`, and what a run that goes on keeps of them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlperf_logging.mllog import constants

from retinanet.output_files import write_whole

BEGIN = ":::MLLOG "
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
    """The events among lines of text; a line cut short by a crash is left out."""
    lines = []
    for text in texts:
        try:
            fields = json.loads(text.removeprefix(BEGIN))
            lines.append(
                LogLine(
                    text=text,
                    key=fields["key"],
                    value=fields["value"],
                    time_ms=fields["time_ms"],
                    metadata=fields["metadata"],
                )
            )
        except (ValueError, KeyError, TypeError):
            continue
    return lines


def lines_of(file: Path) -> list[LogLine]:
    """The events in a file.

    Raises:
        OSError: It cannot be read.
    """
    return log_lines(file.read_text(encoding="utf-8", errors="replace").splitlines())


def continued(file: Path, *, step: int, is_evaluated: bool) -> list[LogLine]:
    """Take out of a file what a run that goes on after `step` says once more; give what is left.

    That is its end, all that came after `step`, and an evaluation there that has to be repeated.

    Raises:
        InputError: It cannot be written.
    """
    if not file.exists():
        return []
    last = dict.fromkeys(OF_EVALUATIONS, step if is_evaluated else step - 1)
    lines = lines_of(file)
    kept = [
        line
        for line in lines
        if line.key != constants.RUN_STOP
        and line.metadata.get("step_num", 0) <= last.get(line.key, step)
    ]
    write_whole(file, "".join(f"{line.text}\n" for line in kept))
    return kept


def not_yet_said(texts: Sequence[str], *, before: Sequence[LogLine]) -> list[str]:
    """Of lines at a run's start those that say something new: after an earlier start, nothing but
    settings that are no longer what they were.
    """
    said = {line.said for line in before}
    return [line.text for line in log_lines(texts) if line.said not in said]
