"""The options of `python -m data download`."""

import argparse
from pathlib import Path
from urllib.parse import urlsplit

from retinanet.command_line import positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m data download`."""
    parser.add_argument("dataset", choices=["coco", "openimages"], help="which data set")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the folder for it; made if need be"
    )
    parser.add_argument(
        "--splits",
        nargs="+",
        choices=["train", "validation"],
        default=["train", "validation"],
        metavar="SPLIT",
        help="train, validation (default: both)",
    )
    parser.add_argument(
        "--limit",
        type=positive,
        metavar="N",
        help="the first N images of each split, by name; a larger N later adds to them",
    )
    parser.add_argument(
        "--classes",
        nargs="+",
        metavar="NAME",
        help="images with a box of these classes: names, a .txt file with one on each line, `all`, "
        "or for openimages `mlperf` (default: coco all, openimages mlperf)",
    )
    add_server_arguments(parser)


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Which server, and how it is asked."""
    parser.add_argument(
        "--mirror",
        type=mirror_url,
        metavar="URL",
        help="a server to use instead, laid out as above",
    )
    parser.add_argument(
        "--workers",
        type=positive,
        default=16,
        metavar="N",
        help="images asked for at a time (default: 16)",
    )
    parser.add_argument(
        "--attempts",
        type=positive,
        default=8,
        metavar="N",
        help="how often a file is asked for before it is given up (default: 8)",
    )
    parser.add_argument(
        "--pause",
        type=seconds,
        default=0.5,
        metavar="SECONDS",
        help="after the first failure, doubled after each further one, at most 30 seconds; longer "
        "where the server asks for it (default: 0.5)",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="how long a server may be silent (default: 30)",
    )


def mirror_url(text: str) -> str:
    """An address of a server, without a slash at its end."""
    parts = urlsplit(text)
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.query:
        raise argparse.ArgumentTypeError(
            f"expected an address such as https://host, found {text!r}"
        )
    return text.rstrip("/")


def seconds(text: str) -> float:
    """A number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text!r}")
    return value
