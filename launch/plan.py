"""The placement of all ranks of a job on one or several equal hosts, as a plan, text and JSON.

A host is drawn as text: a box for each socket, a row for each memory node, a cell for each core.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from rich import table as rich_table
from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from common.charts import Column, Table, table_rows, text_column
from common.console import make_console
from launch.environment import rank_environment
from launch.placement import place_ranks, placement_notes
from launch.ranks import ANY_RANKS_OPTION
from launch.shares import CoreRequest, Share
from launch.topology import (
    Topology,
    describe_sockets,
    format_cpu_list,
    format_ranks,
    list_sockets,
)


@dataclass(frozen=True, kw_only=True)
class RankPlan:
    """One rank, counted over all hosts: its part of its host, and its environment."""

    rank: int
    share: Share
    environment: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class HostPlan:
    """The ranks of one host."""

    name: str
    ranks: tuple[RankPlan, ...]

    @property
    def numbers(self) -> list[int]:
        """The numbers of its ranks."""
        return [item.rank for item in self.ranks]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A complete job on equal hosts."""

    topology: Topology  # Every online CPU of a host
    allowed: Topology  # Those that ranks may use
    quota: float | None  # CPUs' worth of time that the ranks of a host may use; None: no limit
    hosts: tuple[HostPlan, ...]
    notes: tuple[str, ...]
    gradients: str = ""  # How they will go; empty for one rank


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
    """Place every rank on `hosts`: names and numbers of ranks, which are counted in this order.

    `topology`, `quota` and the `allowed` CPUs are those of each host. Variables are those of
    `openmp` (`gnu` or `intel`) and `backend` (see `distributed.backend`).

    Raises:
        InputError: The ranks of some host do not fit; names numbers that do.
    """
    shares, notes = {}, []
    # Hosts are equal, so that all with the same number of ranks have the same placement.
    for count in dict.fromkeys(count for _, count in hosts):
        placed = place_ranks(allowed, ranks=count, request=request, quota=quota, option=option)
        notes += placement_notes(allowed, placed, request=request, quota=quota)
        shares[count] = placed

    def plan_ranks(count: int, first: int) -> Iterator[RankPlan]:
        for local_rank, share in enumerate(shares[count]):
            environment = rank_environment(
                share, openmp=openmp, backend=backend, local_rank=local_rank, local_ranks=count
            )
            yield RankPlan(rank=first + local_rank, share=share, environment=environment)

    planned: list[HostPlan] = []
    first = 0
    for name, count in hosts:
        planned.append(HostPlan(name=name, ranks=tuple(plan_ranks(count, first))))
        first += count
    return Plan(
        topology=topology,
        allowed=allowed,
        quota=quota,
        hosts=tuple(planned),
        notes=tuple(dict.fromkeys(notes)),
    )


class Cell(NamedTuple):
    """A use of a core, and where a rank uses it alone, the rank."""

    mark: str
    meaning: str
    rank: int | None = None
    style: str = "dim"

    def text(self, *, digits: int, marked: bool) -> str:
        """Return a text of fixed width: a number, and where any is marked a column for the mark."""
        if self.rank is None:
            return self.mark.rjust(digits) + " " * marked
        return f"{self.rank:>{digits}}" + self.mark.ljust(1) * marked


COMPUTE = Cell("", "computes")
COMMUNICATE = Cell("c", "communicates")
LOAD = Cell("L", "loads images")
FLOATING = Cell("~", "shared by ranks that are not bound", style="bold cyan")
IDLE = Cell("·", "idle")
FORBIDDEN = Cell("x", "not allowed")
USES = (COMPUTE, COMMUNICATE, LOAD, FLOATING, IDLE, FORBIDDEN)
COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")
FRAME = 4


