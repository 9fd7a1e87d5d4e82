"""`python -m profiling peaks`: what this machine can do at most."""

import argparse
from pathlib import Path

from profiling.peaks.cautions import are_disturbed
from profiling.peaks.file import save
from profiling.peaks.measured import measured_peaks
from profiling.peaks.report import print_peaks
from retinanet.command_line import add_json_option, positive
from retinanet.errors import InputError
from retinanet.exit_codes import FINISHED
from retinanet.output_files import require_free_json
from retinanet.progress import progress
from retinanet.terminal import make_console

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
        help="measure what this machine can do at most",
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
