"""`python -m profiling report`: its command line, and from logs to a page."""

import argparse
from pathlib import Path

from profiling.peaks.option import add_peaks_option
from profiling.terminal import say
from retinanet.exit_codes import FINISHED
from retinanet.output_files import require_free_outputs, write_whole
from retinanet.printable import printable
from retinanet.terminal import make_console

ABOUT = """\
Everything that is known of a run on one page for a browser: what ran on what, where a step's time
goes, what it could be, and what to look at next. The page is one file that loads nothing from
anywhere; its tables sort and filter; it prints. LOG is a log of oneDNN, a folder of logs, or a
run's folder, of which the logs, the trace, the counters and environment.json are taken."""

EXAMPLES = """\
A section whose input is missing says which command makes it.

examples:
  python train.py profile.onednn.steps=20-22 profile.trace.steps=20-22 profile.perf=true
  python -m profiling report runs/demo
  python -m profiling report runs/demo --peaks peaks.json --replay replay/replay.json --overwrite
  python -m profiling report runs/coco --reference runs/baseline --out coco.html
  python -m profiling report onednn.log --peaks none --title 'the model of Monday'"""


def add_report(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `report` to the commands of a command line."""
    parser = commands.add_parser(
        "report",
        help="everything on one page for a browser",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "logs", nargs="+", type=Path, metavar="LOG", help="a log, a folder of logs, or runs/NAME"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="the page (default: report.html)",
    )
    add_peaks_option(parser)
    for name, metavar, what in (
        ("--replay", "FILE", "replay.json of `python -m profiling benchdnn` or `efficiency`"),
        ("--reference", "LOG", "what to compare with: a log, a folder of logs, or runs/NAME"),
        ("--trace", "FILE", "torch.profiler's trace (default: the run's, of its first rank)"),
        ("--environment", "FILE", "environment.json of the run (default: beside the log)"),
    ):
        parser.add_argument(name, type=Path, metavar=metavar, help=what)
    parser.add_argument("--title", metavar="TEXT", help="the page's heading")
    parser.add_argument("--overwrite", action="store_true", help="replace a page of that name")
    parser.set_defaults(run=report_command)


def report_command(
    logs: list[Path],
    *,
    out: Path,
    peaks: str,
    replay: Path | None,
    reference: Path | None,
    trace: Path | None,
    environment: Path | None,
    title: str | None,
    overwrite: bool,
) -> int:
    """Read, compute, draw, write; returns the exit code.

    Raises:
        InputError: A file cannot be read or written, or holds something else.
    """
    require_free_outputs([out], overwrite=overwrite)
    # Here, because matplotlib and the trace's numpy are slow to load, and --help needs none.
    from profiling.report.compose import compose  # noqa: PLC0415
    from profiling.report.gather import gather  # noqa: PLC0415

    console = make_console()
    material = gather(
        logs,
        peaks=peaks,
        replay=replay,
        reference=reference,
        trace=trace,
        environment=environment,
        console=console,
    )
    page = compose(material, title=title)
    write_whole(out, page.html)
    for sentence in page.summary:
        say(console, printable(sentence))
    say(console, f"page: {out}, {len(page.html.encode()) / 1e6:.1f} MB; open it in a browser")
    return FINISHED
