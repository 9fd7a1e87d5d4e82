"""Options of `python -m profiling benchdnn`."""

import argparse
from pathlib import Path

from retinanet.command_line import positive


def add_file_options(parser: argparse.ArgumentParser) -> None:
    """What is written, for which benchdnn, and of which problems."""
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="write files here")
    parser.add_argument(
        "--benchdnn", type=Path, metavar="PATH", help="the program (default: the one on PATH)"
    )
    parser.add_argument(
        "--write-only", action="store_true", help="write problem files and run nothing"
    )
    parser.add_argument(
        "--dialect",
        type=int,
        choices=(2, 3),
        help="benchdnn's major version (default: that of the one that runs, else 3)",
    )
    parser.add_argument(
        "--layout",
        choices=("log", "any"),
        default="log",
        help="log: as in the log, and the library's choice where it was so there; any: the "
        "library's choice wherever benchdnn lets it choose (default: log)",
    )
    parser.add_argument(
        "--top", type=positive, metavar="N", help="only the N costliest problems (default: all)"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace files of an earlier call in DIR"
    )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """How problems are run."""
    parser.add_argument(
        "--repeats",
        type=positive,
        default=20,
        metavar="N",
        help="runs of each problem that count, fewer where they take seconds (default: 20)",
    )
    parser.add_argument(
        "--cold",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also run with data driven out of the caches",
    )
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="threads (default: as in the log)"
    )
    parser.add_argument(
        "--cpus", metavar="LIST", help="CPUs such as 0-3 (default: those of the log, if it says)"
    )
