"""Ranks: plan where they run, start them, see how they scale."""

import sys

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
        "the planner: how many hosts, ranks, threads and images reach the target soonest",
    ),
    "groups": (
        "profiling.studies.async_groups:add_groups",
        "probe how many compute groups, and how much momentum, train soonest",
    ),
}


def main() -> int:
    """Read the command line and run the command that it names; returns the exit code."""
    return run_command_group(prog="python -m launch", description=__doc__ or "", commands=COMMANDS)


if __name__ == "__main__":
    sys.exit(run_command(main))
