"""Place the ranks of a configuration on a host; `retinanet launch plan` shows where."""

import argparse
import io
import math
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from common.cli import add_command, number_of_ranks, number_that
from common.errors import FINISHED, InputError
from common.files import write_json
from common.options import json_option, option, overrides_argument
from launch.environment import installed_openmp
from launch.hosts import hosts_with_ranks
from launch.limits import host_cpus, read_allowance
from launch.pinning import Placed, RankContext, chosen_backend, enter_rank_context, place_rank
from launch.plan import Plan, make_plan, plan_as_json, print_plan
from launch.ranks import ANY_RANKS_OPTION, Ranks, launcher_named
from launch.shares import CoreRequest
from launch.topology import Topology, format_cpu_list, parse_cpu_list, read_topology
from launch.watchdog import launcher_process
from retinanet import config_types
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.training.async_groups.supervisor import supervise_this_rank


def place_on_host(config: Config, ranks: Ranks, *, binding: bool = True) -> RankContext:
    """Give this rank its cores, memory and rendezvous, before torch is loaded.

    Without `binding`, for `--check`, ranks are only connected: no cores are bound, no libraries
    preloaded.

    Raises:
        InputError: Something configured is not installed, or does not fit this host or its ranks.
    """
    # A time in each line of oneDNN's log. oneDNN reads the variable once, after torch is loaded.
    if config.profile.onednn_steps:
        os.environ.setdefault("ONEDNN_VERBOSE_TIMESTAMP", "1")
    groups, timeout_s = config.distributed.groups, config.distributed.timeout_s
    if binding:
        config_types.require_groups(groups, ranks=ranks.size)
        split, batch_size = config.distributed.batch_split, config.training.batch_size
        # Refuses a split for other ranks.
        config_types.split_at_start(split, batch_size=batch_size, ranks=ranks.size)
    place = enter_rank_context(
        ranks,
        request=core_request(config) if binding else CoreRequest(threads=1),
        allocator=config.engine.allocator if binding else "system",
        backend=config.distributed.backend if binding else "gloo",
        job_outlives_ranks=groups > 1,
        pinned=binding and config.launch.pin,
        timeout_s=timeout_s,
    )
    if not binding or groups == 1:
        return place
    # The first group is not supervised: rank 0 has the checkpoints, so the job ends with it.
    if config_types.group_of_rank(ranks.rank, ranks=ranks.size, groups=groups) == 0:
        return place
    # Supervised: if the launcher does not notice the end of this rank, only its group ends.
    launcher = launcher_process(ranks, os.environ)
    supervisor = supervise_this_rank(launcher=launcher, silence_s=timeout_s)
    return replace(place, beat=supervisor.beat)


def core_request(config: Config) -> CoreRequest:
    """Return the cores that each rank requests."""
    launch, loader_cores = config.launch, config.data.reserve_cores
    threads = None if launch.threads == "auto" else launch.threads
    return CoreRequest(threads=threads, comm_cores=launch.comm_cores, loader_cores=loader_cores)


NOT_PINNED = "launch.pin=false: a run does not pin its ranks; this is the plan with true"


def print_plan_here(settings: Config, ranks: Ranks) -> None:
    """Print the plan for the ranks of a started run on this host, without binding them.

    The split of batches comes first, unless it is even, and the compute groups. The lines are YAML
    comments, since they follow a configuration.

    Raises:
        InputError: The ranks do not fit the host, the split or the groups.
    """
    division = describe_division(settings, ranks=ranks.size)
    plan, own = plan_of_host(settings, ranks), read_allowance().cpus
    if not own.issuperset(plan.hosts[0].ranks[ranks.local_rank].share.cpus):
        note = (
            f"{ranks.launcher} bound this rank to CPUs {format_cpu_list(own)}, which this plan "
            "leaves out; retinanet train --check shows where a run computes"
        )
        plan = replace(plan, notes=(*plan.notes, note))
    # A buffer with stdout's encoding: rich chooses the characters of a table by it.
    shown = io.TextIOWrapper(io.BytesIO(), encoding=sys.stdout.encoding, errors="backslashreplace")
    with redirect_stdout(shown):
        print_plan(plan)
    shown.seek(0)
    for line in (*division, *shown.read().splitlines()):
        print(f"# {line}".rstrip())


