"""A host as `lscpu -p` describes it: comment lines, then one line of numbers for each CPU."""

from collections.abc import Mapping
from pathlib import Path

from launch.host.cpu_facts import CpuFacts
from launch.host.cpu_lists import is_number
from retinanet.errors import InputError
from retinanet.regular_files import read_text

COMMAND = "lscpu -p=CPU,CORE,SOCKET,NODE"
COLUMNS = ("cpu", "core", "socket", "node")
UNKNOWN = ("", "-")
MOST_BYTES = 10_000_000
"""Of an output: 65,536 CPUs have 2 MB."""


def read_lscpu(file: Path) -> list[CpuFacts]:
    """The online CPUs of an output of `lscpu -p` that has the columns CPU, Core, Socket and Node.

    `lscpu --all` also lists CPUs that are offline, without core and socket: they are left out. The
    node is empty for all CPUs of a host without NUMA; it is 0 then.

    Raises:
        InputError: The file cannot be read, or is something else; names file and line.
    """
    columns = None
    by_number: dict[int, CpuFacts] = {}
    for number, line in enumerate(read_lines(file), start=1):
        place = f"{file}:{number}"
        if line.startswith("#"):
            columns = columns_of(line) or columns
        elif line.strip():
            if columns is None:
                raise not_lscpu(place)
            facts = facts_of(line, columns, place)
            if facts and facts.cpu in by_number:
                raise InputError(
                    f"{place}: CPU {facts.cpu} is listed twice; give one host's output"
                )
            if facts:
                by_number[facts.cpu] = facts
    if not by_number:
        raise not_lscpu(str(file))
    return list(by_number.values())


def read_lines(file: Path) -> list[str]:
    """The lines of the file."""
    try:
        return read_text(file, most_bytes=MOST_BYTES).splitlines()
    except OSError as error:
        advice = f"on the machine that it is to describe, write it by: {COMMAND} > {file.name}"
        raise InputError(f"{file}: cannot be read: {error.strerror}; {advice}") from error
    except UnicodeDecodeError as error:
        raise not_lscpu(str(file)) from error


def not_lscpu(place: str) -> InputError:
    """What to give instead."""
    return InputError(f"{place}: expected the output of: {COMMAND}")


def columns_of(comment: str) -> Mapping[str, int] | None:
    """Where the columns are, if this comment is the one that names them."""
    names = [name.strip().lower() for name in comment.lstrip("#").split(",")]
    if "cpu" not in names or not set(COLUMNS) <= set(names):
        return None
    return {name: names.index(name) for name in COLUMNS}


def facts_of(line: str, columns: Mapping[str, int], place: str) -> CpuFacts | None:
    """One CPU's line; None for a CPU that is offline."""
    fields = [field.strip() for field in line.split(",")]
    if len(fields) <= max(columns.values()):
        raise InputError(
            f"{place}: has {len(fields)} fields, fewer than its header; use: {COMMAND}"
        )
    values = {name: fields[column] for name, column in columns.items()}
    if values["core"] in UNKNOWN and values["socket"] in UNKNOWN:
        return None
    if values["node"] in UNKNOWN:
        values["node"] = "0"
    for name, value in values.items():
        if not is_number(value):
            raise InputError(f"{place}: {name}: expected a number, found {value!r}; use: {COMMAND}")
    return CpuFacts(
        int(values["cpu"]),
        core_id=(int(values["core"]),),
        socket=int(values["socket"]),
        node=int(values["node"]),
    )
