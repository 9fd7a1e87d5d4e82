"""The logs that a command reads: its argument, and reading them with progress."""

import argparse
from pathlib import Path

from rich.console import Console

from profiling.onednn_log.log import OneDnnLog
from profiling.onednn_log.read import read_logs
from retinanet.progress import progress_in_bytes


def add_logs(parser: argparse.ArgumentParser) -> None:
    """One or more logs, as `logs`."""
    parser.add_argument(
        "logs",
        nargs="+",
        type=Path,
        metavar="LOG",
        help="what a program wrote under ONEDNN_VERBOSE=1, plain or .gz; - reads a pipe",
    )


def read_with_progress(logs: list[Path], console: Console) -> OneDnnLog:
    """`read_logs`, with a bar for what is long.

    Raises:
        InputError: A log cannot be read, or has no execution of a primitive in it.
    """
    total = sum(log.stat().st_size for log in logs if log.is_file())
    done = 0
    with progress_in_bytes(console, "reading", total=total) as show:

        def advance(size: int) -> None:
            nonlocal done
            done += size
            show(min(done, total), "")

        return read_logs(logs, advance=advance)
