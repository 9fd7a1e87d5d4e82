"""The command line of `python -m launch plan`."""

import argparse
import math
from pathlib import Path

from launch.host.cpu_lists import parse_cpu_list
from launch.plan.command import plan_command
from retinanet.command_line import add_json_option, add_overrides, number_of_ranks

ABOUT = """\
Show where each rank of a training would run: on which cores it computes, exchanges gradients and
loads images, in which memory, with which environment. Nothing is started.

It is what `mpirun -np N python train.py …` does by itself, with the same configuration. Without
--topology it is planned for this machine, within what this process may use: its CPUs, and the CPU
quota of its container. With --topology it is planned for another one, from its own description:

  lscpu -p=CPU,CORE,SOCKET,NODE > big.txt        # there, or in a job on one of its nodes"""

EXAMPLES = """\
examples:
  python -m launch plan                                              # one rank, this machine
  python -m launch plan --np 8 --topology big.txt
  python -m launch plan --np 8 --topology big.txt --hosts a,b        # 4 ranks each
  python -m launch plan --topology big.txt --hosts 'node[01-16]:4'   # 64 ranks
  python -m launch plan --np 4 --topology big.txt launch.comm_cores=2 data.reserve_cores=4
  python -m launch plan --np 2 --topology big.txt --cpus 0-15        # a cpuset
  python -m launch plan --topology big.txt --quota 7.5               # a container's CPU limit
  python -m launch plan --np 8 --config openimages.yaml --json plan.json"""


def add_plan(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `plan` to the commands of a command line."""
    parser = commands.add_parser(
        "plan",
        help="show the cores, memory and environment of each rank",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--np",
        dest="ranks",
        type=number_of_ranks,
        metavar="N",
        help="ranks over all hosts (default: the counts of --hosts, or 1)",
    )
    parser.add_argument(
        "--hosts",
        metavar="LIST",
        help="a,b or node[01-04]: --np shared evenly; or with counts, a:4,b:4; hosts are alike",
    )
    parser.add_argument(
        "--config",
        default="demo.yaml",
        metavar="NAME",
        help="a YAML file, or a name in configs/, as train.py takes it (default: demo.yaml)",
    )
    add_overrides(parser)
    add_host_options(parser)
    parser.add_argument(
        "--openmp",
        choices=["gnu", "intel"],
        help="whose variables the environment sets (default: the runtime that is installed here)",
    )
    parser.add_argument(
        "--backend",
        choices=["gloo", "ccl"],
        help="what exchanges gradients (default: distributed.backend, or what is installed here)",
    )
    add_json_option(parser, "write the plan here too, every rank's CPUs and environment")
    parser.set_defaults(run=plan_command)


def add_host_options(parser: argparse.ArgumentParser) -> None:
    """What each host is, and what of it may be used."""
    parser.add_argument(
        "--topology",
        type=Path,
        metavar="FILE",
        help="another host: output of lscpu -p=CPU,CORE,SOCKET,NODE, or a folder, a copy of /sys",
    )
    parser.add_argument(
        "--cpus", type=cpu_list, metavar="LIST", help="use these CPUs only, such as 0-3,8"
    )
    parser.add_argument(
        "--quota", type=cpus_of_time, metavar="CPUS", help="a container's CPU quota, such as 1.5"
    )


def cpu_list(text: str) -> frozenset[int]:
    """CPUs as the kernel lists them."""
    try:
        return parse_cpu_list(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def cpus_of_time(text: str) -> float:
    """A positive number of CPUs, which need not be whole."""
    try:
        cpus = float(text)
    except ValueError:
        cpus = math.nan
    if not 0 < cpus < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of CPUs such as 1.5, found {text!r}")
    return cpus