def describe_division(settings: Config, *, ranks: int) -> list[str]:
    """Return a line about the split of batches, unless it is even, and one about compute groups.

    Raises:
        InputError: The ranks do not fit the split or the groups.
    """
    split, batch_size = settings.distributed.batch_split, settings.training.batch_size
    batches = config_types.planned_split(split, batch_size=batch_size, ranks=ranks)
    groups = config_types.planned_groups(settings.distributed.groups, ranks=ranks)
    lines = {"batches": batches, "compute groups": groups}
    return [f"{name}: {text}" for name, text in lines.items() if text]


def plan_of_host(settings: Config, ranks: Ranks) -> Plan:
    """Return the plan of this host for ranks that have been started.

    Raises:
        InputError: The ranks do not fit, or the backend for gradients is not installed.
    """
    chosen_backend(settings.distributed.backend)
    host = read_topology()
    return configured_plan(
        settings,
        host,
        allowed=host.restricted(host_cpus(ranks)),
        quota=read_allowance().quota,
        hosts=((socket.gethostname(), ranks.local_size),),
        is_part=ranks.size > ranks.local_size,
        option=launcher_named(ranks.launcher).ranks_option,
    )


def placed_ranks(settings: Config, started: RankContext) -> list[Placed]:
    """Return where each started rank of this host belongs, as a run will place it.

    Raises:
        InputError: The ranks do not fit, or share no memory though they should.
    """
    ranks, backend = started.ranks, settings.distributed.backend
    has_several_hosts = ranks.size > ranks.local_size
    describe_exchange(
        backend, has_several_hosts=has_several_hosts, groups=settings.distributed.groups
    )
    return [
        place_rank(
            replace(ranks, local_rank=local_rank),
            affinities=started.affinities,
            request=core_request(settings),
            pinned=settings.launch.pin,
        )
        for local_rank in range(ranks.local_size)
    ]


def configured_plan(
    settings: Config,
    host: Topology,
    *,
    allowed: Topology,
    quota: float | None,
    hosts: Sequence[tuple[str, int]],
    is_part: bool = False,
    openmp: str | None = None,
    option: str = ANY_RANKS_OPTION,
) -> Plan:
    """Make the plan of a configuration.

    Args:
        settings: The configuration.
        host: Every CPU of a host; they are equal.
        allowed: Those that ranks may use.
        quota: CPUs' worth of time of a host; None: no limit.
        hosts: Names and numbers of ranks.
        is_part: Whether the job has more hosts than these.
        openmp: `gnu` or `intel`; None: what is installed here.
        option: The option that sets the number of ranks.

    Raises:
        InputError: The ranks do not fit, or share no memory though they should.
    """
    backend, groups = settings.distributed.backend, settings.distributed.groups
    ranks, has_several = sum(count for _, count in hosts), is_part or len(hosts) > 1
    gradients = ""
    if ranks > 1 or is_part:
        gradients = describe_exchange(backend, has_several_hosts=has_several, groups=groups)
    plan = make_plan(
        host,
        allowed=allowed,
        quota=quota,
        hosts=hosts,
        request=core_request(settings),
        openmp=openmp or installed_openmp(),
        backend=backend,
        option=option,
    )
    notes = plan.notes if settings.launch.pin else (*plan.notes, NOT_PINNED)
    return replace(plan, notes=notes, gradients=gradients)


def describe_exchange(backend: str, *, has_several_hosts: bool, groups: int) -> str:
    """Return how the ranks of a job will average gradients.

    Raises:
        InputError: Shared memory is configured for ranks of several hosts.
    """
    if backend == "ccl":
        return "by ccl: oneCCL's bindings, which are no longer developed"
    if not has_several_hosts:
        return f"by {backend}" if backend in ("gloo", "mpi") else "in shared memory"
    if groups > 1:
        return "by gloo; in shared memory if the ranks of a compute group are on one host"
    if backend == "shared":
        raise InputError(
            "distributed.backend: shared: ranks of several hosts have no shared memory; set auto"
        )
    name = "mpi (auto: under mpirun; else gloo)" if backend == "auto" else backend
    return f"in shared memory within a host, between hosts by {name}"


ABOUT = """\
Show the placement of each rank of a training: its cores for computing, exchanging gradients and
loading images, its memory nodes and its environment. Nothing is started.

`mpirun -np N retinanet train …` places its ranks in the same way, with the same configuration. The
plan is for this machine, within the CPUs and the CPU quota of this process. With --topology it is
for another one, described by the output of a command there:

  lscpu -p=CPU,CORE,SOCKET,NODE > big.txt        # or in a job on one of its nodes"""

