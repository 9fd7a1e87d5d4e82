"""`retinanet profile peaks`: the peak rates of this machine. Loads no torch.

A worker measures (`common.processes.JsonWorker`, with `profiling.peaks_measure`), so that the
caller needs no torch. A JSON file holds the peaks for other commands, whose option `--peaks` is
here too. They give the roofline (Williams, Waterman and Patterson, 2009).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, Strict, TypeAdapter
from rich.console import Console

from common.charts import Column, Table, text_column
from common.cli import add_command, positive
from common.console import Advance, make_console, print_cautions, print_line, progress
from common.errors import FINISHED, InputError, WorkerDiedError
from common.files import write_json
from common.machine import available_mb, environment, read_proc_text
from common.options import flag, json_option, option
from common.processes import Answering, JsonWorker, serve
from common.stored import read_stored
from common.wording import counted
from launch.pinning import check_cores, choose_cores, take_cores
from launch.shares import Share
from launch.topology import format_cpu_list, parse_cpu_list
from profiling.bench.results import DISTURBING_CORES, background_load, disturbance
from profiling.onednn_log.log import OneDnnLog
from profiling.onednn_log.work import Problem, gbyte, gflop

ABOUT = """\
Measure the peak rates of this machine: GFLOP/s for each number type, and the memory bandwidth.
Other commands compare a training with these peaks.

Matrix products and RetinaNet's large convolutions are timed with one thread per core, in two
rounds, and the highest rate counts, so that real work does not exceed it. This takes about ten
seconds. Run it on an idle machine."""

EXAMPLES = """\
examples:
  retinanet profile peaks                              # all cores
  retinanet profile peaks --threads 28                 # the threads of one rank
  retinanet profile peaks --json peaks.json            # also for machines without torch
  numactl --cpunodebind=0 retinanet profile peaks      # the cores of one memory node"""


@dataclass(frozen=True, kw_only=True)
class PeaksOptions:
    """The options of `retinanet profile peaks`."""

    threads: int | None = option(
        "compute threads, one per core (default: all cores that this process may use)",
        default=None,
        parse=positive,
        metavar="N",
    )
    json: Path | None = json_option("also write all results to FILE, for --peaks of other commands")
    keep_disturbed: bool = flag("write the file of --json even if other processes kept cores busy")


def run_peaks(options: PeaksOptions) -> int:
    """Measure, print and write peaks; return the exit code.

    Raises:
        InputError: torch is not installed, cores are fewer than threads, or other work disturbed
            peaks that are to be kept.
    """
    with progress(make_console(stderr=True), "peaks [%]", total=100) as advance:
        peaks = measure_peaks(threads=options.threads, advance=advance)
        advance(100, "")
    print_peaks(make_console(), peaks)
    if options.json is not None:
        # Rates compared with peaks that are too low would look too good.
        if peaks.are_disturbed and not options.keep_disturbed:
            raise InputError(
                f"--json: {options.json} was not written, because other processes kept "
                f"{peaks.other_cores:.2f} cores busy; stop them, or add --keep-disturbed"
            )
        save(peaks, options.json)
    return FINISHED


Rate = Annotated[float, Strict(), Field(gt=0, lt=1e12, allow_inf_nan=False)]


@dataclass(frozen=True)
class Peaks:
    """The measured peak rates of a machine."""

    matrix_gflop_per_s: Annotated[dict[str, Rate], Field(min_length=1)]
    """By oneDNN's names of types: `{"f32": 410.2, "bf16": 823.0}`. `s8` is of signed, `u8` of
    unsigned inputs, both with signed weights. Types that the processor only emulates are left
    out."""
    bandwidth_gb_per_s: Rate
    """The memory's, in 10⁹ bytes a second, as a large copy or scaling has it."""
    threads: Annotated[int, Strict(), Field(ge=1, lt=10**12)]
    cpu: str
    versions: dict[str, str]  # Versions of the packages that computed
    cpus: tuple[int, ...] = ()  # On which the threads ran
    rates: Mapping[str, Mapping[str, Rate]] = field(default_factory=dict)
    """GFLOP/s of everything that was timed, by type and by what it was."""
    bandwidths: Mapping[str, float] = field(default_factory=dict)  # GB/s of each way to move memory
    left_out: Mapping[str, str] = field(default_factory=dict)  # Types that have no peak, and why
    other_cores: float = 0.0
    """The cores that other processes kept busy: above 0.1, the peaks are too low."""
    notes: tuple[str, ...] = ()  # Steps that were not possible, such as binding threads to cores

    def best(self, type_name: str) -> str:
        """Return the operation that reached the peak of a type; empty if the file has none."""
        rates = self.rates.get(type_name, {})
        return max(rates, key=lambda name: rates[name], default="")

    @property
    def are_disturbed(self) -> bool:
        """Whether other processes kept cores busy while the peaks were measured."""
        return self.other_cores > DISTURBING_CORES


ADVICE = "write one with retinanet profile peaks --json FILE"