def host_picture(topology: Topology, allowed: Topology, host: HostPlan, *, width: int) -> Group:
    """Return the sockets of a host with the use of each core, and a legend of the signs."""
    used = used_cells(host)
    usable = frozenset(cpu.cpu for cpu in allowed.cpus)
    sockets = list_sockets(topology)
    cells = {}
    for core in (core for socket in sockets for core in socket.cores):
        unused = FORBIDDEN if usable.isdisjoint(core) else IDLE
        # A share names one CPU of each core that computes, and all CPUs of one that loads images.
        cells[core] = next((used[cpu] for cpu in core if cpu in used), unused)
    numbered = [cell for cell in cells.values() if cell.rank is not None]
    digits = max((len(str(cell.rank)) for cell in numbered), default=1)
    marked = any(cell.mark for cell in numbered)
    texts = {
        core: Text(cell.text(digits=digits, marked=marked), cell.style)
        for core, cell in cells.items()
    }
    boxes = []
    for socket in sockets:
        label = max(len(f"node {node.number}  ") for node in socket.nodes)
        rows = []
        for node in socket.nodes:  # below each other where one row has no room for its cores
            row = [texts[core] for core in node.cores]
            room = (width - FRAME - label) // (len(row[0]) + 1)
            length = row_length(len(row), most=max(1, room))
            for first in range(0, len(row), length):
                name = Text(("" if first else f"node {node.number}").ljust(label))
                rows.append(name + Text(" ").join(row[first : first + length]))
        title = f"socket {socket.number}"
        boxes.append(Panel(Text("\n").join(rows), title=title, title_align="left", expand=False))
    return Group(*boxes, legend([*cells.values()]))


def used_cells(host: HostPlan) -> dict[int, Cell]:
    """Return the cell of each CPU that a rank of the host has."""
    cells: dict[int, Cell] = {}
    for place, item in enumerate(host.ranks):
        rank, share, colour = item.rank, item.share, COLOURS[place % len(COLOURS)]
        bound = COMPUTE._replace(rank=rank, style=f"black on {colour}")
        cells |= dict.fromkeys(share.cpus, FLOATING if share.floating else bound)
        communicate = COMMUNICATE._replace(rank=rank, style=f"bold {colour}")
        cells |= dict.fromkeys(share.comm_cpus, communicate)
        cells |= dict.fromkeys(share.loader_cpus, LOAD._replace(rank=rank, style=colour))
    return cells


def row_length(cells: int, *, most: int) -> int:
    """Return the longest row length without a shorter last row; if short, the longest."""
    even = [length for length in range(1, most + 1) if cells % length == 0 and 2 * length >= most]
    return min(cells, max(even, default=most))


def legend(cells: Sequence[Cell]) -> Text:
    """Return a legend of the signs in the picture, each as in its first cell."""
    first = {cell.meaning: cell for cell in reversed(cells)}
    signs = []
    for cell in (first[use.meaning] for use in USES if use.meaning in first):
        sign = cell.text(digits=0, marked=True).strip()
        signs.append(Text.assemble((sign, cell.style), f" {cell.meaning}"))
    has_numbers = any(cell.rank is not None for cell in first.values())
    return Text("  numbers are ranks: " if has_numbers else "  ") + Text(", ").join(signs)


WIDTH = 100
HOSTS_NAMED = 4


