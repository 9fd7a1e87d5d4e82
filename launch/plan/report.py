"""A plan for a person: for hosts that are alike one table of ranks and one picture, then notes."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from rich.table import Table
from rich.text import Text

from launch.host.cpu_lists import format_cpu_list
from launch.host.sockets import describe_sockets, sockets_of
from launch.plan.job_plan import HostPlan, Plan, RankPlan
from launch.plan.picture import host_picture
from retinanet.terminal import make_console

WIDTH = 100
HOSTS_NAMED = 4


def print_plan(plan: Plan) -> None:
    """Print it, in 100 columns at most."""
    console = make_console(pipe_width=WIDTH)
    width = console.width = min(WIDTH, console.width)
    for alike in hosts_alike(plan.hosts):
        console.print(heading(alike), style="bold", markup=False)
        console.print(described_host(plan), markup=False)
        console.print(ranks_table(alike[0].ranks))
        console.print(host_picture(plan.topology, plan.allowed, alike[0], width=width))
        console.print()
    console.print(environment_table([one for host in plan.hosts for one in host.ranks]))
    for note in plan.notes:
        console.print(f"note: {note}", markup=False)


def hosts_alike(hosts: Sequence[HostPlan]) -> list[list[HostPlan]]:
    """Hosts with as many ranks together: their ranks have the same places."""
    alike: dict[int, list[HostPlan]] = {}
    for host in hosts:
        alike.setdefault(len(host.ranks), []).append(host)
    return list(alike.values())


def heading(hosts: Sequence[HostPlan]) -> str:
    """Such as `hosts a and b, the same (ranks 0-3 and 4-7; drawn is a)`."""
    if len(hosts) == 1:
        return f"host {hosts[0].name}, {rank_numbers(hosts[0])}"
    if len(hosts) <= HOSTS_NAMED:
        names = ", ".join(f"{host.name} ({rank_numbers(host)})" for host in hosts)
    else:
        named = f"{hosts[0].name} ({rank_numbers(hosts[0])})"
        names = f"{named} to {hosts[-1].name} ({rank_numbers(hosts[-1])})"
    return f"{len(hosts)} hosts, all the same, {names}; shown is {hosts[0].name}"


def rank_numbers(host: HostPlan) -> str:
    """`rank 3`, or `ranks 0-3`."""
    numbers = [one.rank for one in host.ranks]
    return f"rank{'s' if numbers[1:] else ''} {format_cpu_list(numbers)}"


def described_host(plan: Plan) -> str:
    """Sockets, cores, hyperthreads, and what of them may not be used."""
    sockets = sockets_of(plan.topology)
    threads = max(len(core) for socket in sockets for core in socket.cores)
    parts = [describe_sockets(sockets), *([f"{threads} CPUs a core"] if threads > 1 else [])]
    if plan.allowed != plan.topology:
        allowed = short_list(cpu.cpu for cpu in plan.allowed.cpus)
        parts.append(f"only CPUs {allowed} may be used")
    if plan.quota is not None:
        parts.append(f"CPU quota {plan.quota:g}")
    return ", ".join(parts)


def ranks_table(ranks: Sequence[RankPlan]) -> Table:
    """A row for each rank; columns that nobody fills are left out."""
    table = Table(show_edge=False, pad_edge=False)
    headings = ("rank", "socket", "nodes", "threads", "compute on CPUs", "communicate", "load")
    rows = [
        (
            f"{one.rank}",
            f"{one.share.socket}",
            format_cpu_list(one.share.nodes),
            f"{one.share.threads}",
            short_list(one.share.cpus),
            short_list(one.share.comm_cpus),
            short_list(one.share.loader_cpus),
        )
        for one in ranks
    ]
    used = [place for place in range(len(headings)) if any(row[place] for row in rows)]
    for place in used:
        table.add_column(headings[place], justify="right" if place < 4 else "left")
    for row in rows:
        table.add_row(*(row[place] for place in used))
    return table


def environment_table(ranks: Sequence[RankPlan]) -> Table:
    """Variables that all ranks share, then those that differ, as rank 0 has them."""
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("rank", no_wrap=True)
    table.add_column("environment", overflow="fold")
    first = ranks[0].environment
    shared = {
        name
        for name, value in first.items()
        if all(one.environment.get(name) == value for one in ranks)
    }
    for name in sorted(first, key=lambda name: name not in shared):
        whose = "all" if name in shared else "0, others alike"
        table.add_row(whose, Text(f"{name}={first[name]}", overflow="fold"))
    return table


def short_list(numbers: Iterable[int]) -> str:
    """As the kernel writes it, or as taskset takes every second, third, … CPU: `0-54:2`."""
    ordered = sorted(numbers)
    steps = {after - before for before, after in pairwise(ordered)}
    if len(ordered) > 2 and len(steps) == 1 and steps != {1}:
        return f"{ordered[0]}-{ordered[-1]}:{steps.pop()}"
    return format_cpu_list(ordered)
