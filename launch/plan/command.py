"""`python -m launch plan`: which cores, memory and environment each rank would get."""

import io
import json
import socket
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

from launch.host.allowance import Allowance, read_allowance
from launch.host.cpu_lists import format_cpu_list
from launch.host.topology import Topology, read_topology
from launch.pinning.binding import host_cpus
from launch.pinning.environment import installed_openmp
from launch.place import chosen_backend
from launch.plan.as_json import plan_as_json
from launch.plan.job_plan import Plan, make_plan
from launch.plan.report import print_plan
from launch.ranks import Ranks
from launch.start.hosts import hosts_with_ranks
from launch.start.starting_words import ANY_RANKS_OPTION, ranks_option
from retinanet.batch_split import planned_split
from retinanet.compute_groups import planned_groups
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.configured_place import core_request
from retinanet.errors import InputError
from retinanet.exit_codes import FINISHED
from retinanet.output_files import require_free_json, write_whole

NOT_PINNED = "launch.pin=false: a run puts its ranks nowhere; this is what it would do with true"


def plan_command(
    *,
    ranks: int | None,
    hosts: str | None,
    config: str,
    overrides: list[str],
    topology: Path | None,
    cpus: frozenset[int] | None,
    quota: float | None,
    openmp: str | None,
    backend: str | None,
    json_file: Path | None,
) -> int:
    """Plan, print and write; returns the exit code.

    Raises:
        InputError: The ranks do not fit, or a file cannot be read or written.
    """
    require_free_json(json_file)
    settings = load_config(config, overrides)
    host = read_topology(topology)
    allowance = allowance_for(host, described=topology is not None)
    plan = configured_plan(
        settings,
        host,
        allowed=chosen_cpus(host.restricted(allowance.cpus), cpus),
        quota=allowance.quota if quota is None else quota,
        hosts=planned_hosts(hosts, ranks=ranks, topology=topology),
        openmp=openmp,
        backend=backend,
    )
    print_plan(plan)
    if json_file is not None:
        write_whole(json_file, json.dumps(plan_as_json(plan), indent=1, ensure_ascii=False))
    return FINISHED


def print_plan_here(settings: Config, ranks: Ranks) -> None:
    """The plan of a run that has been started: of the ranks on this host, where nothing binds them.

    How batches are split comes first, unless evenly, and how ranks make groups. Its lines are
    YAML's comments, since they follow a configuration.

    Raises:
        InputError: The ranks do not fit the host, the split or the groups.
    """
    split, batch_size = settings.distributed.batch_split, settings.training.batch_size
    batches = planned_split(split, batch_size=batch_size, ranks=ranks.size)
    groups = planned_groups(settings.distributed.groups, ranks=ranks.size)
    host = read_topology()
    plan = configured_plan(
        settings,
        host,
        allowed=host.restricted(host_cpus(ranks)),
        quota=read_allowance().quota,
        hosts=((socket.gethostname(), ranks.local_size),),
        option=ranks_option(ranks.launcher),
    )
    # In stdout's encoding, since tables are drawn with the characters that it has.
    shown = io.TextIOWrapper(io.BytesIO(), encoding=sys.stdout.encoding, errors="backslashreplace")
    with redirect_stdout(shown):
        print_plan(plan)
    shown.seek(0)
    if batches:
        print(f"# batches: {batches}")
    if groups:
        print(f"# compute groups: {groups}")
    for line in shown.read().splitlines():
        print(f"# {line}".rstrip())


def configured_plan(
    settings: Config,
    host: Topology,
    *,
    allowed: Topology,
    quota: float | None,
    hosts: Sequence[tuple[str, int]],
    openmp: str | None = None,
    backend: str | None = None,
    option: str = ANY_RANKS_OPTION,
) -> Plan:
    """`make_plan` with a configuration's wishes; None: what is installed here.

    Raises:
        InputError: The ranks do not fit.
    """
    plan = make_plan(
        host,
        allowed=allowed,
        quota=quota,
        hosts=hosts,
        request=core_request(settings),
        openmp=openmp or installed_openmp(),
        backend=backend or chosen_backend(settings.distributed.backend),
        option=option,
    )
    return plan if settings.launch.pin else replace(plan, notes=(*plan.notes, NOT_PINNED))


def planned_hosts(
    hosts: str | None, *, ranks: int | None, topology: Path | None
) -> tuple[tuple[str, int], ...]:
    """Those of `--hosts`, or one: this machine, or the one that a file describes."""
    if hosts is not None:
        return hosts_with_ranks(hosts, ranks=ranks)
    name = socket.gethostname() if topology is None else topology.stem
    return ((name, ranks or 1),)


def allowance_for(host: Topology, *, described: bool) -> Allowance:
    """What this process may use of this machine, or all of one that is described."""
    if not described:
        return read_allowance()
    return Allowance(
        cpus=frozenset(cpu.cpu for cpu in host.cpus),
        quota=None,
        memory_nodes=frozenset(cpu.node for cpu in host.cpus),
    )


def chosen_cpus(usable: Topology, cpus: frozenset[int] | None) -> Topology:
    """Those of `--cpus`, if it was given.

    Raises:
        InputError: Some may not be used, or are not there; names those that may.
    """
    if cpus is None:
        return usable
    numbers = frozenset(cpu.cpu for cpu in usable.cpus)
    if not cpus or not cpus <= numbers:
        raise InputError(
            f"--cpus {format_cpu_list(cpus)}: the host has no CPU "
            f"{format_cpu_list(cpus - numbers)} to use; choose among {format_cpu_list(numbers)}"
        )
    return usable.restricted(cpus)
