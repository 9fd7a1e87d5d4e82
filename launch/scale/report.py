"""A scaling study as a person reads it."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from launch.placement.fitting import count_ranks
from launch.scale.combinations import Combination
from launch.scale.numbers import Measured, efficiency, smallest

DOES_NOT_FIT = "–"
NOT_MEASURED = "?"

MEANING = """\
waiting for data: of the step, until a rank had its images
waiting for gradients: of the step, between the last gradient and the average over all ranks
exchange adds: how much longer the step is than its neighbour in which no gradients were exchanged;
  also what the exchange takes from the computing beside it. Around 0: too little to see"""
WEAK = "efficiency: throughput against that of the fewest ranks of as many threads, times as many"


def print_study(
    console: Console,
    combinations: Sequence[Combination],
    measured: Sequence[Measured],
    *,
    weak: bool,
) -> None:
    """Both tables, what their words mean, what did not fit, and what ranks said of their places.

    Args:
        console: Where to.
        combinations: All that were asked for.
        measured: Those that have run.
        weak: Whether each rank had as many images, so that efficiencies mean something.
    """
    base = smallest(measured)
    smallest_name = f"{base.combination.name}, {base.images_per_second:.3g} images/s"
    console.print(f"throughput; 1.00: {smallest_name}", soft_wrap=True)
    console.print(throughput_table(combinations, measured))
    console.print(step_table(measured, weak=weak))
    console.print(f"{WEAK}\n{MEANING}" if weak else MEANING, soft_wrap=True)
    for line in (*misfits(combinations), *notes(measured)):
        console.print(line, soft_wrap=True, markup=False)


def throughput_table(combinations: Sequence[Combination], measured: Sequence[Measured]) -> Table:
    """The paper's Table 3: threads down, ranks across, 1.00 for the smallest combination."""
    base = smallest(measured).images_per_second
    table = Table()
    table.add_column("threads a rank", justify="right")
    ranks = list(dict.fromkeys(one.ranks for one in combinations))
    for count in ranks:
        table.add_column(count_ranks(count), justify="right")
    found = {one.combination: one.images_per_second for one in measured}
    for threads in dict.fromkeys(one.threads for one in combinations):
        cells = [
            cell(one, found.get(one), base=base) for one in combinations if one.threads == threads
        ]
        table.add_row(str(threads), *cells)
    return table


def cell(one: Combination, images_per_second: float | None, *, base: float) -> str:
    """The normalized throughput, or why there is none."""
    if one.misfit:
        return DOES_NOT_FIT
    return NOT_MEASURED if images_per_second is None else f"{images_per_second / base:.2f}"


def step_table(measured: Sequence[Measured], *, weak: bool) -> Table:
    """A row for each combination that has run."""
    table = Table()
    headings = ("ranks", "threads\na rank", "images\na step", "step", "images/s", "efficiency",
                "waiting\nfor data", "waiting for\ngradients", "exchange\nadds")  # fmt: skip
    for heading in headings:
        if weak or heading != "efficiency":
            table.add_column(heading, justify="right", vertical="bottom")
    for one in measured:
        of_ideal = [percent(efficiency(one, measured))] if weak else []
        table.add_row(
            str(one.combination.ranks),
            str(one.combination.threads),
            str(one.combination.images),
            f"{one.step_seconds:.3g} s",
            f"{one.images_per_second:.3g}",
            *of_ideal,
            percent(one.data_share),
            percent(one.exposed_share),
            percent(one.added_share),
        )
    return table


def percent(part: float | None) -> str:
    """With one decimal; empty where there is nothing to say."""
    return "" if part is None else f"{part:.1%}"


def misfits(combinations: Sequence[Combination]) -> list[str]:
    """A line for each reason."""
    reasons: dict[str, list[str]] = {}
    for one in combinations:
        if one.misfit:
            reasons.setdefault(one.misfit, []).append(f"{one.ranks} × {one.threads}")
    return [f"{DOES_NOT_FIT} {', '.join(names)}: {why}" for why, names in reasons.items()]


def notes(measured: Sequence[Measured]) -> list[str]:
    """What ranks said of their places, a line for each sentence, with the combinations."""
    said: dict[str, dict[str, None]] = {}
    for one in measured:
        shape = f"{one.combination.ranks} × {one.combination.threads}"
        for note in (note for job in one.jobs for rank in job for note in rank.notes):
            said.setdefault(note, {})[shape] = None
    return [f"note: {', '.join(shapes)}: {note}" for note, shapes in said.items()]
