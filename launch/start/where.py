"""Options of commands that start ranks: on which hosts, and by which mpirun."""

import argparse
from pathlib import Path


def add_where(parser: argparse.ArgumentParser, *, hosts_help: str) -> None:
    """Add `--hosts` or `--hostfile`, and `--mpirun`."""
    hosts = parser.add_mutually_exclusive_group()
    hosts.add_argument("--hosts", metavar="A,B", help=hosts_help)
    hosts.add_argument("--hostfile", type=Path, metavar="FILE", help="the same from a file")
    parser.add_argument(
        "--mpirun", type=Path, metavar="PATH", help="this one, and not the first that is found"
    )
