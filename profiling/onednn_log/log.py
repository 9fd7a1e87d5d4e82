"""Read oneDNN's logs in a stream, without torch: calls and times by problem, and remarks.

A file is plain or gzip, its lines are of any length, and never more than a block of it is in
memory. The first lines describe library and machine. Commands that read logs share the progress
here.
"""

import gzip
import io
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeVar

from rich.console import Console

from common.console import print_line, progress_in_bytes
from common.errors import InputError
from common.files import or_unreadable, regular_descriptor
from common.options import argument
from common.walk import identity
from common.wording import listed
from profiling.onednn_log import parse
from profiling.onednn_log.parse import Mark, Meaning, Operator, milliseconds, split_head
from profiling.onednn_log.work import Problem


class LogPosition(NamedTuple):
    """The position in a training at which a line was written; None if not in the log."""

    rank: int | None = None
    step: int | None = None
    phase: str | None = None
    """One of `profiling.onednn_log.parse.PHASES`, as `profile.onednn` marks them."""
    run: int = 0
    """Of the steps of this rank and number, which: several runs of a program repeat them."""

    @property
    def whole_step(self) -> "LogPosition":
        """The step that it is in."""
        return self._replace(phase=None)


@dataclass(slots=True)
class Calls:
    """Number and time of a problem's calls."""

    count: int = 0
    total_ms: float = 0.0
    least_ms: float = field(default=math.inf, compare=False)
    """The time of the fastest call, which other load disturbs least."""

    @property
    def mean_ms(self) -> float:
        """Milliseconds per call."""
        return self.total_ms / self.count

    def add(self, milliseconds: float) -> None:
        """Add a call."""
        self.count += 1
        self.total_ms += milliseconds
        self.least_ms = min(self.least_ms, milliseconds)

    def merge(self, other: "Calls") -> None:
        """Add other calls."""
        self.count += other.count
        self.total_ms += other.total_ms
        self.least_ms = min(self.least_ms, other.least_ms)


Work = tuple[str, str, str, str]
"""What a primitive computes: kind, direction, types without that of a bias, and shape."""


def work_of(problem: Problem) -> Work:
    """Return what a problem computes, whatever implementation and layouts oneDNN chooses."""
    types = [item for item in problem.types.split() if not item.startswith(("bia", "ws"))]
    return problem.kind, problem.direction, " ".join(types), problem.shape


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    """A oneDNN line that cannot be parsed."""

    file: str
    line: int  # Counted from 1
    text: str  # Its beginning
    why: str


