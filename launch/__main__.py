"""Plan, start and measure ranks."""

import sys
from functools import partial

from common.cli import run_command, run_command_group

COMMANDS = {
    "plan": ("retinanet.placement:add_plan", "show the cores, memory and environment of each rank"),
    "run": ("launch.run:add_run_command", "start ranks by mpirun, on one host or several"),
    "scale": (
        "profiling.studies.scale:add_scale",
        "the scaling study: throughput by ranks and threads",
    ),
    "tune": (
        "profiling.studies.tune.command:add_tune",
        "the planner: find the fastest allocation of hosts, ranks, threads and batch for a target",
    ),
    "groups": (
        "profiling.studies.async_groups:add_groups",
        "find the number of compute groups and the momentum that train fastest",
    ),
}

main = partial(run_command_group, "launch", __doc__, COMMANDS)

if __name__ == "__main__":
    sys.exit(run_command(main))
