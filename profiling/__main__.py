"""ProfileDNN: analyze where the time of a CPU training step is spent, and what is possible.

retinanet train profile.onednn.steps=20-22         # a run writes oneDNN's log of some steps
retinanet profile stats runs/demo/onednn/rank0.log --out stats
"""

import sys
from functools import partial

from common.cli import run_command, run_command_group

# Names of functions, so that a command loads only the modules that it needs.
COMMANDS = {
    "capture": (
        "profiling.capture.program:add_capture",
        "run a program of your own, and log its primitives by torch operator",
    ),
    "stats": ("profiling.stats:add_stats", "summarize oneDNN logs in tables and charts"),
    "report": ("profiling.report.command:add_report", "write one HTML page about a run"),
    "compare": ("profiling.compare:add_compare", "compare two oneDNN logs"),
    "efficiency": (
        "profiling.efficiency:add_efficiency",
        "compare a run's primitives with the same ones in isolation",
    ),
    "benchdnn": (
        "profiling.replay.command:add_benchdnn",
        "run each problem of a log again, alone",
    ),
    "peaks": ("profiling.peaks:add_peaks", "measure the peak rates of this machine"),
    "trace": ("profiling.trace.command:add_trace", "analyze a trace of torch.profiler"),
    "layers": (
        "profiling.layers.command:add_layers",
        "time each layer of a network, forward and backward",
    ),
    "bench": ("profiling.bench.command:add_bench", "benchmarks of alternatives, run in turn"),
    "ablate": ("profiling.ablate.command:add_ablate", "measure the paper's ablations here"),
}

main = partial(run_command_group, "profile", __doc__, COMMANDS)

if __name__ == "__main__":
    sys.exit(run_command(main))
