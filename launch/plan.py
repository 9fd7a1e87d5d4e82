"""The placement of all ranks of a job over one host or several alike: made, printed, and as JSON.

A host is drawn as text: a box for each socket, a row for each memory node, a cell for each core.
Hosts that are alike share one table of ranks and one picture.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from common.console import make_console
from launch.environment import rank_environment
from launch.mpirun import ANY_RANKS_OPTION
from launch.placement import place_ranks, placement_notes
from launch.shares import CoreRequest, Share
from launch.topology import (
    Core,
    Node,
    Socket,
    Topology,
    count_cores,
    describe_sockets,
    format_cpu_list,
    sockets_of,
)


@dataclass(frozen=True, kw_only=True)
class RankPlan:
    """One rank: its part of its host, and its environment."""

    rank: int
    """Over all hosts."""
    share: Share
    environment: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class HostPlan:
    """The ranks of one host."""

    name: str
    ranks: tuple[RankPlan, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A whole job on hosts that are all alike."""

    topology: Topology
    """Every online CPU of a host."""
    allowed: Topology
    """Those that ranks may use."""
    quota: float | None
    """CPUs' worth of time that the ranks of a host may use; None: no limit."""
    hosts: tuple[HostPlan, ...]
    """In order of rank."""
    notes: tuple[str, ...]


def make_plan(
    topology: Topology,
    *,
    allowed: Topology,
    quota: float | None,
    hosts: Sequence[tuple[str, int]],
    request: CoreRequest,
    openmp: str,
    backend: str,
    option: str = ANY_RANKS_OPTION,
) -> Plan:
    """Place every rank.

    Args:
        topology: The CPUs of each host.
        allowed: Those that ranks may use.
        quota: CPUs' worth of time for each host; None: no limit.
        hosts: Names and numbers of ranks; ranks are counted in this order.
        request: Cores for each rank.
        openmp: `gnu` or `intel`: whose variables the environment sets.
        backend: `gloo` or `ccl`, likewise.
        option: How the user sets the number of ranks, for messages.

    Raises:
        InputError: The ranks of some host do not fit; names numbers that do.
    """
    counts = dict.fromkeys(count for _, count in hosts)
    shares = {
        count: place_ranks(allowed, ranks=count, request=request, quota=quota, option=option)
        for count in counts
    }
    firsts = accumulate((count for _, count in hosts), initial=0)
    placed = tuple(
        HostPlan(
            name=name,
            ranks=tuple(
                RankPlan(
                    rank=first + local_rank,
                    share=share,
                    environment=rank_environment(
                        share,
                        openmp=openmp,
                        backend=backend,
                        local_rank=local_rank,
                        local_ranks=count,
                    ),
                )
                for local_rank, share in enumerate(shares[count])
            ),
        )
        for (name, count), first in zip(hosts, firsts, strict=False)
    )
    found = (
        placement_notes(allowed, shares[count], request=request, quota=quota) for count in counts
    )
    return Plan(
        topology=topology,
        allowed=allowed,
        quota=quota,
        hosts=placed,
        notes=tuple(dict.fromkeys(note for of_host in found for note in of_host)),
    )


Use = Literal["compute", "communicate", "load", "floating", "idle", "forbidden"]

MARKS: Mapping[Use, str] = {
    "compute": "",
    "communicate": "c",
    "load": "L",
    "floating": "~",
    "idle": "·",
    "forbidden": "x",
}
"""Beside a rank's number, or alone."""

MEANINGS: Mapping[Use, str] = {
    "compute": "computes",
    "communicate": "communicates",
    "load": "loads images",
    "floating": "ranks move among these cores",
    "idle": "idle",
    "forbidden": "may not be used",
}

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


@dataclass(frozen=True)
class Cell:
    """What one core does."""

    use: Use
    rank: int | None = None
    style: str = "dim"