@dataclass
class OneDnnLog:
    """The content of one or several logs."""

    files: list[str] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    """`3.7.1`, one for each version that wrote, in order of appearance; none without a header."""
    instruction_sets: list[str] = field(default_factory=list)
    """In the library's words: `Intel AVX-512 with Intel DL Boost and bfloat16 support`."""
    runtimes: list[str] = field(default_factory=list)  # `OpenMP`, `TBB` …
    threads: list[int] = field(default_factory=list)  # `nthr` of each header that differs
    facts: list[dict[str, object]] = field(default_factory=list)
    """The facts that a run of ours writes, once a rank; see `profiling.onednn_log.parse`."""
    executions: dict[LogPosition, dict[Problem, Calls]] = field(default_factory=dict)
    creations: dict[Problem, Calls] = field(default_factory=dict)
    """Creations of primitives; the states of their cache are in `creation_states`."""
    creation_states: Counter[str] = field(default_factory=Counter)
    """`cache_hit`, `cache_miss`, `nested_cache_hit`, `from_cache_blob` …"""
    operators: dict[Operator, dict[Problem, Calls]] = field(default_factory=dict)
    """Executions by torch operator, of logs that `profile capture` wrote; all steps together."""
    dispatches: Counter[str] = field(default_factory=Counter)
    """Implementations that oneDNN skipped, by reason."""
    skipped: dict[Work, dict[str, None]] = field(default_factory=dict)
    """Reasons for implementations that oneDNN skipped, by what was to be computed; in order."""
    messages: Counter[str] = field(default_factory=Counter)
    """Errors, warnings and failed checks, by text."""
    phase_ms: dict[LogPosition, float] = field(default_factory=dict)
    """Wall-clock time of phases and, with `phase=None`, of whole steps, from marks."""
    steps_begun: Counter[tuple[int | None, int]] = field(default_factory=Counter)
    """Begins of steps, by rank and number of the step."""
    lines: int = 0  # Lines of all files, other programs' included
    onednn_lines: int = 0
    not_understood_count: int = 0
    not_understood: list[NotUnderstood] = field(default_factory=list)  # The first of them

    def calls(self, keep: Callable[[LogPosition], bool] = lambda _: True) -> dict[Problem, Calls]:
        """Return executions by problem, in all places that `keep` accepts; do not modify them."""
        places = [problems for where, problems in self.executions.items() if keep(where)]
        if len(places) == 1:
            return places[0]
        merged: dict[Problem, Calls] = {}
        for problems in places:
            for problem, calls in problems.items():
                merged.setdefault(problem, Calls()).merge(calls)
        return merged

    @property
    def step_ms(self) -> dict[LogPosition, float]:
        """Wall-clock time of each complete step."""
        return {where: ms for where, ms in self.phase_ms.items() if where.phase is None}

    @property
    def total_ms(self) -> float:
        """Time of all executions. [milliseconds]"""
        return sum(
            calls.total_ms for problems in self.executions.values() for calls in problems.values()
        )

    @property
    def ranks(self) -> list[int]:
        """Ranks in the log, ascending."""
        return sorted({where.rank for where in self.executions if where.rank is not None})

    @property
    def steps(self) -> list[int]:
        """Training steps in the log, ascending."""
        return sorted({where.step for where in self.executions if where.step is not None})

    @property
    def run_threads(self) -> list[int]:
        """Compute threads of a rank, each number once: of its facts, else of the headers.

        A header has the threads of the moment at which the library was loaded.
        """
        threads = [facts.get("threads") for facts in self.facts]
        from_facts = [number for number in threads if isinstance(number, int) and number > 0]
        return list(dict.fromkeys(from_facts)) or self.threads


VERSION = re.compile(r"(?:oneDNN|DNNL|Intel MKL-DNN|Intel\(R\) MKL-DNN) v(\d+\.\d+(?:\.\d+)?)")
RUNTIME = re.compile(r"cpu,runtime:([^,]+)(?:,nthr:(\d{1,6})\b)?")
INSTRUCTION_SET = re.compile(r"(?:cpu,isa:|Detected ISA is )(.+)")
Value = TypeVar("Value", str, int)


def note_header(log: OneDnnLog, text: str) -> None:
    """Note version, runtime, threads and instruction set, as far as an info line has them."""

    def note(values: list[Value], value: Value) -> None:
        if value not in values:
            values.append(value)

    if match := VERSION.match(text):
        note(log.versions, match[1])
        # 1.0 and 1.1 have the instruction set on the same line.
        if after := text.partition(")")[2].lstrip(","):
            note(log.instruction_sets, after)
    elif match := RUNTIME.match(text):
        note(log.runtimes, match[1])
        if match[2]:
            note(log.threads, int(match[2]))
    elif match := INSTRUCTION_SET.match(text):
        note(log.instruction_sets, match[1])


SHOWN = 20  # Lines that could not be parsed and are kept for the report

MOST_BEFORE_ONEDNN = 1 << 30
"""Unpacked characters after which reading of a file without a oneDNN line ends."""

CACHED_LINES = 4096  # Lines whose meaning is cached; trainings have hundreds of distinct ones

RANK = re.compile(r"\s*\[(?:\d+,)?(\d{1,6})\](?:<std(?:out|err)>)?:?\s*$|\s*(\d{1,6}): $")
"""The prefixes of lines from mpirun's `-prepend-rank` and `--tag-output`, and srun's `-l`; ctest
has its tests' numbers, from 1 on, in the place of the last (`number_ranks`)."""

