"""The command as a user types it, in this process."""

import argparse
from pathlib import Path

from common.cli import run_command
from profiling.peaks import Peaks, save
from profiling.report.command import add_report

PEAKS = Peaks({"f32": 100.0, "bf16": 400.0}, 20.0, threads=2, cpu="a CPU", versions={})


def report(*words: object) -> int:
    """Returns the exit code."""

    def main() -> int:
        parser = argparse.ArgumentParser()
        add_report(parser.add_subparsers())
        arguments = vars(parser.parse_args(["report", *map(str, words)]))
        run = arguments.pop("run")
        return int(run(**arguments))

    return run_command(main)


def written_page(folder: Path, *words: object) -> Path:
    """A page made under these peaks."""
    peaks, page = folder / "peaks.json", folder / "page.html"
    save(PEAKS, peaks)
    assert report(*words, "--peaks", peaks, "--out", page) == 0
    return page
