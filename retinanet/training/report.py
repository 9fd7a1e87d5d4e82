"""What a person reads on the console: the start, a table after each evaluation, the end."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from launch.group.process_group import ProcessGroup
from launch.host.cpu_lists import format_cpu_list
from launch.place import Place
from retinanet.training.coco_metric import Evaluation

SUMMARY_COLUMNS = (
    ("map", "mAP"),
    ("map_50", "mAP50"),
    ("map_75", "mAP75"),
    ("map_small", "small"),
    ("map_medium", "medium"),
    ("map_large", "large"),
)

CLASSES_SHOWN = 5


def describe_ranks(group: ProcessGroup, place: Place, *, way: str, compress: str) -> dict[str, str]:
    """How many ranks there are, who exchanges their gradients, and where rank 0 runs."""
    share = place.pinned.share
    cores = f"CPUs {format_cpu_list(share.cpus)}, memory of {nodes_named(share.nodes)}"
    if not place.pinned.enabled:
        cores = "where the system puts them (launch.pin=false)"
    if group.size == 1:
        return {"cores": cores}
    hosts = list(dict.fromkeys(group.hosts))
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts, {hosts[0]} to {hosts[-1]}"
    by = f"gradients by {way}" + (" in bf16" if compress == "bf16" else "")
    if way == "gloo":
        by += "; three times as fast with ccl, which needs oneccl_bindings_for_pytorch"
    return {"ranks": f"{group.size} on {where}, {by}", "cores": f"rank 0: {cores}"}


def nodes_named(nodes: Sequence[int]) -> str:
    """Such as `node 0` or `nodes 0-1`."""
    return f"node{'s' if len(nodes) > 1 else ''} {format_cpu_list(nodes)}"


def print_evaluation(console: Console, evaluation: Evaluation, *, title: str) -> None:
    """The metric by size of object, then the best and the worst classes."""
    table = Table(title=title, title_justify="left")
    for _, heading in SUMMARY_COLUMNS:
        table.add_column(heading, justify="right")
    table.add_row(*(shown(evaluation.summary[name]) for name, _ in SUMMARY_COLUMNS))
    console.print(table)
    ranked = sorted(evaluation.per_class.items(), key=lambda item: -item[1])
    if not ranked:
        console.print("no true boxes in this split: no class can be measured")
    elif len(ranked) <= 2 * CLASSES_SHOWN:
        console.print(f"mAP by class: {class_list(ranked)}")
    else:
        console.print(f"best classes:  {class_list(ranked[:CLASSES_SHOWN])}")
        console.print(f"worst classes: {class_list(ranked[-CLASSES_SHOWN:])}")


def class_list(ranked: Sequence[tuple[str, float]]) -> str:
    """Classes with their mAP, on one line."""
    return ", ".join(f"{name} {value:.3f}" for name, value in ranked)


def shown(value: float) -> str:
    """Three digits, or a dash where there was nothing to measure."""
    return "–" if math.isnan(value) else f"{value:.3f}"


def print_summary(
    console: Console,
    *,
    headline: str,
    paths: dict[str, Path],
    facts: dict[str, str],
    next_commands: Sequence[str],
) -> None:
    """The last words of a run: how it ended, where its work lies, what to know and to try next."""
    console.print(f"\n[bold]{headline}[/bold]")
    rows = {**paths, **facts}
    width = max(len(name) for name in rows)
    for name, value in rows.items():
        console.print(f"  {name:<{width}}  {value}", soft_wrap=True)
    if next_commands:
        console.print("next:")
        for command in next_commands:
            console.print(f"  {command}", soft_wrap=True, markup=False)


def describe_run(console: Console, rows: dict[str, Any]) -> None:
    """The first words of a run: a name and a value a line."""
    width = max(len(name) for name in rows)
    for name, value in rows.items():
        console.print(f"{name:<{width}}  {value}", soft_wrap=True, markup=False)