ADVICE = "run the program with ONEDNN_VERBOSE=1 and save its output"
NO_LINES = f"contains no oneDNN lines; {ADVICE}"


def read_logs(
    files: Sequence[Path],
    *,
    advance: Callable[[int], None] = lambda _: None,
    needs_executions: bool = True,
) -> OneDnnLog:
    """Read one or more logs, plain or gzip, as one; `-` is standard input.

    `advance` gets the bytes of each block that was read; packed bytes where packed.

    Raises:
        InputError: A file cannot be read, or has no execution of a primitive in it, nor, unless
            `needs_executions`, creations, reasons for skipped implementations, messages or marks.
    """
    log = OneDnnLog()
    for file in files:
        _Reader(log, str(file)).read(file, advance, needs_executions=needs_executions)
    number_ranks(log)
    return log


def number_ranks(log: OneDnnLog) -> None:
    """Give numbers before `: ` their place: ranks if 0 or a marked step has one, else tests'."""
    numbered = [where for where in (*log.executions, *log.phase_ms) if (where.rank or 0) < 0]
    are_ranks = any(where.rank == -1 or where.step is not None for where in numbered)

    def placed(where: LogPosition) -> LogPosition:
        if where.rank is None or where.rank >= 0:
            return where
        return where._replace(rank=-1 - where.rank if are_ranks else None)

    executions, log.executions = log.executions, {}
    for where, problems in executions.items():
        sums = log.executions.setdefault(placed(where), {})
        for problem, calls in problems.items():
            sums.setdefault(problem, Calls()).merge(calls)
    log.phase_ms = {placed(where): ms for where, ms in log.phase_ms.items()}


