"""What a person reads on the console: the start, a table after each evaluation, the end."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from retinanet.evaluation.metric import Evaluation
from retinanet.printable import printable

SUMMARY_COLUMNS = (
    ("map", "mAP"),
    ("map_50", "mAP50"),
    ("map_75", "mAP75"),
    ("map_small", "small"),
    ("map_medium", "medium"),
    ("map_large", "large"),
)

CLASSES_SHOWN = 5


def print_evaluation(console: Console, evaluation: Evaluation, *, title: str) -> None:
    """The metric by size of object, then the best and the worst classes."""
    # Not as the table's own title, which is broken at the table's width.
    console.print(title, style="italic", highlight=False, soft_wrap=True)
    table = Table()
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
    return ", ".join(f"{printable(name)} {value:.3f}" for name, value in ranked)


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
    console.print(f"\n{headline}", style="bold")
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
