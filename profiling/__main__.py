"""ProfileDNN: see where a CPU training step goes, and what it could be.

python train.py profile.onednn.steps=20-22         # a run writes oneDNN's log of some steps
python -m profiling stats runs/demo/onednn/rank0.log --out stats
"""

import argparse
import sys
from collections.abc import Callable

from profiling.ablate.command import add_ablate
from profiling.bench.command import add_bench
from profiling.compare.command import add_compare
from profiling.efficiency.command import add_efficiency
from profiling.layers.options import add_layers
from profiling.peaks.command import add_peaks
from profiling.replay.benchdnn_command import add_benchdnn
from profiling.report.command import add_report
from profiling.stats.command import add_stats
from profiling.trace.command import add_trace
from retinanet.command_line import run_command


def main() -> int:
    """Read the command line and run the command that it names; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m profiling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (
        add_stats,
        add_report,
        add_compare,
        add_efficiency,
        add_benchdnn,
        add_peaks,
        add_trace,
        add_layers,
        add_bench,
        add_ablate,
    ):
        add(commands)
    arguments = vars(parser.parse_args())
    run: Callable[..., int] = arguments.pop("run")
    return run(**arguments)


if __name__ == "__main__":
    sys.exit(run_command(main))