class _Reader:
    """Reads one file into a log."""

    def __init__(self, log: OneDnnLog, name: str) -> None:
        self.log = log
        self.name = name
        self.number = 0
        self.executed = 0
        self.first_onednn_line = log.onednn_lines
        self.first_not_understood = log.not_understood_count
        self.rank: int | None = None
        """From the facts at the file's beginning; a line's own prefix takes precedence."""
        self.where: dict[int | None, LogPosition] = {}
        self.begun: dict[LogPosition, float] = {}
        self.operator: Operator | None = None
        """That of the last line about operators; None in logs without them."""
        self.pending: dict[str, dict[str, None]] = {}
        """Reasons whose line has no problem, by kind of primitive, until a line has it."""
        self.meanings: dict[str, Meaning] = {}
        self.sink: dict[tuple[LogPosition, Operator | None, str], tuple[Calls, ...]] = {}

    def read(self, file: Path, advance: Callable[[int], None], *, needs_executions: bool) -> None:
        log = self.log
        before = (log.creation_states.total(), log.dispatches.total(), log.messages.total())
        self.log.files.append(self.name)
        characters, begins, is_text = 0, True, True
        try:
            with or_unreadable(self.name), open_log(file, advance) as stream:
                # A file without newlines must not fill the memory.
                while part := stream.readline(LONGEST_LINE):
                    characters += len(part)
                    is_other = log.onednn_lines == self.first_onednn_line
                    if is_other and characters > MOST_BEFORE_ONEDNN:
                        size = f"{characters >> 30} GiB"
                        raise InputError(
                            f"{self.name}: no oneDNN line in its first {size}; {ADVICE}"
                        )
                    if begins:
                        self.number += 1
                        is_text = is_text and "\0" not in part
                        self.line(part.rstrip("\n"))
                    begins = part.endswith("\n")
        except (EOFError, zlib.error) as error:  # a packed log whose writer was killed
            if not self.number:
                raise InputError(f"{self.name}: is a damaged gzip file: {error}") from error
            self.not_understood("", f"the gzip file is damaged from here on: {error}")
        self.log.lines += self.number
        after = (log.creation_states.total(), log.dispatches.total(), log.messages.total())
        if not self.executed and (needs_executions or (after == before and not self.where)):
            raise InputError(f"{self.name}: {self.why_without_executions(is_text=is_text)}")

    def line(self, line: str) -> None:
        if line.startswith("onednn_verbose,") and line.count("_verbose,") == 1:
            self.onednn_line(line, self.rank)  # The fast path of almost all lines
        elif line.startswith(parse.CHOSEN):
            self.chosen_line(line.removeprefix(parse.CHOSEN))
        elif "_verbose," in line:
            # Ranks that write to one pipe can merge two lines, or a line with other output.
            starts = [match.start() for match in parse.MARKER.finditer(line)]
            rank = self.rank_in(line[: starts[0]]) if starts else None
            for start, end in pairwise([*starts, len(line)]):  # none, if another program's
                self.onednn_line(line[start:end], rank)
        elif "profilednn_" in line:
            before, name, text = line.rstrip().partition("profilednn_")
            self.profilednn_line(name + text, self.rank_in(before))

    def rank_in(self, before: str) -> int | None:
        """Return the rank in what stands before a line, negative until `number_ranks`."""
        if not (prefix := RANK.match(before)):
            return self.rank
        return int(prefix[1]) if prefix[1] else -1 - int(prefix[2])

    def onednn_line(self, line: str, rank: int | None) -> None:
        self.log.onednn_lines += 1
        if len(line) >= LONGEST_LINE:
            self.not_understood(line, f"longer than {LONGEST_LINE} characters")
            return
        head, time = split_head(line.rstrip().partition(",")[2])
        try:
            # A training repeats a few hundred heads thousands of times: parse each once.
            meaning = self.meanings.get(head)
            if meaning is None:
                meaning = parse.parse_head(parse.Head(head, time))
                if meaning.kind in ("execution", "creation"):
                    make_room(self.meanings)
                    self.meanings[head] = meaning
            if meaning.kind == "execution":
                self.add_execution(meaning, head, milliseconds(time), rank)
            elif meaning.kind == "creation":
                assert meaning.problem is not None
                calls = self.log.creations.setdefault(meaning.problem, Calls())
                calls.add(milliseconds(time))
                self.log.creation_states[meaning.text] += 1
            elif meaning.kind == "dispatch":
                self.add_dispatch(meaning)
            elif meaning.kind == "message":
                self.log.messages[meaning.text] += 1
            else:
                note_header(self.log, meaning.text)
        except ValueError as error:
            self.not_understood(line, str(error))

    def add_execution(self, meaning: Meaning, head: str, time: float, rank: int | None) -> None:
        # The hash of a Problem takes all of its fields; a line's text finds the sums faster.
        where = self.where.get(rank) or LogPosition(rank)
        sums = self.sink.get((where, self.operator, head))
        if sums is None:
            assert meaning.problem is not None
            groups = [self.log.executions.setdefault(where, {})]
            if self.operator is not None:
                groups.append(self.log.operators.setdefault(self.operator, {}))
            make_room(self.sink)
            sums = tuple(group.setdefault(meaning.problem, Calls()) for group in groups)
            self.sink[(where, self.operator, head)] = sums
        for calls in sums:
            calls.add(time)
        if self.pending:
            assert meaning.problem is not None
            self.add_reasons(meaning.problem)
        self.executed += 1

    def chosen_line(self, line: str) -> None:
        try:
            problem = parse.parse_head(split_head(line.rstrip().partition(",")[2])).problem
        except ValueError as error:
            self.not_understood(line, str(error))
        else:
            if problem is not None:
                self.add_reasons(problem)

    def add_dispatch(self, meaning: Meaning) -> None:
        self.log.dispatches[meaning.text] += 1
        reason = f"{meaning.skipped}: {meaning.text}"
        if meaning.problem is not None:
            self.add_reasons(meaning.problem, reason)
        elif meaning.primitive:
            reasons = self.pending.setdefault(meaning.primitive, {})
            make_room(reasons)
            reasons[reason] = None

    def add_reasons(self, problem: Problem, *reasons: str) -> None:
        """Add reasons to a problem, and before them those of its kind that had no problem."""
        before = self.pending.pop(problem.kind, {})
        if before or reasons:
            known = self.log.skipped.setdefault(work_of(problem), {})
            known.update(dict.fromkeys([*before, *reasons]))

    def profilednn_line(self, line: str, rank: int | None) -> None:
        try:
            if line.startswith(parse.FACTS):
                facts = parse.parse_facts(line[len(parse.FACTS) :])
                if rank == self.rank:  # no rank before the line
                    self.rank = facts["rank"] if isinstance(facts.get("rank"), int) else None
                self.log.facts.append(facts)
            elif line.startswith(parse.OPERATOR):
                self.operator = parse.parse_operator(line[len(parse.OPERATOR) :])
                self.pending.clear()  # primitives are created and executed within an operator
            elif line.startswith(parse.MARK):
                self.add_mark(parse.parse_mark(line[len(parse.MARK) :]), rank)
        except ValueError as error:
            self.not_understood(line, f"invalid line of ProfileDNN: {error}")

    def add_mark(self, mark: Mark, rank: int | None) -> None:
        begun = self.log.steps_begun
        if mark.is_begin and mark.phase is None:
            begun[rank, mark.step] += 1
        # Without a begin, the log was cut at its front.
        run = max(0, begun[rank, mark.step] - 1)
        place = LogPosition(rank, mark.step, mark.phase, run)
        if mark.is_begin:
            self.begun[place] = mark.milliseconds
            self.where[rank] = place
            return
        if (start := self.begun.pop(place, None)) is not None:
            passed = mark.milliseconds - start
            self.log.phase_ms[place] = self.log.phase_ms.get(place, 0.0) + passed
        # After a phase its step goes on; after a step nothing is open.
        self.where[rank] = place.whole_step if mark.phase else LogPosition(rank)

    def not_understood(self, line: str, why: str) -> None:
        self.log.not_understood_count += 1
        if len(self.log.not_understood) < SHOWN:
            text = line.strip()[:200]
            self.log.not_understood.append(NotUnderstood(self.name, self.number, text, why))

    def why_without_executions(self, *, is_text: bool) -> str:
        if not self.number:
            return f"is empty; {ADVICE}"
        missed = self.log.not_understood_count - self.first_not_understood
        if missed:
            first = next(line for line in self.log.not_understood if line.file == self.name)
            return (
                f"none of its {missed} oneDNN lines can be parsed; the first is line "
                f"{first.line}: {first.why}"
            )
        if self.log.onednn_lines > self.first_onednn_line:
            return "its oneDNN lines contain no execution; set ONEDNN_VERBOSE=1 (or profile_exec)"
        return NO_LINES if is_text else f"is not a text file; {ADVICE}"


