"""Standard input, output and errors of commands, whatever they were started with.

A service or `>&-` starts a process with closed descriptors; a disk becomes full, a terminal ends,
and so does a pipe's reader, such as `head`. None of this may end a training, or be lost unnoticed.
"""

import io
import os
import select
import sys
from io import TextIOWrapper
from typing import Any

INPUT, OUTPUT, ERRORS = 0, 1, 2


class LastingOutput(io.FileIO):
    """A descriptor to write to; what cannot be written is dropped, and the first error is noted.

    Writing is tried again with the next text: a disk may have space again. A reader that has ended
    wanted no more, which is no error.
    """

    is_optional = False
    """Whether the command has done its work without its output, see `make_output_optional`."""

    def __init__(self, descriptor: int, *, closes: bool = False) -> None:
        super().__init__(descriptor, "wb", closefd=closes)
        self.problem: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Write some bytes and return their number, which is that of all after an error."""
        try:
            # None: another program has made the pipe non-blocking, and it is full.
            while (written := super().write(data)) is None:
                select.select([], [self], [])
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self.problem = self.problem or error
            return memoryview(data).nbytes
        return written


def open_streams() -> None:
    """Make sure that standard input, output and errors are open, and that no loss ends the command.

    A closed one reads and writes /dev/null. Otherwise the next file that is opened, such as a
    checkpoint, would get its number, and so what libraries print.
    """
    for descriptor in (INPUT, OUTPUT, ERRORS):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(descriptor, True)
    if sys.stdin is None:
        sys.stdin = open(INPUT, encoding="utf-8", closefd=False)  # noqa: SIM115
    for name, descriptor in (("stdout", OUTPUT), ("stderr", ERRORS)):
        stream = getattr(sys, name)
        # A caller, such as a test, may have replaced it.
        if stream is None or (stream is getattr(sys, f"__{name}__") and not lasting(stream)):
            lasting_stream = text_stream(LastingOutput(descriptor), like=stream)
            setattr(sys, name, lasting_stream)
            setattr(sys, f"__{name}__", lasting_stream)


def text_stream(output: LastingOutput, *, like: TextIOWrapper | None) -> TextIOWrapper:
    """Return a stream of text with the settings of another one."""
    if like is None:
        return TextIOWrapper(io.BufferedWriter(output), encoding="utf-8", line_buffering=True)
    return TextIOWrapper(
        output if like.write_through else io.BufferedWriter(output),
        encoding=like.encoding,
        errors=like.errors,
        line_buffering=like.line_buffering,
        write_through=like.write_through,
    )


def lasting(stream: object) -> LastingOutput | None:
    """Return the descriptor below a stream of text, if it was made by `open_streams`."""
    buffer = getattr(stream, "buffer", None)
    output = getattr(buffer, "raw", buffer)
    return output if isinstance(output, LastingOutput) else None


def make_output_optional() -> None:
    """Keep the command's exit status if standard output cannot be written.

    For work whose results are files, such as those of a run.
    """
    if output := lasting(sys.stdout):
        output.is_optional = True


def lost_output() -> tuple[str, bool] | None:
    """Flush standard output; return why some of it was lost, and whether that is an error."""
    sys.stdout.flush()
    output = lasting(sys.stdout)
    if output is None or output.problem is None:
        return None
    reason = f"standard output: cannot be written: {output.problem.strerror}"
    return reason, not output.is_optional
