"""A host drawn as text: a box for each socket, a row for each memory node, a cell for each core."""

from collections.abc import Iterator, Mapping

from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from launch.host.sockets import Core, Node, Socket, sockets_of
from launch.host.topology import Topology
from launch.plan.cells import MARKS, MEANINGS, Cell, cell_of, cell_text, used_cells
from launch.plan.job_plan import HostPlan

FRAME = 4
"""Columns of a box's edges and of the blanks beside them."""


def host_picture(topology: Topology, allowed: Topology, host: HostPlan, *, width: int) -> Group:
    """The sockets of a host with what each core does, and a legend of the signs in it.

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
    """Each core's text, all of one width."""
    numbered = [cell for cell in cells.values() if cell.rank is not None]
    digits = max((len(str(cell.rank)) for cell in numbered), default=1)
    marked = any(MARKS[cell.use] for cell in numbered)
    return {
        core: Text(cell_text(cell, digits=digits, marked=marked), cell.style)
        for core, cell in cells.items()
    }


def socket_box(socket: Socket, texts: Mapping[Core, Text], *, width: int) -> Panel:
    """A socket with the rows of its nodes."""
    label = max(len(f"node {node.number}  ") for node in socket.nodes)
    rows = [
        row
        for node in socket.nodes
        for row in node_rows(node, texts, label=label, width=width - FRAME)
    ]
    title = f"socket {socket.number}"
    return Panel(Text("\n").join(rows), title=title, title_align="left", expand=False)


def node_rows(node: Node, texts: Mapping[Core, Text], *, label: int, width: int) -> Iterator[Text]:
    """The cells of a node's cores, below each other where one row has no room for them."""
    cells = [texts[core] for core in node.cores]
    length = row_length(len(cells), most=max(1, (width - label) // (len(cells[0]) + 1)))
    for first in range(0, len(cells), length):
        name = "" if first else f"node {node.number}"
        yield Text(name.ljust(label)) + Text(" ").join(cells[first : first + length])


def row_length(cells: int, *, most: int) -> int:
    """The longest row of at most `most` that leaves no shorter last one, if half as long at least.

    Otherwise the rows are as long as can be.
    """
    even = [length for length in range(1, most + 1) if cells % length == 0 and 2 * length >= most]
    return min(cells, max(even, default=most))


def legend(cells: Mapping[Core, Cell]) -> Text:
    """The signs that occur, each as it is drawn first."""
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
    """A cell without the blanks that fill it up."""
    return cell_text(cell, digits=0, marked=True).strip()