def make_room(cache: dict[Any, Any]) -> None:
    """Clear a cache that is full, so that a log of distinct lines does not fill the memory."""
    if len(cache) >= CACHED_LINES:
        cache.clear()


STANDARD_INPUT = Path("-")
LONGEST_LINE = 65_536
"""Characters. oneDNN's own are below a thousand; of longer ones the beginning is kept."""
BLOCK = 1 << 20


class CountedFile(io.FileIO):
    """A file that tells how many bytes of it were read, packed ones where it is packed."""

    advance: Callable[[int], None]

    def readinto(self, buffer: Any) -> int | None:
        """Read as `FileIO` does."""
        size = super().readinto(buffer)
        self.advance(size or 0)
        return size


@contextmanager
def open_log(file: Path, advance: Callable[[int], None]) -> Iterator[TextIO]:
    """Yield a file's text, unpacked where it is packed; `-` is standard input.

    Bytes that are no UTF-8 are replaced.

    `advance` gets the number of bytes that were read, before they are unpacked. Regular files and
    the pipes of a shell's `<(command)` are read, no FIFO and no device: OSError.
    """
    is_standard_input = file == STANDARD_INPUT
    descriptor = 0 if is_standard_input else regular_descriptor(file, pipes=True)
    with CountedFile(descriptor, closefd=not is_standard_input) as raw:
        raw.advance = advance
        stream = io.BufferedReader(raw, BLOCK)
        # peek, not seek: standard input may be a pipe.
        is_packed = stream.peek(2)[:2] == b"\x1f\x8b"
        unpacked = gzip.GzipFile(fileobj=stream) if is_packed else stream
        yield io.TextIOWrapper(unpacked, "utf-8", "replace", newline="\n")


