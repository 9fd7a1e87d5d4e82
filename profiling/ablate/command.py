"""`python -m profiling ablate`: its command line."""

import argparse
from pathlib import Path

from profiling.ablate.list_command import list_ablations
from profiling.ablate.run_command import run
from retinanet.command_line import positive

ABOUT = """\
The paper's ablations (Fu et al., 2023; Awan et al., 2017), each as a measurement that anyone can
repeat. A file in configs/ablations states one question, a baseline, a change and the paper's
figure. Baseline and change run in turn, A B A B, each in a process of its own; ratios are taken
round by round. Results are files with the machine, the versions and the command in them, and the
report is made from these files alone. What was interrupted goes on where it stopped.
Use a machine on which nothing else runs."""

EXAMPLES = """\
examples:
  python -m profiling ablate list
  python -m profiling ablate run frozen-layers --quick           # a minute or two
  python -m profiling ablate run --quick                         # all of them, 320x320
  python -m profiling ablate run                                 # all, 800x800: hours
  python -m profiling ablate run decoders --photos /data/coco/train2017
  python -m profiling ablate run --quick --out runs/ablations/quick/second
  python -m profiling ablate report --quick                      # says also what holds"""

QUICK = "320x320 instead of 800x800, and fewer rounds"


def add_ablate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `ablate list | run | report` to the commands of a command line."""
    parser = add_parser(commands, "ablate", "the paper's ablations, measured here", ABOUT)
    kinds = parser.add_subparsers(required=True, metavar="COMMAND")
    add_list(kinds)
    add_run(kinds)
    add_report(kinds)


def add_list(kinds: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`list`."""
    about = "which there are, what the paper says, what is measured"
    parser = add_parser(kinds, "list", about, f"List the ablations: {about}.")
    add_place(parser)
    parser.set_defaults(run=list_ablations)


def add_run(kinds: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`run`."""
    parser = add_parser(kinds, "run", "measure them, or go on measuring", ABOUT)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which (default: all)")
    add_place(parser)
    parser.add_argument(
        "--photos",
        type=Path,
        metavar="DIR",
        help="decoders read the photos of this folder (default: drawn scenes)",
    )
    parser.add_argument(
        "--rounds",
        type=positive,
        metavar="N",
        help="counted runs of each variant (default: as each file says, else 8 or 5); more than "
        "there are go on from these",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="measure anew what was measured before"
    )
    parser.set_defaults(run=run)


def add_report(kinds: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`report`."""
    parser = add_parser(
        kinds,
        "report",
        "one page for a browser, and one in Markdown",
        "Make ablations.html (one file that loads nothing) and ablations.md with its pictures, "
        "from result files alone.",
    )
    add_place(parser)
    parser.add_argument(
        "--again",
        type=Path,
        metavar="DIR",
        help="results of a second run: says of each conclusion whether it holds (default: the "
        "folder `second` among the results, if it is there)",
    )
    parser.add_argument(
        "--to", type=Path, metavar="DIR", help="where the report goes (default: beside the results)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a report that is there")
    parser.set_defaults(run=report)


def report(
    *, quick: bool, out: Path | None, again: Path | None, to: Path | None, overwrite: bool
) -> int:
    """Make the report; returns the exit code."""
    # Here, because matplotlib is slow to load, and --help needs none.
    from profiling.ablate.report_command import report as make_report  # noqa: PLC0415

    return make_report(quick=quick, out=out, again=again, to=to, overwrite=overwrite)


def add_place(parser: argparse.ArgumentParser) -> None:
    """`--quick` and `--out`."""
    parser.add_argument("--quick", action="store_true", help=QUICK)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of results (default: runs/ablations/quick, or full)",
    )


def add_parser(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    about: str,
    description: str,
) -> argparse.ArgumentParser:
    """A command with the examples of all."""
    return commands.add_parser(
        name,
        help=about,
        description=description,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