def used_cells(host: HostPlan) -> dict[int, Cell]:
    """Return the cell of each CPU that a rank of the host has."""
    cells = {}
    for place, one in enumerate(host.ranks):
        colour = COLOURS[place % len(COLOURS)]
        compute = Cell("compute", one.rank, f"black on {colour}")
        if one.share.floating:
            compute = Cell("floating", style="bold cyan")
        cells.update(dict.fromkeys(one.share.cpus, compute))
        cells.update(
            dict.fromkeys(one.share.comm_cpus, Cell("communicate", one.rank, f"bold {colour}"))
        )
        cells.update(dict.fromkeys(one.share.loader_cpus, Cell("load", one.rank, colour)))
    return cells


def cell_of(core: Core, used: Mapping[int, Cell], allowed: frozenset[int]) -> Cell:
    """Return the cell of a core, of whichever of its CPUs a rank has."""
    for cpu in core:
        if cpu in used:
            return used[cpu]
    return Cell("forbidden" if allowed.isdisjoint(core) else "idle")


def cell_text(cell: Cell, *, digits: int, marked: bool) -> str:
    """Return a text of fixed width: a number, and where any is marked a column for the mark."""
    mark = MARKS[cell.use]
    if cell.rank is None:
        return mark.rjust(digits) + " " * marked
    return f"{cell.rank:>{digits}}" + mark.ljust(1) * marked


FRAME = 4
"""Columns of a box's edges and of the blanks beside them."""


def host_picture(topology: Topology, allowed: Topology, host: HostPlan, *, width: int) -> Group:
    """Return the sockets of a host with what each core does, and a legend of the signs.

    Args:
        topology: All CPUs of the host.
        allowed: Those that ranks may use.
        host: The ranks to draw.
        width: Columns that there are.
    """
    used = used_cells(host)
    usable = frozenset(cpu.cpu for cpu in allowed.cpus)
    sockets = sockets_of(topology)
    cells = {core: cell_of(core, used, usable) for socket in sockets for core in socket.cores}
    texts = drawn_cells(cells)
    return Group(*(socket_box(socket, texts, width=width) for socket in sockets), legend(cells))


def drawn_cells(cells: Mapping[Core, Cell]) -> dict[Core, Text]:
    """Return each core's text, all of one width."""
    numbered = [cell for cell in cells.values() if cell.rank is not None]
    digits = max((len(str(cell.rank)) for cell in numbered), default=1)
    marked = any(MARKS[cell.use] for cell in numbered)
    return {
        core: Text(cell_text(cell, digits=digits, marked=marked), cell.style)
        for core, cell in cells.items()
    }


def socket_box(socket: Socket, texts: Mapping[Core, Text], *, width: int) -> Panel:
    """Return a socket with the rows of its nodes."""
    label = max(len(f"node {node.number}  ") for node in socket.nodes)
    rows = [
        row
        for node in socket.nodes
        for row in node_rows(node, texts, label=label, width=width - FRAME)
    ]
    title = f"socket {socket.number}"
    return Panel(Text("\n").join(rows), title=title, title_align="left", expand=False)