def log_files(path: Path) -> list[Path]:
    """Return a log, or all logs of a folder, such as `runs/coco/onednn`.

    Raises:
        InputError: The folder has none.
    """
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.name.endswith((".log", ".log.gz")))
    if not files:
        raise InputError(f"{path}: contains no *.log or *.log.gz; give a log or a folder of logs")
    return files


def logs_argument() -> Any:
    """Return the field of one or more logs and folders of logs, for `read_with_progress`."""
    what = "log of ONEDNN_VERBOSE=1, plain or .gz, or a folder of logs; -: standard input"
    return argument(what, nargs="+", metavar="LOG", reads=log_files)


def without_copies(files: Sequence[Path], console: Console) -> list[Path]:
    """Return each file once, without packed copies, which `gzip --keep` leaves beside a log.

    Raises:
        InputError: A log and the packed one of its name have different contents.
    """
    named = {identity(file) or file: file for file in files}
    for packed in [file for file in named.values() if file.suffix == ".gz"]:
        plain = named.get(identity(packed.with_suffix("")) or packed)
        if plain is None or plain == packed:
            continue
        if not have_equal_content(plain, packed, console):
            raise InputError(f"{packed}: is no copy of {plain}; rename or remove one of them")
        print_line(console, f"note: {packed} is left out: it is a packed copy of {plain}")
        del named[identity(packed) or packed]
    return list(named.values())


def have_equal_content(plain: Path, packed: Path, console: Console) -> bool:
    """Return whether two logs have the same text, unpacked; not where a packed one is damaged."""
    streams, files = [], (plain, packed)
    with ExitStack() as opened, suppress(EOFError, zlib.error, gzip.BadGzipFile):
        advance = opened.enter_context(shown(f"comparing with {packed.name}", files, console))
        for file in files:
            opened.enter_context(or_unreadable(file))
            streams.append(opened.enter_context(open_log(file, advance)))
        left, right = streams
        while (part := left.read(BLOCK)) == right.read(BLOCK):
            if not part:
                return True
    return False


@contextmanager
def shown(title: str, files: Sequence[Path], console: Console) -> Iterator[Callable[[int], None]]:
    """Show the progress of reading files; yield a function that takes the bytes of each step."""
    total = sum(file.stat().st_size for file in files if file.is_file())
    done = 0
    with progress_in_bytes(console, title, total=total) as show:

        def advance(size: int) -> None:
            nonlocal done
            done += size
            show(min(done, total), "")

        yield advance


def read_with_progress(
    logs: list[Path], console: Console, *, needs_executions: bool = True
) -> OneDnnLog:
    """Read logs and folders of logs, each once, with a progress bar for large ones.

    Raises:
        InputError: A folder has no log, or see `without_copies` and `read_logs`.
    """
    files = without_copies([file for log in logs for file in log_files(log)], console)
    with shown("reading", files, console) as advance:
        return read_logs(files, advance=advance, needs_executions=needs_executions)


def describe_log(console: Console, log: OneDnnLog) -> None:
    """Print the library, the machine and the size of a log."""
    parts = [", ".join(f"oneDNN {version}" for version in log.versions) or "oneDNN (no header)"]
    if log.threads:
        threads = " and ".join(map(str, log.threads))
        parts.append(f"{' and '.join(log.runtimes)}, {threads} threads")
    print_line(console, "; ".join([*parts, *log.instruction_sets]))
    counts = [f"{log.lines:,} lines, {log.onednn_lines:,} from oneDNN"]
    for name, numbers in (("ranks", log.ranks), ("steps", log.steps)):
        if numbers:
            counts.append(f"{name} {', '.join(map(str, numbers))}")
    print_line(console, "; ".join(counts))


def name_files(files: Sequence[str]) -> str:
    """Return the names of a log's files for a chart's title, of many the first three."""
    return listed((Path(file).name for file in files), 3)
