"""The option `--peaks`: measured now, from a file, or none."""

import argparse
from pathlib import Path

from rich.console import Console

from profiling.onednn_log.log import OneDnnLog
from profiling.peaks.cautions import are_disturbed
from profiling.peaks.cores import choose_cores
from profiling.peaks.file import load_peaks, save
from profiling.peaks.measured import measured_peaks
from profiling.peaks.peaks import Peaks
from retinanet.errors import InputError
from retinanet.progress import progress

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
