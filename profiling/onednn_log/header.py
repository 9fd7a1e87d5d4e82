"""What a log's first lines tell of the library and the machine."""

import re
from typing import TypeVar

from profiling.onednn_log.log import OneDnnLog

VERSION = re.compile(r"(?:oneDNN|DNNL|Intel MKL-DNN|Intel\(R\) MKL-DNN) v(\d+\.\d+(?:\.\d+)?)")
RUNTIME = re.compile(r"cpu,runtime:([^,]+)(?:,nthr:(\d+))?")
Value = TypeVar("Value", str, int)
INSTRUCTION_SET = re.compile(r"(?:cpu,isa:|Detected ISA is )(.+)")


def note_header(log: OneDnnLog, text: str) -> None:
    """Note version, runtime, threads and instruction set, as far as an info line has them."""
    if found := VERSION.match(text):
        _note(log.versions, found[1])
        # 1.0 and 1.1 tell the instruction set on the same line.
        after = text.partition(")")[2].lstrip(",")
        if after:
            _note(log.instruction_sets, after)
    elif found := RUNTIME.match(text):
        _note(log.runtimes, found[1])
        if found[2]:
            _note(log.threads, int(found[2]))
    elif found := INSTRUCTION_SET.match(text):
        _note(log.instruction_sets, found[1])


def _note(values: list[Value], value: Value) -> None:
    """Add what is not there yet."""
    if value not in values:
        values.append(value)
