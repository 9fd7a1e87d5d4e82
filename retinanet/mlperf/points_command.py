"""`python -m retinanet mlperf points`: what a global batch size costs in epochs."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from retinanet.exit_codes import FINISHED
from retinanet.mlperf.reference_points import (
    Expectation,
    ReferencePoint,
    expectation,
    reference_points,
)
from retinanet.mlperf.rules import Rules, benchmark_name
from retinanet.output_files import require_free, write_whole
from retinanet.terminal import make_console


def points(
    *, rules: Rules, batch_sizes: Sequence[int], chart: Path | None, json_file: Path | None
) -> int:
    """Print the reference points of a rule set, and what they say of other batch sizes.

    Args:
        rules: The rule set.
        batch_sizes: Global ones to look up.
        chart: Where a PNG goes.
        json_file: Where the numbers go too.

    Raises:
        InputError: An output exists.
    """
    outputs = [file for file in (chart, json_file) if file is not None]
    require_free(outputs, overwrite=False, advice="give another name")
    known = reference_points(rules)
    asked = [expectation(known, size) for size in batch_sizes]
    console = make_console(pipe_width=100)
    console.print(points_table(known, rules=rules))
    for one in asked:
        say(console, one)
    if chart is not None:
        from retinanet.mlperf.points_chart import points_chart  # noqa: PLC0415 - matplotlib: 1 s

        write_whole(chart, points_chart(known, asked, rules=rules))
        console.print(f"chart: {chart}", soft_wrap=True, markup=False)
    if json_file is not None:
        content = {
            "rules": rules,
            "benchmark": benchmark_name(rules),
            "points": [{**asdict(one), "mean_epochs": one.mean_epochs} for one in known],
            "asked": [{**asdict(one), "steps": one.steps} for one in asked],
        }
        write_whole(json_file, json.dumps(content, indent=1))
    return FINISHED


def points_table(known: Sequence[ReferencePoint], *, rules: Rules) -> Table:
    """A row a batch size."""
    title = f"epochs to mAP 0.34 of the reference implementation, rules {rules}"
    table = Table(title=title, title_justify="left")
    for heading in ("batch size", "epochs", "normalized", "accepted from", "learning rate"):
        table.add_column(heading, justify="right")
    table.add_column("warm-up", justify="right")
    table.add_column("runs", justify="right")
    for one in known:
        table.add_row(
            str(one.batch_size),
            f"{one.mean_epochs:.2f}",
            f"{one.mean_epochs / known[0].mean_epochs:.2f}",
            f"{one.least_epochs:.2f}",
            f"{one.learning_rate:g}",
            f"{one.warmup_epochs:g} epoch{'' if one.warmup_epochs == 1 else 's'}",
            str(len(one.epochs)),
        )
    return table


def say(console: Console, one: Expectation) -> None:
    """What the points say of a batch size, and the settings that it proposes."""
    console.print(
        f"batch size {one.batch_size} ({one.basis}): {one.mean_epochs:.2f} epochs, "
        f"{one.steps:,} steps\n  training.learning_rate={one.learning_rate:.3g} "
        f"training.warmup_epochs={one.warmup_epochs:g} training.warmup_factor="
        f"{one.warmup_factor:g}",
        soft_wrap=True,
        markup=False,
    )