def save(peaks: Peaks, file: Path) -> None:
    """Write a file that `load_peaks` reads.

    Raises:
        InputError: The file cannot be written.
    """
    write_json(file, asdict(peaks))


def load_peaks(path: Path) -> Peaks:
    """Read a file of `save`; unknown fields are ignored.

    Raises:
        InputError: The file is missing or invalid; the message has the field.
    """
    return read_stored(path, Peaks, wrong="has no peak rates", advice=ADVICE)


def matrix_peak(problem: Problem, peaks: Peaks) -> float | None:
    """Return GFLOP/s that matrix products of the problem's type reach, None where not measured."""
    weights = problem.memory("wei") or problem.memory("src")
    type_ = weights.type if weights else ""
    rates = peaks.matrix_gflop_per_s
    if type_ in ("s8", "u8"):
        # Weights are s8 in both products of bytes; the input selects u8 · s8 or s8 · s8.
        source = problem.memory("src")
        names = (source.type if source else type_, "s8", "u8")
        type_ = next((name for name in names if name in ("s8", "u8") and name in rates), type_)
    return rates.get(type_)


def roofline_ms(problem: Problem, peaks: Peaks) -> float | None:
    """Return milliseconds of one call at the peaks: for its arithmetic or its tensors, the longer.

    None where it is not known, as for a type that has no peak. Data that stays in a cache can be
    faster than the roofline.
    """
    computed, moved = gflop(problem), gbyte(problem)
    times = []
    if problem.is_computing:
        peak = matrix_peak(problem, peaks)
        if computed is None or not peak:
            # The memory's bound alone would be too optimistic.
            return None
        times.append(computed / peak)
    if moved is not None:
        times.append(moved / peaks.bandwidth_gb_per_s)
    return 1000 * max(times) if times else None


MEANING = """\
*: the peak, the highest rate of a type or of the memory. Multiplications and additions each count
as one operation, padding included; bytes read and bytes written both count. s8: signed × signed,
u8: unsigned × signed bytes."""


def print_peaks(console: Console, peaks: Peaks) -> None:
    """Print machine and peaks, as tables, and what the terms mean."""
    versions = ", ".join(f"{name} {version}" for name, version in peaks.versions.items())
    threads = counted(peaks.threads, "thread")
    where = f" on CPUs {format_cpu_list(peaks.cpus)}" if peaks.cpus else ""
    if disturbed := disturbance(peaks.other_cores):
        print_cautions(console, [disturbed])
    print_line(console, f"{peaks.cpu}, {threads}{where}; {versions}")
    # One row per operation, one column per type.
    rows = []
    for work in dict.fromkeys(work for works in peaks.rates.values() for work in works):
        cells = [
            f"{works[work]:,.0f} {'*' if work == peaks.best(name) else ' '}"
            if work in works
            else ""
            for name, works in peaks.rates.items()
        ]
        rows.append((work, *cells))
    columns = (text_column("GFLOP/s"), *map(Column, peaks.rates))
    console.print(Table("", columns, rows).for_console())
    memory = [
        (name, f"{rate:,.1f} {'*' if rate == peaks.bandwidth_gb_per_s else ' '}")
        for name, rate in peaks.bandwidths.items()
    ]
    console.print(Table("", (text_column("memory"), Column("GB/s")), memory).for_console())
    left_out = [f"{name} is omitted: {why}" for name, why in peaks.left_out.items()]
    for line in (*left_out, *(f"note: {note}" for note in peaks.notes), MEANING):
        print_line(console, line)


def cautions_of_peaks(peaks: Peaks | None, log: OneDnnLog) -> list[str]:
    """Return a line for each reason why the peaks do not fit the log."""
    if peaks is None:
        return []
    cautions = []
    if peaks.are_disturbed:
        cautions.append(
            f"peaks: disturbed: other processes kept {peaks.other_cores:.2f} cores busy during the "
            "measurement, so the peaks are too low, and rates compared with them look too good"
        )
    threads = log.run_threads
    if threads and peaks.threads not in threads:
        counts = " and ".join(map(str, threads))
        cautions.append(
            f"peaks: threads: {counts} in the log, {peaks.threads} in the measurement of peaks; "
            f"measure them with retinanet profile peaks --threads {threads[0]} --json FILE"
        )
    return [*cautions, *(f"peaks: {note}" for note in peaks.notes)]


TIMES_THE_CACHES = 4
LARGEST_SHARE = 1 / 8  # Share of the memory that is free: there are two buffers, and other programs


def last_level_bytes(cpus: Path = Path("/sys/devices/system/cpu")) -> int:
    """Return the total size of all last-level caches; 0 if the kernel hides them."""
    caches: dict[frozenset[int], tuple[int, int]] = {}
    for folder in cpus.glob("cpu[0-9]*/cache/index[0-9]*"):
        level, size = (read_proc_text(folder / name).strip() for name in ("level", "size"))
        sharers = parse_cpu_list(read_proc_text(folder / "shared_cpu_list"))
        if level.isdigit() and size.endswith("K") and size[:-1].isdigit():
            # Each CPU lists its caches; of those with the same sharers, the last level counts.
            caches[sharers] = max(caches.get(sharers, (0, 0)), (int(level), int(size[:-1]) * 1024))
    last = max((level for level, _ in caches.values()), default=0)
    return sum(size for level, size in caches.values() if level == last)


