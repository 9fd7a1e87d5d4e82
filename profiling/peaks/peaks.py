"""The machine's measured peaks, as a file holds them. Loads no torch.

TODO-DOC Peaks as a JSON file. Loads no torch.

TODO-DOC What the measured peaks allow: the roofline (Williams, Waterman and Patterson, 2009).

TODO-DOC Peaks as a person reads them.

TODO-DOC What a user should know before trusting numbers that stand beside a machine's peaks.

TODO-DOC How much memory must be moved so that no cache holds it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from common.console import print_cautions
from common.errors import InputError
from common.files import read_json_object, write_whole
from common.machine import available_mb, read_proc_text
from launch.topology import format_cpu_list, parse_cpu_list
from profiling.bench.results import DISTURBING_CORES, disturbance
from profiling.onednn_log.log import OneDnnLog
from profiling.onednn_log.work import Problem, gbyte, gflop


@dataclass(frozen=True)
class Peaks:
    """Measured, not read off a data sheet."""

    matrix_gflop_per_s: dict[str, float]
    """By oneDNN's names of types: `{"f32": 410.2, "bf16": 823.0}`. `s8` is of signed, `u8` of
    unsigned inputs, both with signed weights. Types that the processor only emulates are left
    out."""
    bandwidth_gb_per_s: float
    """The memory's, in 10⁹ bytes a second, as a large copy or scaling has it."""
    threads: int
    cpu: str
    """The processor's name."""
    versions: dict[str, str]
    """Of the packages that computed."""
    cpus: tuple[int, ...] = ()
    """On which the threads ran."""
    rates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """GFLOP/s of everything that was timed, by type and by what it was."""
    bandwidths: Mapping[str, float] = field(default_factory=dict)
    """GB/s of each way to move memory."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Types that have no peak, and why."""
    other_cores: float = 0.0
    """Cores that other work kept busy meanwhile: more than a tenth, and peaks are too low."""
    notes: tuple[str, ...] = ()
    """What was not possible on the way, such as binding threads to cores."""

    def best(self, type_name: str) -> str:
        """What reached the peak of a type; empty where the file does not say."""
        rates = self.rates.get(type_name, {})
        return max(rates, key=lambda name: rates[name], default="")


ADVICE = "write one with python -m profiling peaks --json FILE"


def save(peaks: Peaks, file: Path) -> None:
    """Write a file that `load_peaks` reads.

    Raises:
        InputError: It cannot be written.
    """
    write_whole(file, json.dumps(asdict(peaks), indent=1, ensure_ascii=False) + "\n")


def load_peaks(path: Path) -> Peaks:
    """Read a file of `save`.

    Raises:
        InputError: It is not there, or not such a file; names the field.
    """
    content = read_json_object(path, advice=ADVICE)
    try:
        return peaks_of(content)
    except ValueError as error:
        raise InputError(f"{path}: {error}; {ADVICE}") from error


def peaks_of(content: Mapping[str, Any]) -> Peaks:
    """Peaks from an object of JSON; fields that are not known are passed over.

    Raises:
        ValueError: A field is missing or is something else; names it.
    """
    for name in ("matrix_gflop_per_s", "bandwidth_gb_per_s", "threads", "cpu", "versions"):
        require(name in content, f"{name} is missing")
    rates, threads = content["matrix_gflop_per_s"], content["threads"]
    fine = isinstance(rates, dict) and rates and all(map(is_rate, rates.values()))
    require(fine, "matrix_gflop_per_s: expected a rate above 0 for each type")
    fine = is_rate(content["bandwidth_gb_per_s"])
    require(fine, "bandwidth_gb_per_s: expected a number above 0")
    fine = isinstance(threads, int) and is_rate(threads)
    require(fine, "threads: expected a whole number of at least 1")
    require(isinstance(content["cpu"], str), "cpu: expected a name")
    for name in ("versions", "rates", "bandwidths", "left_out"):
        require(isinstance(content.get(name, {}), dict), f"{name}: expected an object")
    for works in content.get("rates", {}).values():
        fine = isinstance(works, dict) and all(map(is_rate, works.values()))
        require(fine, "rates: expected a rate above 0 for each work of each type")
    for name in ("cpus", "notes"):
        require(isinstance(content.get(name, []), list), f"{name}: expected a list")
    known = {one.name for one in fields(Peaks)}
    found = {name: value for name, value in content.items() if name in known}
    lists: dict[str, Any] = {name: tuple(found.get(name, ())) for name in ("cpus", "notes")}
    return Peaks(**{**found, **lists})


def require(fine: object, otherwise: str) -> None:
    """Raise ValueError where something is not fine."""
    if not fine:
        raise ValueError(otherwise)


def is_rate(value: object) -> bool:
    """Whether it is a number above 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e12


def matrix_peak(problem: Problem, peaks: Peaks) -> float | None:
    """GFLOP/s that matrix products of the problem's type reach, None where not measured."""
    weights = problem.memory("wei") or problem.memory("src")
    type_ = weights.type if weights else ""
    if type_ in ("s8", "u8"):
        type_ = next((name for name in ("s8", "u8") if name in peaks.matrix_gflop_per_s), type_)
    return peaks.matrix_gflop_per_s.get(type_)