def print_plan(plan: Plan) -> None:
    """Print the plan, at most 100 columns wide."""
    console = make_console(pipe_width=WIDTH)
    width = console.width = min(WIDTH, console.width)
    alike: dict[int, list[HostPlan]] = {}
    for host in plan.hosts:  # with as many ranks, these have the same places
        alike.setdefault(len(host.ranks), []).append(host)
    for hosts in alike.values():
        names = [f"{host.name} ({format_ranks(host.numbers)})" for host in hosts]
        listed = ", ".join(names) if len(hosts) <= HOSTS_NAMED else f"{names[0]} to {names[-1]}"
        heading = f"{len(hosts)} equal hosts, {listed}; shown: {hosts[0].name}"
        if len(hosts) == 1:
            heading = f"host {hosts[0].name}, {format_ranks(hosts[0].numbers)}"
        console.print(heading, style="bold", markup=False)
        console.print(describe_host(plan), markup=False)
        places = table_rows(RANK_COLUMNS, hosts[0].ranks)
        console.print(without_edges(Table("", RANK_COLUMNS, places).without_empty_columns()))
        console.print(host_picture(plan.topology, plan.allowed, hosts[0], width=width))
        console.print()
    ranks = [rank for host in plan.hosts for rank in host.ranks]
    rows = []  # variables that all ranks share, then those that differ, as rank 0 has them
    for name, value in ranks[0].environment.items():
        is_shared = all(item.environment.get(name) == value for item in ranks)
        rows.append(("all" if is_shared else "0 (others similar)", f"{name}={value}"))
    rows.sort(key=lambda row: row[0] != "all")
    columns = (text_column("rank", no_wrap=True), text_column("environment"))
    console.print(without_edges(Table("", columns, rows)))
    if plan.gradients:
        console.print(f"gradients {plan.gradients}", markup=False)
    for note in plan.notes:
        console.print(f"note: {note}", markup=False)


def describe_host(plan: Plan) -> str:
    """Return sockets, cores and hyperthreads, and which of them may be used."""
    sockets = list_sockets(plan.topology)
    threads = max(len(core) for socket in sockets for core in socket.cores)
    parts = [describe_sockets(sockets), *([f"{threads} CPUs per core"] if threads > 1 else [])]
    if plan.allowed != plan.topology:
        allowed = short_list(cpu.cpu for cpu in plan.allowed.cpus)
        parts.append(f"only CPUs {allowed} may be used")
    if plan.quota is not None:
        parts.append(f"CPU quota {plan.quota:g}")
    return ", ".join(parts)


def without_edges(table: Table) -> rich_table.Table:
    """Return a table for the console without a frame."""
    framed = table.for_console()
    framed.show_edge = framed.pad_edge = False
    return framed


def short_list(numbers: Iterable[int]) -> str:
    """Format CPUs as a kernel list, or with a stride as in taskset: `0-54:2`."""
    ordered = sorted(numbers)
    steps = {after - before for before, after in pairwise(ordered)}
    if len(ordered) > 2 and len(steps) == 1 and steps != {1}:
        return f"{ordered[0]}-{ordered[-1]}:{steps.pop()}"
    return format_cpu_list(ordered)


RANK_COLUMNS = (
    Column("rank"),
    Column("socket", name="share.socket"),
    Column("nodes", format_cpu_list, name="share.nodes"),
    Column("threads", name="share.threads"),
    Column("compute on CPUs", short_list, name="share.cpus", is_number=False),
    Column("communicate", short_list, name="share.comm_cpus", is_number=False),
    Column("load images", short_list, name="share.loader_cpus", is_number=False),
)
SHARE_FIELDS = ("socket", "nodes", "threads", "floating", "cpus", "comm_cpus", "loader_cpus")


def plan_as_json(plan: Plan) -> dict[str, Any]:
    """Return `hosts`, `topology` (of each), `gradients`, `notes`, and `ranks` in order."""
    sockets = list_sockets(plan.topology)
    return {
        "hosts": [{"host": host.name, "ranks": host.numbers} for host in plan.hosts],
        "topology": {
            "sockets": len(sockets),
            "nodes": len({cpu.node for cpu in plan.topology.cpus}),
            "cores": plan.topology.core_count,
            "cpus": format_cpu_list(cpu.cpu for cpu in plan.topology.cpus),
            "allowed_cpus": format_cpu_list(cpu.cpu for cpu in plan.allowed.cpus),
            "quota": plan.quota,
        },
        "gradients": plan.gradients,
        "notes": list(plan.notes),
        "ranks": [
            {
                "rank": item.rank,
                "host": host.name,
                **{name: getattr(item.share, name) for name in SHARE_FIELDS},
                "env": item.environment,
            }
            for host in plan.hosts
            for item in host.ranks
        ],
    }