EXAMPLES = """\
examples:
  retinanet launch plan                                              # one rank, this machine
  retinanet launch plan --np 8 --topology big.txt
  retinanet launch plan --np 8 --topology big.txt --hosts a,b        # 4 ranks each
  retinanet launch plan --topology big.txt --hosts 'node[01-16]:4'   # 64 ranks
  retinanet launch plan --np 4 --topology big.txt launch.comm_cores=2 data.reserve_cores=4
  retinanet launch plan --np 2 --topology big.txt --cpus 0-15        # a cpuset
  retinanet launch plan --topology big.txt --quota 7.5               # a container's CPU limit
  retinanet launch plan --np 8 --config openimages.yaml --json plan.json"""


def cpu_list(text: str) -> frozenset[int]:
    """Parse CPUs as the kernel lists them, such as 0-3,8."""
    try:
        return parse_cpu_list(text.strip() or ",")  # none at all is a list that no rank fits
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


cpus_of_time = partial(
    number_that, lambda cpus: 0 < cpus < math.inf, "a number of CPUs such as 1.5"
)


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of `retinanet launch plan`."""

    np: int | None = option(
        "ranks over all hosts (default: the counts of --hosts, or 1)",
        default=None,
        parse=number_of_ranks,
        metavar="N",
    )
    hosts: str | None = option(
        "a,b or node[01-04]: --np shared evenly; or with counts: a:4,b:4; all hosts are equal",
        default=None,
        metavar="LIST",
    )
    config: str = option(
        "a YAML file, or a name in configs/, as for train", default="demo.yaml", metavar="NAME"
    )
    overrides: list[str] = overrides_argument()
    topology: Path | None = option(
        "another host: output of lscpu -p=CPU,CORE,SOCKET,NODE, or a copy of the folder /sys",
        default=None,
        metavar="FILE",
    )
    cpus: frozenset[int] | None = option(
        "use these CPUs only, such as 0-3,8", default=None, parse=cpu_list, metavar="LIST"
    )
    quota: float | None = option(
        "a container's CPU quota, such as 1.5", default=None, parse=cpus_of_time, metavar="CPUS"
    )
    openmp: str | None = option(
        "OpenMP runtime of the variables (default: the one installed on this machine)",
        default=None,
        choices=["gnu", "intel"],
    )
    backend: str | None = option(
        "how gradients go: auto, shared, mpi, gloo or ccl, also if it is not installed here "
        "(default: distributed.backend)",
        default=None,
        metavar="NAME",
    )
    json: Path | None = json_option(
        "also write the plan, with the CPUs and the environment of each rank"
    )


def add_plan(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `plan` to the commands of a command line."""
    add_command(
        commands, "plan", about=ABOUT, examples=EXAMPLES, options=PlanOptions, run=plan_command
    )


def plan_command(options: PlanOptions) -> int:
    """Plan the placement, print it and write it as JSON; return the exit code."""
    topology, backend, cpus = options.topology, options.backend, options.cpus
    chosen = [] if backend is None else [f"distributed.backend={backend}"]
    settings = load_config(options.config, [*options.overrides, *chosen])
    if topology is None and backend is None:
        chosen_backend(settings.distributed.backend)  # refuses one that is not installed here
    host = allowed = read_topology(topology)
    quota = options.quota
    name = socket.gethostname() if topology is None else topology.stem
    # All CPUs of a described host may be used: limits of this process apply to this machine only.
    if topology is None:
        allowance = read_allowance()
        allowed = host.restricted(allowance.cpus)
        quota = allowance.quota if quota is None else quota
    if cpus is not None:
        numbers = frozenset(cpu.cpu for cpu in allowed.cpus)
        if not cpus or not cpus <= numbers:
            raise InputError(
                f"--cpus {format_cpu_list(cpus)}: CPU {format_cpu_list(cpus - numbers)} is not "
                f"available; choose among {format_cpu_list(numbers)}"
            )
        allowed = allowed.restricted(cpus)
    hosts: Sequence[tuple[str, int]] = ((name, options.np or 1),)
    if options.hosts is not None:
        hosts = hosts_with_ranks(options.hosts, ranks=options.np)
    try:
        division = describe_division(settings, ranks=sum(count for _, count in hosts))
    except InputError as error:
        if options.np is not None or options.hosts is not None:
            raise
        raise InputError(f"{error}, or give --np") from error
    plan = configured_plan(
        settings, host, allowed=allowed, quota=quota, hosts=hosts, openmp=options.openmp
    )
    for line in division:
        print(line)
    print_plan(plan)
    if options.json is not None:
        write_json(options.json, plan_as_json(plan))
    return FINISHED