def roofline_ms(problem: Problem, peaks: Peaks) -> float | None:
    """Milliseconds of one call at the peaks: of its arithmetic or its tensors, what takes longer.

    None where it is not known, as for a type that has no peak. Data that stays in a cache can be
    faster than the roofline says.
    """
    computed, moved = gflop(problem), gbyte(problem)
    times = []
    if problem.is_computing:
        peak = matrix_peak(problem, peaks)
        if computed is None or not peak:
            return None  # the memory alone would promise too much
        times.append(computed / peak)
    if moved is not None:
        times.append(moved / peaks.bandwidth_gb_per_s)
    return 1000 * max(times) if times else None


MEANING = """\
A type's peak is its highest rate, marked *; the memory's is the higher of its two. Multiplications
and additions count as one operation each, padding as if it were computed; bytes read and written
count alike. s8 is signed times signed, u8 unsigned times signed bytes."""


def print_peaks(console: Console, peaks: Peaks) -> None:
    """What was measured on what, as tables, and what the words mean."""
    versions = ", ".join(f"{name} {version}" for name, version in peaks.versions.items())
    threads = f"{peaks.threads} thread{'s' if peaks.threads > 1 else ''}"
    where = f" on CPUs {format_cpu_list(peaks.cpus)}" if peaks.cpus else ""
    if disturbed := disturbance(peaks.other_cores):
        print_cautions(console, [disturbed])
    console.print(f"{peaks.cpu}, {threads}{where}; {versions}", soft_wrap=True)
    console.print(rates_table(peaks))
    console.print(bandwidth_table(peaks))
    left_out = [f"{name} is left out: {why}" for name, why in peaks.left_out.items()]
    for line in (*left_out, *(f"note: {note}" for note in peaks.notes)):
        console.print(line, soft_wrap=True, markup=False)
    console.print(MEANING, soft_wrap=True, markup=False)


def rates_table(peaks: Peaks) -> Table:
    """Works down, types across."""
    table = Table()
    table.add_column("GFLOP/s")
    for name in peaks.rates:
        table.add_column(name, justify="right")
    for work in dict.fromkeys(work for works in peaks.rates.values() for work in works):
        cells = [
            cell(works.get(work), is_best=work == peaks.best(name))
            for name, works in peaks.rates.items()
        ]
        table.add_row(work, *cells)
    return table


def cell(rate: float | None, *, is_best: bool) -> str:
    """A rate with its mark; empty where the type has none of that work."""
    if rate is None:
        return ""
    return f"{rate:,.0f} {'*' if is_best else ' '}"


def bandwidth_table(peaks: Peaks) -> Table:
    """A row for each way."""
    table = Table()
    table.add_column("memory")
    table.add_column("GB/s", justify="right")
    for name, rate in peaks.bandwidths.items():
        table.add_row(name, cell_of_memory(rate, is_best=rate == peaks.bandwidth_gb_per_s))
    return table


def cell_of_memory(rate: float, *, is_best: bool) -> str:
    """With one decimal: memory is slow beside arithmetic."""
    return f"{rate:,.1f} {'*' if is_best else ' '}"


def are_disturbed(peaks: Peaks) -> bool:
    """Return whether other work kept cores busy while the peaks were measured."""
    return peaks.other_cores > DISTURBING_CORES


def cautions_of_peaks(peaks: Peaks | None, log: OneDnnLog) -> list[str]:
    """Return a line for each thing that makes the peaks unfit for the log; none if they fit."""
    if peaks is None:
        return []
    found = []
    if are_disturbed(peaks):
        found.append(
            f"peaks: disturbed: other work kept {peaks.other_cores:.2f} cores busy while they were "
            "measured, so they are too low, and what is held against them looks better than it is"
        )
    threads = log.run_threads
    if threads and peaks.threads not in threads:
        counts = " and ".join(map(str, threads))
        found.append(
            f"peaks: threads: {counts} in the log, {peaks.threads} when peaks were measured; "
            f"measure them with python -m profiling peaks --threads {threads[0]} --json FILE"
        )
    return [*found, *(f"peaks: {note}" for note in peaks.notes)]


TIMES_THE_CACHES = 4
LARGEST_SHARE = 1 / 8
"""Of the memory that is free: there are two buffers, and other programs."""


def memory_buffer_bytes(cpus: Path = Path("/sys/devices/system/cpu")) -> int:
    """Several times all last-level caches together, if there is memory for it."""
    wanted = TIMES_THE_CACHES * last_level_bytes(cpus)
    return min(wanted, round(available_mb() * 1e6 * LARGEST_SHARE))


def last_level_bytes(cpus: Path) -> int:
    """Of all caches that no larger one stands behind; 0 where the kernel hides them."""
    caches: dict[frozenset[int], tuple[int, int]] = {}
    for folder in cpus.glob("cpu[0-9]*/cache/index[0-9]*"):
        level, size = (
            read_proc_text(folder / "level").strip(),
            read_proc_text(folder / "size").strip(),
        )
        sharers = parse_cpu_list(read_proc_text(folder / "shared_cpu_list"))
        if level.isdigit() and size.endswith("K") and size[:-1].isdigit():
            caches[sharers] = max(caches.get(sharers, (0, 0)), (int(level), int(size[:-1]) * 1024))
    last = max((level for level, _ in caches.values()), default=0)
    return sum(size for level, size in caches.values() if level == last)