def node_rows(node: Node, texts: Mapping[Core, Text], *, label: int, width: int) -> Iterator[Text]:
    """Return the cells of a node's cores, below each other where one row has no room for them."""
    cells = [texts[core] for core in node.cores]
    length = row_length(len(cells), most=max(1, (width - label) // (len(cells[0]) + 1)))
    for first in range(0, len(cells), length):
        name = "" if first else f"node {node.number}"
        yield Text(name.ljust(label)) + Text(" ").join(cells[first : first + length])


def row_length(cells: int, *, most: int) -> int:
    """Return the longest row of at most `most` that leaves no shorter last one, if long enough.

    Otherwise the rows are as long as can be.
    """
    even = [length for length in range(1, most + 1) if cells % length == 0 and 2 * length >= most]
    return min(cells, max(even, default=most))


def legend(cells: Mapping[Core, Cell]) -> Text:
    """Return the signs that occur, each as it is drawn first."""
    first: dict[str, Cell] = {}
    for cell in cells.values():
        first.setdefault(cell.use, cell)
    signs = [
        Text.assemble((sign(cell), cell.style), f" {MEANINGS[cell.use]}")
        for cell in (first[use] for use in MARKS if use in first)
    ]
    numbers = any(cell.rank is not None for cell in first.values())
    return Text("  numbers are ranks: " if numbers else "  ") + Text(", ").join(signs)


def sign(cell: Cell) -> str:
    """Return a cell without the blanks that fill it up."""
    return cell_text(cell, digits=0, marked=True).strip()


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
    """Return groups of hosts with as many ranks, whose ranks have the same places."""
    alike: dict[int, list[HostPlan]] = {}
    for host in hosts:
        alike.setdefault(len(host.ranks), []).append(host)
    return list(alike.values())


def heading(hosts: Sequence[HostPlan]) -> str:
    """Return such as `hosts a and b, the same (ranks 0-3 and 4-7; drawn is a)`."""
    if len(hosts) == 1:
        return f"host {hosts[0].name}, {rank_numbers(hosts[0])}"
    if len(hosts) <= HOSTS_NAMED:
        names = ", ".join(f"{host.name} ({rank_numbers(host)})" for host in hosts)
    else:
        named = f"{hosts[0].name} ({rank_numbers(hosts[0])})"
        names = f"{named} to {hosts[-1].name} ({rank_numbers(hosts[-1])})"
    return f"{len(hosts)} hosts, all the same, {names}; shown is {hosts[0].name}"


def rank_numbers(host: HostPlan) -> str:
    """Return `rank 3`, or `ranks 0-3`."""
    numbers = [one.rank for one in host.ranks]
    return f"rank{'s' if numbers[1:] else ''} {format_cpu_list(numbers)}"


def described_host(plan: Plan) -> str:
    """Return sockets, cores, hyperthreads, and what of them may not be used."""
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
    """Return a row for each rank; columns that nobody fills are left out."""
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
    """Return variables that all ranks share, then those that differ, as rank 0 has them."""
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
    """Return as the kernel writes it, or as taskset takes every second, third, … CPU: `0-54:2`."""
    ordered = sorted(numbers)
    steps = {after - before for before, after in pairwise(ordered)}
    if len(ordered) > 2 and len(steps) == 1 and steps != {1}:
        return f"{ordered[0]}-{ordered[-1]}:{steps.pop()}"
    return format_cpu_list(ordered)


def plan_as_json(plan: Plan) -> dict[str, Any]:
    """Return `hosts`, `topology` (of each), `notes`, and `ranks` in order with their variables."""
    sockets = sockets_of(plan.topology)
    return {
        "hosts": [
            {"host": host.name, "ranks": [one.rank for one in host.ranks]} for host in plan.hosts
        ],
        "topology": {
            "sockets": len(sockets),
            "nodes": len({cpu.node for cpu in plan.topology.cpus}),
            "cores": count_cores(sockets),
            "cpus": format_cpu_list(cpu.cpu for cpu in plan.topology.cpus),
            "allowed_cpus": format_cpu_list(cpu.cpu for cpu in plan.allowed.cpus),
            "quota": plan.quota,
        },
        "notes": list(plan.notes),
        "ranks": [rank_as_json(one, host) for host in plan.hosts for one in host.ranks],
    }


def rank_as_json(one: RankPlan, host: HostPlan) -> dict[str, Any]:
    """Return a rank's place and environment."""
    return {
        "rank": one.rank,
        "host": host.name,
        "socket": one.share.socket,
        "nodes": list(one.share.nodes),
        "threads": one.share.threads,
        "floating": one.share.floating,
        "cpus": list(one.share.cpus),
        "comm_cpus": list(one.share.comm_cpus),
        "loader_cpus": list(one.share.loader_cpus),
        "env": one.environment,
    }
