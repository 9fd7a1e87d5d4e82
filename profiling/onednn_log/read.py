"""Reading logs, in a stream, without torch."""

import re
import zlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from profiling.onednn_log.header import note_header
from profiling.onednn_log.line import MARKER, Head, Meaning, head_of, meaning_of, milliseconds
from profiling.onednn_log.log import Calls, NotUnderstood, OneDnnLog, Where
from profiling.onednn_log.marks import FACTS, MARK, Mark, parse_facts, parse_mark
from profiling.onednn_log.stream import LONGEST_LINE, lines_of, opened
from retinanet.errors import InputError

SHOWN = 20
"""Lines that were not understood and are kept to be shown."""

MOST_BEFORE_ONEDNN = 1 << 30
"""Bytes, unpacked, after which a file without a line of oneDNN's is not read on."""

REMEMBERED = 4096
"""Lines whose meaning is kept; trainings have hundreds of different ones."""

RANK = re.compile(r"\s*\[(?:\d+,)?(\d+)\](?:<std(?:out|err)>)?:?\s*$|\s*(\d+):\s*$")
"""What mpirun's `-prepend-rank` and `--tag-output`, and srun's `-l`, put before a line."""


def read_logs(
    files: Sequence[Path], *, advance: Callable[[int], None] = lambda _: None
) -> OneDnnLog:
    """Read logs, plain or gzip, as one; `-` is standard input.

    Args:
        files: One or more, as of the ranks of a run.
        advance: Told the bytes of each block that was read; packed bytes where packed.

    Raises:
        InputError: A file cannot be read, or has no execution of a primitive in it.
    """
    log = OneDnnLog()
    for file in files:
        _Reader(log, str(file)).read(file, advance)
    return log


