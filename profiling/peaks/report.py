"""Peaks as a person reads them."""

from rich.console import Console
from rich.table import Table

from launch.host.cpu_lists import format_cpu_list
from profiling.bench.other_load import disturbance
from profiling.peaks.peaks import Peaks
from profiling.terminal import print_cautions

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
