"""`bench step --share FILE` and `bench leaderboard DIR`: steps of many processors, compared.

A file has a processor, versions, a workload and its times, and nothing about whose machine it was:
no name of a host or user, no path, kernel or time of day.
"""

import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from common.charts import Column, Table, text_column
from common.console import make_console, significant, three_digits
from common.errors import FINISHED, InputError
from common.files import read_text, write_atomically, write_json
from common.machine import (
    BF16_FLAGS,
    code_version,
    cpu_field,
    cpu_flags,
    installed_versions,
    processor_name,
)
from common.options import argument, option
from common.program import DISTRIBUTION
from common.stored import read_stored
from profiling.bench.report import PIPE_WIDTH
from profiling.bench.threads import ByThreads, named

Count = Annotated[int, Field(gt=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Time = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[\w .,@()+:-]{1,80}$")]
"""A text for a page: no path, and no markup."""
EXACT = ConfigDict(strict=True, extra="forbid")
KERNELS_OF_STEP = (0.02, 1.2)
"""Share of a step in its kernels; in other units than the step it would be 1,000 times as much."""
RATE_OF_STEP = (0.01, 3.0)
"""A step's GFLOP/s relative to the machine's products with as many threads: the same for both."""
MOST_BUSY = 0.25  # Cores, on average: a step waits for the slowest of its threads


@dataclass(frozen=True, kw_only=True)
class Processor:
    """A processor; in a virtual machine often only family and model tell its generation."""

    __pydantic_config__ = EXACT
    name: Name
    family: Name
    model: Name
    instructions: tuple[Name, ...]  # Those for BF16, as /proc/cpuinfo names them
    virtual_cores: Count
    physical_cores: Count


@dataclass(frozen=True, kw_only=True)
class SharedWorkload:
    """The size of a batch, see `Workload`."""

    __pydantic_config__ = EXACT
    images: Count
    image_size: Count
    classes: Count

    def __str__(self) -> str:
        return f"{self.images} × {self.image_size}×{self.image_size}, {self.classes} classes"


@dataclass(frozen=True, kw_only=True)
class SharedStep:
    """A step with a number of threads, and what the machine computes with as many."""

    __pydantic_config__ = EXACT
    threads: Count
    physical_cores: Count
    runs_s: Annotated[tuple[Positive, ...], Field(min_length=1)]
    kernels_s: dict[Name, Time]
    product_gflop_per_s: Positive  # The faster one of float32 and BF16
    copy_gb_per_s: Positive

    @property
    def seconds(self) -> float:
        """The median of the runs."""
        return median(self.runs_s)


@dataclass(frozen=True, kw_only=True)
class Shared:
    """A processor's steps by number of threads."""

    __pydantic_config__ = EXACT
    format: Literal[1] = 1
    processor: Processor
    versions: dict[Name, Name]
    workload: SharedWorkload
    precision: Literal["bf16"]
    step_gflop: Positive
    cores_busy_otherwise: Time
    steps: Annotated[tuple[SharedStep, ...], Field(min_length=1)]


ADVICE = "measure it anew by `retinanet profile bench step --share`, or move it away"


def write_shared(measured: ByThreads, file: Path) -> str:
    """Write the steps of the only contestant, ours; return why the leaderboard would refuse it."""
    [contestant] = measured.contestants
    code = code_version()
    changes = " with changes" if code["is_modified"] else ""
    versions = {
        DISTRIBUTION: str(code["version"]),
        "commit": f"{code['commit']}{changes}",
        "python": platform.python_version(),
        **installed_versions(["torch"]),
    }
    workload = measured.results.workload
    shared = Shared(
        processor=Processor(
            name=processor_name() or platform.machine(),
            family=cpu_field(("cpu family", "CPU architecture")) or "unknown",
            model=cpu_field(("model", "CPU part")) or "unknown",
            instructions=tuple(flag for flag in BF16_FLAGS if flag in cpu_flags()),
            virtual_cores=len(measured.cores.topology.cpus),
            physical_cores=len(measured.cores.cores),
        ),
        versions=versions,
        workload=SharedWorkload(
            images=workload.images, image_size=workload.image_size, classes=workload.classes
        ),
        precision="bf16",  # of every contestant's step
        step_gflop=measured.gflop(measured.threads[0]),
        cores_busy_otherwise=measured.results.other_cores,
        steps=tuple(shared_step(measured, contestant, n) for n in measured.threads),
    )
    write_json(file, asdict(shared))
    return next(inconsistencies(shared), "")


def shared_step(measured: ByThreads, contestant: str, threads: int) -> SharedStep:
    """Return a contestant's step with a number of threads."""
    rates = measured.rates(threads)
    return SharedStep(
        threads=threads,
        physical_cores=measured.cores.count(threads),
        runs_s=tuple(run.seconds for run in measured.results.runs[named(contestant, threads)]),
        kernels_s=measured.kernels(contestant, threads),
        product_gflop_per_s=max(rates.get(kind, 0.0) for kind in ("float32", "bf16")),
        copy_gb_per_s=rates["copy"] / 1e9,
    )


def read_shared(file: Path) -> Shared:
    """Read a file of `write_shared`; raise InputError naming file and field if it is none."""
    wrong = "is no file of `bench step --share`"
    shared = read_stored(file, Shared, wrong=wrong, advice=ADVICE)
    if fault := next(inconsistencies(shared), ""):
        raise InputError(f"{file}: {wrong} ({fault}); {ADVICE}")
    return shared


def inconsistencies(shared: Shared) -> Iterator[str]:
    """Yield the fields whose values others contradict, and why."""
    processor, previous = shared.processor, 0
    if processor.physical_cores > processor.virtual_cores:
        yield "processor.physical_cores: more than virtual_cores"
    for place, step in enumerate(shared.steps):
        field = f"steps.{place}"
        if not previous < step.threads <= processor.virtual_cores:
            yield f"{field}.threads: {step.threads}, not ascending up to processor.virtual_cores"
        if step.physical_cores > min(step.threads, processor.physical_cores):
            yield f"{field}.physical_cores: {step.physical_cores}, more than threads or cores"
        share = sum(step.kernels_s.values()) / step.seconds
        if not KERNELS_OF_STEP[0] <= share <= KERNELS_OF_STEP[1]:
            yield f"{field}.kernels_s: {share:.3g} times the step; both are in seconds"
        rate = shared.step_gflop / step.seconds / step.product_gflop_per_s
        if not RATE_OF_STEP[0] <= rate <= RATE_OF_STEP[1]:
            yield f"{field}.runs_s: {rate:.3g} times as fast as product_gflop_per_s; in seconds?"
        previous = step.threads
    if shared.cores_busy_otherwise > MOST_BUSY:
        busy = f"{shared.cores_busy_otherwise:.2f}, by other work"
        yield f"cores_busy_otherwise: {busy}; only an idle machine compares"


COLUMNS = (
    text_column("processor"),
    text_column("BF16 by"),
    Column("cores"),
    Column("threads"),
    Column("images/s", three_digits),
    Column("images/s\na core", three_digits),
    Column("step s", significant),
    Column("lowest–highest"),
    Column("GFLOP/s", ",.0f"),
    text_column("torch"),
    Column("cores busy\notherwise", ".2f"),
    text_column("file"),
)


def leaderboard(files: Mapping[str, Shared]) -> list[Table]:
    """Return a table for each workload, the most images/s first; the names are those of files."""
    found: dict[SharedWorkload, list[tuple[float, list[object]]]] = {}
    for name, shared in files.items():
        for step in shared.steps:
            found.setdefault(shared.workload, []).append((step.seconds, row(name, shared, step)))
    return [
        Table(f"{workload}, BF16", COLUMNS, [each for _, each in sorted(rows, key=itemgetter(0))])
        for workload, rows in sorted(found.items(), key=lambda each: (-len(each[1]), str(each[0])))
    ]


def row(name: str, shared: Shared, step: SharedStep) -> list[object]:
    """Return the values of `COLUMNS`."""
    processor, rate = shared.processor, shared.workload.images / step.seconds
    shown = f"{processor.name}, family {processor.family}, model {processor.model}"
    return [
        *(shown, ", ".join(processor.instructions), step.physical_cores, step.threads),
        *(rate, rate / step.physical_cores, step.seconds),
        f"{significant(min(step.runs_s))}–{significant(max(step.runs_s))}",
        shared.step_gflop / step.seconds,
        *(shared.versions.get("torch", ""), shared.cores_busy_otherwise, name),
    ]


BEGIN, END = "<!-- leaderboard -->\n", "<!-- end of the leaderboard -->\n"
LEADERBOARD_ABOUT = """\
Reads the files of `bench step --share` in a folder, and prints a table for each workload, the most
images a second first. A file that contradicts itself is refused. `--page` also writes the tables
into a page, between its lines `<!-- leaderboard -->` and `<!-- end of the leaderboard -->`."""


@dataclass(frozen=True, kw_only=True)
class LeaderboardOptions:
    """The options of `bench leaderboard`."""

    folder: Path = argument("folder of files of `bench step --share`", metavar="DIR")
    page: Path | None = option(
        "also replace the tables of this page, in Markdown", default=None, metavar="PAGE"
    )


def bench_leaderboard(options: LeaderboardOptions) -> int:
    """Print the tables of a folder, and write them into a page; return the exit code."""
    files = sorted(options.folder.glob("*.json"))
    if not files:
        raise InputError(f"{options.folder}: no .json files of `bench step --share`")
    tables = leaderboard({file.stem: read_shared(file) for file in files})
    console = make_console(pipe_width=PIPE_WIDTH)
    for table in tables:
        console.print(table.for_console())
    if options.page is not None:
        try:
            text = read_text(options.page)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{options.page}: cannot be read as text: {error}") from error
        before, begin, rest = text.partition(BEGIN)
        _, end, after = rest.partition(END)
        if not (begin and end):
            raise InputError(
                f"{options.page}: no lines {BEGIN.strip()} and {END.strip()}; add them"
            )
        write_atomically(options.page, f"{before}{BEGIN}{as_markdown(tables)}{END}{after}")
    return FINISHED


def as_markdown(tables: list[Table]) -> str:
    """Return tables under their titles, for a page."""
    shown = [f"### {table.title}\n\n{table.markdown()}" for table in tables]
    return "\n" + "\n\n".join(shown or ["No file has been shared yet."]) + "\n\n"