class _Reader:
    """One file on its way into a log."""

    def __init__(self, log: OneDnnLog, name: str) -> None:
        self.log = log
        self.name = name
        self.number = 0
        self.bytes = 0
        self.executed = 0
        self.first_onednn_line = log.onednn_lines
        self.first_not_understood = log.not_understood_count
        self.rank: int | None = None
        """From the facts at the file's beginning; a line's own prefix goes before it."""
        self.where: dict[int | None, Where] = {}
        self.begun: dict[Where, float] = {}
        self.meanings: dict[str, Meaning] = {}
        self.sink: dict[tuple[Where, str], Calls] = {}

    def read(self, file: Path, advance: Callable[[int], None]) -> None:
        self.log.files.append(self.name)
        is_text = True
        try:
            with opened(file) as stream:
                for line in lines_of(stream, lambda size: self.advance(size, advance)):
                    self.number += 1
                    is_text = is_text and "\0" not in line
                    self.line(line)
        except OSError as error:
            raise InputError(f"{self.name}: cannot be read: {error.strerror or error}") from error
        except (EOFError, zlib.error) as error:  # a packed log whose writer was killed
            if not self.number:
                raise InputError(f"{self.name}: is a damaged gzip file: {error}") from error
            self.not_understood("", f"the packed file is damaged from here on: {error}")
        self.log.lines += self.number
        self.require_executions(is_text=is_text)

    def advance(self, size: int, advance: Callable[[int], None]) -> None:
        """Count what was read, and end where it holds nothing of oneDNN's.

        Raises:
            InputError: That is the case.
        """
        self.bytes += size
        if self.bytes > MOST_BEFORE_ONEDNN and self.log.onednn_lines == self.first_onednn_line:
            raise InputError(
                f"{self.name}: no line of oneDNN's in its first {self.bytes >> 30} GiB; "
                "ONEDNN_VERBOSE=1 makes a program write them to its output"
            )
        advance(size)

    def line(self, line: str) -> None:
        if line.startswith("onednn_verbose,") and line.count("_verbose,") == 1:
            self.onednn_line(line, prefix="")  # as almost all are
        elif "_verbose," in line:
            starts = [found.start() for found in MARKER.finditer(line)]
            for start, end in pairwise([*starts, len(line)]):  # none, if another program's
                self.onednn_line(line[start:end], prefix=line[: starts[0]])
        elif line.startswith("profilednn_"):
            self.own_line(line.rstrip())

    def onednn_line(self, line: str, *, prefix: str) -> None:
        self.log.onednn_lines += 1
        if len(line) >= LONGEST_LINE:
            self.not_understood(line, f"longer than {LONGEST_LINE} characters")
            return
        head = head_of(line.rstrip().partition(",")[2])
        try:
            meaning = self.meanings.get(head.text)
            if meaning is None:
                meaning = meaning_of(head)
                if meaning.kind in ("execution", "creation"):
                    make_room(self.meanings)
                    self.meanings[head.text] = meaning
            self.note(meaning, head, rank=rank_of(prefix, self.rank) if prefix else self.rank)
        except ValueError as error:
            self.not_understood(line, str(error))

    def note(self, meaning: Meaning, head: Head, *, rank: int | None) -> None:
        if meaning.kind == "execution":
            self.add(meaning, head.text, milliseconds(head.time), rank)
        elif meaning.kind == "creation":
            assert meaning.problem is not None
            calls = self.log.creations.setdefault(meaning.problem, Calls())
            calls.add_one(milliseconds(head.time))
            self.log.creation_states[meaning.text] += 1
        elif meaning.kind == "dispatch":
            self.log.dispatches[meaning.text] += 1
        elif meaning.kind == "message":
            self.log.messages[meaning.text] += 1
        else:
            note_header(self.log, meaning.text)

    def add(self, meaning: Meaning, head: str, time: float, rank: int | None) -> None:
        where = self.where.get(rank) or Where(rank)
        calls = self.sink.get((where, head))
        if calls is None:
            assert meaning.problem is not None
            problems = self.log.executions.setdefault(where, {})
            make_room(self.sink)
            calls = self.sink[(where, head)] = problems.setdefault(meaning.problem, Calls())
        calls.add_one(time)
        self.executed += 1

    def own_line(self, line: str) -> None:
        try:
            if line.startswith(FACTS):
                facts = parse_facts(line[len(FACTS) :])
                rank = facts.get("rank")
                self.rank = rank if isinstance(rank, int) else None
                self.log.facts.append(facts)
            elif line.startswith(MARK):
                self.mark(parse_mark(line[len(MARK) :]))
        except ValueError as error:
            self.not_understood(line, f"no mark or facts of ProfileDNN: {error}")

    def mark(self, mark: Mark) -> None:
        place = Where(self.rank, mark.step, mark.phase)
        if mark.is_begin:
            self.begun[place] = mark.milliseconds
            self.where[self.rank] = place
            return
        begun = self.begun.pop(place, None)
        if begun is not None:
            spent = self.log.phase_ms.get(place, 0.0)
            self.log.phase_ms[place] = spent + mark.milliseconds - begun
        self.where[self.rank] = Where(self.rank, mark.step) if mark.phase else Where(self.rank)

    def not_understood(self, line: str, why: str) -> None:
        self.log.not_understood_count += 1
        if len(self.log.not_understood) < SHOWN:
            self.log.not_understood.append(
                NotUnderstood(self.name, self.number, line.strip()[:200], why)
            )

    def require_executions(self, *, is_text: bool) -> None:
        if self.executed:
            return
        if not self.number:
            raise InputError(f"{self.name}: is empty; ONEDNN_VERBOSE=1 makes a program write a log")
        missed = self.log.not_understood_count - self.first_not_understood
        if missed:
            first = next(one for one in self.log.not_understood if one.file == self.name)
            raise InputError(
                f"{self.name}: no line of oneDNN's is understood, of {missed}; the first is "
                f"line {first.line}: {first.why}"
            )
        if self.log.onednn_lines > self.first_onednn_line:
            raise InputError(
                f"{self.name}: oneDNN's lines here tell of no execution; "
                "ONEDNN_VERBOSE=1 (or profile_exec) writes those"
            )
        what = "no line of oneDNN's" if is_text else "no text"
        raise InputError(
            f"{self.name}: holds {what}; ONEDNN_VERBOSE=1 makes a program write them to its output"
        )


def make_room(remembered: dict[Any, Any]) -> None:
    """Forget all lines where there are too many, so that distinct ones do not fill the memory."""
    if len(remembered) >= REMEMBERED:
        remembered.clear()


def rank_of(prefix: str, otherwise: int | None) -> int | None:
    """The rank that a line's prefix names."""
    found = RANK.match(prefix)
    return int(found[1] or found[2]) if found else otherwise
