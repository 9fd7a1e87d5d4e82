"""Start ranks by mpirun, and print the command that does it.

The cluster's own mpirun is taken when one is on PATH, else MPICH from this environment. MPICH,
Intel MPI and Open MPI want different flags for the same thing; here they are the same:

  python -m launch run --np 8 -- train.py --config openimages.yaml data.root=/data/openimages
  python -m launch run --np 16 --hosts node1,node2 -- train.py --config openimages.yaml
  python -m launch run --np 12 --hosts node1:8,node2:4 -- train.py --config openimages.yaml
  python -m launch run --np 16 --hostfile hosts -- train.py --config openimages.yaml
  python -m launch run --np 8 --dry-run -- train.py --config openimages.yaml    # only print it

The launcher binds no rank to cores: each pins itself to its part of its host, as `python -m launch
plan` shows it. A script, and `python …`, are run by the python of this environment; every host
must have both at the same path, and let this one in by ssh without a password. Without --hosts
ranks start on this host, or on those that the batch system has given (Slurm, PBS, LSF).

A hostfile has one host a line, with the number of ranks that it has places for, if it has one:

  node1:8            # as MPICH and Intel MPI write it
  node1 slots=8      # as Open MPI writes it
  node1              # then all hosts run as many ranks

A host of --hosts or --hostfile that has not started after 30 s is named, and the job ends if it has
not after 300 s.

Exit status is mpirun's. Ctrl-C, SIGTERM and SIGHUP let the ranks write a checkpoint first, and so
does the end of this process; a second Ctrl-C ends them at once.
"""

import argparse
import os
import shlex
import sys
from pathlib import Path

from launch.start.gentle_stop import GENTLE, gentle_stop
from launch.start.host_names import require_known_hosts
from launch.start.hostfile import ranks_of_hosts, read_hostfile
from launch.start.hosts import hosts_with_ranks
from launch.start.mpirun import choose_mpirun, search_path
from launch.start.mpirun_command import by_this_python, mpirun_command
from launch.start.relay import run_with_gentle_stop
from launch.start.where import add_where
from retinanet.command_line import number_of_ranks
from retinanet.errors import InputError
from retinanet.exit_codes import FINISHED


def add_run_command(kinds: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `run` to the commands of `python -m launch`."""
    parser = kinds.add_parser(
        "run",
        help="start ranks by mpirun, on one host or several",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s --np N [options] -- COMMAND …",
    )
    parser.add_argument(
        "--np",
        dest="ranks",
        type=number_of_ranks,
        required=True,
        metavar="N",
        help="ranks on all hosts",
    )
    add_where(parser, hosts_help="hosts, with ranks of each if not even: A:8,B:4")
    parser.add_argument("--dry-run", action="store_true", help="print the command and stop")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND", help="what each rank runs"
    )
    parser.set_defaults(run=run_ranks)


def run_ranks(
    *,
    ranks: int,
    hosts: str | None,
    hostfile: Path | None,
    mpirun: Path | None,
    dry_run: bool,
    command: list[str],
) -> int:
    """Run the command on so many ranks; returns the exit status of mpirun.

    Raises:
        InputError: There is no mpirun, the hosts do not fit, or there is nothing to run.
    """
    on_hosts = chosen_hosts(hosts, hostfile, ranks=ranks)
    program = command[1:] if command[:1] == ["--"] else command
    require_program(program)
    names = [name for name, _ in on_hosts]
    if not dry_run:
        option = "--hosts" if hostfile is None else f"--hostfile {hostfile}"
        require_known_hosts(names, os.environ, option=option)
    found = choose_mpirun(mpirun)
    words = mpirun_command(
        found,
        by_this_python(program),
        ranks=ranks,
        hosts=on_hosts,
        environment=os.environ,
        is_root=os.geteuid() == 0,
        is_terminal=sys.stdout.isatty(),
    )
    print(shlex.join(words), file=sys.stdout if dry_run else sys.stderr, flush=True)
    if dry_run:
        return FINISHED
    os.environ["PATH"] = search_path(found.path, os.environ)
    os.environ[GENTLE] = "1"
    return run_with_gentle_stop(words, ask=gentle_stop(found.family), hosts=names)


def chosen_hosts(
    hosts: str | None, hostfile: Path | None, *, ranks: int
) -> tuple[tuple[str, int], ...]:
    """Hosts with their numbers of ranks; none if the command line names none."""
    if hostfile is not None:
        return ranks_of_hosts(read_hostfile(hostfile), ranks=ranks)
    return hosts_with_ranks(hosts, ranks=ranks) if hosts is not None else ()


def require_program(command: list[str]) -> None:
    """Tell here, once, what every rank would tell otherwise.

    Raises:
        InputError: There is no command, or its script does not exist.
    """
    if not command:
        raise InputError("nothing to run: add -- train.py --config NAME, or another command")
    if command[0].startswith("-"):
        raise InputError(
            f"{command[0]}: expected a command after --, such as train.py; options of run go before"
        )
    if command[0].endswith(".py") and not Path(command[0]).is_file():
        raise InputError(f"{command[0]}: no such file in {Path.cwd()}; give the script's path")
