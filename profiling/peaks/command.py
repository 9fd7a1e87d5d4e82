"""`python -m profiling peaks`: what this machine can do at most.

TODO-DOC Peaks measured now, in a process of its own, so that the caller needs no torch.

TODO-DOC The option `--peaks`: measured now, from a file, or none.

TODO-DOC Measure peaks in a process of its own, a `common.processes.JsonWorker`.

Its specification is a `Share`. Each answer tells what is being done next, the last one what was
found.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from common.cli import add_json_option, positive
from common.console import Advance, make_console, progress
from common.errors import FINISHED, InputError
from common.files import require_free_json
from common.machine import environment
from common.processes import Answering, JsonWorker, WorkerDiedError, serve
from launch.pinning import check_cores, choose_cores, take_cores
from launch.shares import Share
from profiling.bench.results import background_load
from profiling.onednn_log.log import OneDnnLog
from profiling.peaks.peaks import (
    Peaks,
    are_disturbed,
    load_peaks,
    memory_buffer_bytes,
    peaks_of,
    print_peaks,
    save,
)

ABOUT = """\
Measure what this machine can do at most: GFLOP/s for each type of number, and the memory's
bandwidth. Other commands hold what a training did against these peaks.

Matrix products and RetinaNet's large convolutions are timed with one thread on each core, in two
rounds, and the best counts: real work should not go beyond it. It takes about ten seconds. Use a
machine on which nothing else runs."""

EXAMPLES = """\
examples:
  python -m profiling peaks                              # all cores
  python -m profiling peaks --threads 28                 # as many as a rank of training has
  python -m profiling peaks --json peaks.json            # for machines without torch to read
  numactl --cpunodebind=0 python -m profiling peaks      # the cores of one memory node"""


def add_peaks(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `peaks` to the commands of a command line."""
    parser = commands.add_parser(
        "peaks",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        help="compute threads, one a core (default: the cores that this process may use)",
    )
    add_json_option(parser, "write everything here too; other commands read it with --peaks")
    parser.add_argument(
        "--keep-disturbed",
        action="store_true",
        help="write --json's file even if other work kept cores busy meanwhile",
    )
    parser.set_defaults(run=peaks_command)


def peaks_command(*, threads: int | None, json_file: Path | None, keep_disturbed: bool) -> int:
    """Measure, print, write; returns the exit code.

    Raises:
        InputError: torch is not installed, cores are fewer than threads, the file exists, or
            other work disturbed peaks that are to be kept.
    """
    require_free_json(json_file)
    with progress(make_console(stderr=True), "peaks [%]", total=100) as advance:
        peaks = measured_peaks(threads=threads, advance=advance)
        advance(100, "")
    print_peaks(make_console(), peaks)
    if json_file is not None:
        if are_disturbed(peaks) and not keep_disturbed:
            raise InputError(
                f"--json: {json_file} is not written, since other work kept "
                f"{peaks.other_cores:.2f} cores busy meanwhile; end that, or add --keep-disturbed"
            )
        save(peaks, json_file)
    return FINISHED


def measured_peaks(
    *,
    threads: int | None,
    cpus: Sequence[int] = (),
    advance: Advance = lambda done, note: None,
) -> Peaks:
    """Measure on so many cores, one thread on each; takes about ten seconds.

    Args:
        threads: How many; None: one for each core.
        cpus: The CPUs to choose from; none: all that this process may use.
        advance: Told the percentage that is done, and what is being measured.

    Raises:
        InputError: torch is not installed, or there are fewer cores than threads.
    """
    share = choose_cores(threads=threads, cpus=cpus)
    if find_spec("torch") is None:
        raise InputError(
            "peaks cannot be measured: torch is not installed in this environment; "
            "measure where it is, and bring the file of python -m profiling peaks --json FILE"
        )
    return peaks_of(ask_worker(share, advance))


def ask_worker(share: Share, advance: Advance) -> dict[str, object]:
    """Let a worker measure; what it has found, as JSON has it.

    Raises:
        InputError: It ended before.
    """
    try:
        with closing(JsonWorker("profiling.peaks.command", asdict(share))) as worker:
            while "found" not in (answer := worker.ask("next")):
                advance(answer["percent"], answer["next"])
    except WorkerDiedError as error:
        raise InputError(f"peaks cannot be measured: {error}") from error
    found: dict[str, object] = answer["found"]
    return found


MEASURE = "measure"
NONE = "none"


def add_peaks_option(parser: argparse.ArgumentParser) -> None:
    """`--peaks`, as `peaks`."""
    parser.add_argument(
        "--peaks",
        default=MEASURE,
        metavar="FILE",
        help="the machine's peaks from `python -m profiling peaks --json FILE`; `none`: do "
        "without (default: measure this machine now, with as many threads as the log had)",
    )


def peaks_as_asked(
    asked: str, log: OneDnnLog, *, console: Console, folder: Path | None
) -> Peaks | None:
    """The peaks that `--peaks` asks for; None where there are to be none, or torch is not here.

    Args:
        asked: `measure`, `none`, or a file.
        log: For its number of threads.
        console: What is done is said here.
        folder: Measured peaks are written to `peaks.json` below it, unless other work disturbed
            them.

    Raises:
        InputError: The file is not there or holds no peaks.
    """
    if asked == NONE:
        return None
    if asked != MEASURE:
        return load_peaks(Path(asked))
    usable = choose_cores(threads=None).threads
    threads = min(max(log.run_threads, default=usable), usable)
    title = f"measuring this machine's peaks with {threads} threads, percent"
    try:
        with progress(console, title, total=100) as advance:
            peaks = measured_peaks(threads=threads, advance=advance)
    except InputError as error:
        console.print(f"note: no peaks: {error}", markup=False, soft_wrap=True)
        return None
    if folder is not None and are_disturbed(peaks):
        (folder / "peaks.json").unlink(missing_ok=True)  # an earlier call's, which is replaced
        console.print("note: these peaks were disturbed and are not kept", soft_wrap=True)
    elif folder is not None:
        save(peaks, folder / "peaks.json")
    return peaks


def prepare(specification: dict[str, Any]) -> tuple[dict[str, Any], Answering]:
    """Take the cores before torch is loaded; each answer is the next message of `measurement`."""
    share = share_of(specification)
    notes = take_cores(share)
    messages = measurement(share, notes + check_cores(share))
    return {}, lambda _: next(messages)


def measurement(share: Share, notes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Measure; yield what comes next and the percentage that is done, then what was found."""
    # torch had to wait for the cores.
    from profiling.peaks.measure import measure_bandwidths, measure_rates, prepare_works, versions  # noqa: PLC0415

    with background_load() as others:
        yield {"percent": 0, "next": "which types there are"}
        works, left_out = prepare_works()
        rates = yield from measure_rates(works)
        bandwidths = measure_bandwidths(buffer_bytes=memory_buffer_bytes())
    found = {
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
    yield {"found": found}


def share_of(fields: dict[str, Any]) -> Share:
    """A share from its fields as JSON has them."""
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Share(**{**fields, **lists})


if __name__ == "__main__":
    serve(prepare)
