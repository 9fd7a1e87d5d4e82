"""A benchmark's results as tables for a person and as JSON for programs."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from data.bench.contestants import MLPERF
from data.bench.source import STANDARD_SIZE, Source
from profiling.bench.contestant import Contestant
from profiling.bench.environment import environment
from profiling.bench.finding import Finding, speed_up
from profiling.bench.json_file import contestant_json, findings_json
from profiling.bench.other_load import disturbance
from profiling.bench.report import PIPE_WIDTH, findings_table
from profiling.bench.results import Results
from retinanet.terminal import make_console

TARGET = 2.0
"""Times as many images a second of a core as MLPerf's recipe; for photos at 800×800 pixels."""


def find(results: Results) -> list[Finding]:
    """The pipeline of each decoder against MLPerf's recipe; the first, auto's, has the target."""
    pipelines = [name for name in results.names if name.startswith("pipeline-")]
    return [
        finding
        for place, name in enumerate(pipelines)
        for finding in speed_up(results, name, MLPERF, at_least=TARGET if place == 0 else None)
    ]


def print_results(results: Results, *, source: Source, decoders: Mapping[str, str]) -> None:
    """Everybody's rate, where the pipelines' time goes, and who is how many times as fast."""
    console = make_console(pipe_width=PIPE_WIDTH)
    side = source.image_size
    rounds = len(results.runs[MLPERF])
    title = f"{len(source.photos)} images of {source.name} to {side}×{side}; {rounds} rounds"
    console.print(title, soft_wrap=True)
    console.print(rates_table(results))
    console.print("where the time of an image goes:")
    console.print(stages_table(results))
    console.print(f"decoders: {', '.join(decoders.values())}", soft_wrap=True)
    if source.is_drawn:
        console.print(
            "drawn scenes are smaller and plainer than photos; give --images DIR for your own",
            soft_wrap=True,
        )
    disturbed = disturbance(results.other_cores)
    if disturbed:
        console.print(disturbed, soft_wrap=True)
    with_targets = side == STANDARD_SIZE and not source.is_drawn
    console.print(findings_table(find(results), with_targets=with_targets))


def rates_table(results: Results) -> Table:
    """Images a second by contestant; of one core but for loaders."""
    table = Table()
    table.add_column("contestant")
    headings = ("images/s", "lowest–highest", "ms an image", "page faults an image", "peak MB")
    for heading in headings:
        table.add_column(heading, justify="right")
    kind = ""
    for contestant in results.contestants:
        name, before = contestant.name, kind
        kind = name.split("-", maxsplit=1)[0]
        if before not in ("", kind):
            table.add_section()
        rates = image_rates(results, name)
        table.add_row(
            name,
            f"{median_rate(results, name):.1f}",
            f"{min(rates):.1f}–{max(rates):.1f}",
            f"{1000 / median_rate(results, name):.2f}",
            f"{results.page_faults(name) / results.workload.images:,.0f}",
            f"{results.peak_mb(name):,.0f}",
        )
    return table


def stages_table(results: Results) -> Table:
    """What each stage of a pipeline takes."""
    table = Table()
    table.add_column("contestant")
    table.add_column("stages", overflow="fold")
    for name in results.names:
        stages = stage_milliseconds(results, name)
        if stages:
            text = ", ".join(f"{stage} {value:.2f} ms" for stage, value in stages.items())
            table.add_row(name, text)
    return table


def stage_milliseconds(results: Results, name: str) -> dict[str, float]:
    """Of an image, by stage; empty for contestants of one stage."""
    if name != MLPERF and not name.startswith("pipeline-"):
        return {}
    details = results.details(name)
    return {stage: s / results.workload.images * 1000 for stage, s in details.items()}


def image_rates(results: Results, name: str) -> list[float]:
    """Images a second in every round."""
    return [results.workload.images / run.seconds for run in results.runs[name]]


def median_rate(results: Results, name: str) -> float:
    """Images a second in the median round."""
    return results.workload.images / results.seconds(name)


def as_json(
    results: Results, *, source: Source, decoders: Mapping[str, str], batch_size: int
) -> dict[str, Any]:
    """Rates in images a second, seconds of whole runs, MB of 10⁶ bytes."""
    return {
        "benchmark": "data",
        "source": source.name,
        "images": len(source.photos),
        "image_size": source.image_size,
        "batch_size": batch_size,
        "decoders": dict(decoders),
        "environment": {**environment(), "cores_busy_otherwise": results.other_cores},
        "contestants": {
            one.name: rates_json(results, one) | contestant_json(results, one)
            for one in results.contestants
        },
        "findings": findings_json(find(results)),
    }


def rates_json(results: Results, contestant: Contestant) -> dict[str, Any]:
    """The median rate, and that of every round."""
    name = contestant.name
    return {
        "images_per_s": median_rate(results, name),
        "images_per_s_of_runs": image_rates(results, name),
        "stages_ms": stage_milliseconds(results, name),
    }