def measure_peaks(
    *,
    threads: int | None,
    cpus: Sequence[int] = (),
    advance: Advance = lambda done, note: None,
) -> Peaks:
    """Measure with one thread per core on cores of `cpus`, in about ten seconds.

    `threads` of None is one for each core, and no `cpus` are all that this process may use.
    `advance` gets the percentage that is done, and what is being measured.

    Raises:
        InputError: torch is not installed, there are fewer cores than threads, or the worker died.
    """
    share = choose_cores(threads=threads, cpus=cpus)
    if find_spec("torch") is None:
        raise InputError(
            "peaks cannot be measured: torch is not installed in this environment; run "
            "retinanet profile peaks --json FILE where it is, and copy the file"
        )
    try:
        with closing(JsonWorker("profiling.peaks", asdict(share))) as worker:
            while "peaks" not in (answer := worker.ask("next")):
                advance(answer["percent"], answer["next"])
    except WorkerDiedError as error:
        raise InputError(f"peaks cannot be measured: {error}") from error
    return TypeAdapter(Peaks).validate_python(answer["peaks"])


MEASURE = "measure"
NONE = "none"


def peaks_option() -> Any:
    """Return the field of `--peaks`, for `choose_peaks`."""
    what = (
        "peak rates written by `retinanet profile peaks --json FILE`; `none`: use no peaks "
        "(default: measure this machine, with the log's number of threads)"
    )
    return option(what, default=MEASURE, metavar="FILE", reads=lambda choice: [Path(choice)])


def choose_peaks(
    choice: str, log: OneDnnLog, *, console: Console, folder: Path | None
) -> Peaks | None:
    """Return the peaks of `--peaks`: `measure`, `none` or a file; None without torch, too.

    They are measured with the log's number of threads, and written to `peaks.json` in the folder
    unless other work disturbed them.

    Raises:
        InputError: The file is missing or invalid.
    """
    if choice == NONE:
        return None
    if choice != MEASURE:
        return load_peaks(Path(choice))
    # The log may be of a machine with more cores.
    usable = choose_cores(threads=None).threads
    threads = min(max(log.run_threads, default=usable), usable)
    title = f"measuring peaks with {threads} threads [%]"
    try:
        with progress(console, title, total=100) as advance:
            peaks = measure_peaks(threads=threads, advance=advance)
    except InputError as error:
        # Peaks are optional: without them only the comparison with them is missing.
        print_line(console, f"note: no peaks: {error}")
        return None
    if folder is not None and peaks.are_disturbed:
        # `--overwrite` replaces an earlier file, whose peaks would be taken for these.
        (folder / "peaks.json").unlink(missing_ok=True)
        print_line(console, "note: peaks.json was not written: other processes kept cores busy")
    elif folder is not None:
        save(peaks, folder / "peaks.json")
    return peaks


def prepare(specification: dict[str, Any]) -> tuple[dict[str, Any], Answering]:
    """Take the cores of a `Share` before torch is loaded; answers are those of `measurement`."""
    share = parse_share(specification)
    notes = take_cores(share)
    # A generator: nothing is measured before the first question.
    messages = measurement(share, notes + check_cores(share))
    return {}, lambda _: next(messages)


def measurement(share: Share, notes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Measure; yield the next step and the percentage done, finally the peaks."""
    # Loading torch starts OpenMP, which reads the affinity: the cores must be taken before.
    from profiling.peaks_measure import measure_bandwidths, measure_rates, prepare_works, versions  # noqa: PLC0415

    with background_load() as others:
        yield {"percent": 0, "next": "supported types"}
        works, left_out = prepare_works()
        rates = yield from measure_rates(works)
        # Buffers larger than all caches, as far as free memory allows.
        buffer_bytes = TIMES_THE_CACHES * last_level_bytes()
        buffer_bytes = min(buffer_bytes, round(available_mb() * 1e6 * LARGEST_SHARE))
        bandwidths = measure_bandwidths(buffer_bytes=buffer_bytes)
    peaks = {
        "matrix_gflop_per_s": {name: max(works.values()) for name, works in rates.items()},
        "bandwidth_gb_per_s": max(bandwidths.values()),
        "threads": share.threads,
        "cpus": list(share.cpus),
        "cpu": str(environment()["cpu"]),
        "versions": versions(),
        "rates": rates,
        "bandwidths": bandwidths,
        "left_out": left_out,
        "other_cores": others.cores,
        "notes": list(notes),
    }
    yield {"peaks": peaks}


def parse_share(fields: dict[str, Any]) -> Share:
    """Return a share from its fields as JSON has them."""
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Share(**{**fields, **lists})


add_peaks = partial(
    add_command, name="peaks", about=ABOUT, examples=EXAMPLES, options=PeaksOptions, run=run_peaks
)

if __name__ == "__main__":
    serve(prepare)
