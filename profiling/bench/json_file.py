"""A benchmark's results as JSON for programs."""

from collections.abc import Sequence
from typing import Any

from profiling.bench.contestant import Contestant
from profiling.bench.environment import environment
from profiling.bench.finding import Finding
from profiling.bench.results import Results
from profiling.bench.step_findings import step_gflops


def as_json(results: Results, findings: Sequence[Finding], *, benchmark: str) -> dict[str, Any]:
    """Seconds, MB of 10⁶ bytes; `ratios` are times as fast, such as `torch/torchvision`: 4.6."""
    pairs = [(one, other) for one in results.names for other in results.names if one != other]
    ratios = {f"{one}/{other}": results.ratio(one, other) for one, other in pairs}
    return {
        "benchmark": benchmark,
        "workload": vars(results.workload),
        "environment": {**environment(), "cores_busy_otherwise": results.other_cores},
        "contestants": {one.name: contestant_json(results, one) for one in results.contestants},
        "ratios": {name: ratio.median for name, ratio in ratios.items()},
        "ratio_ranges": {name: [ratio.lowest, ratio.highest] for name, ratio in ratios.items()},
        "findings": findings_json(findings),
    }


def findings_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """What was found, beside what is wanted."""
    return [
        {
            "what": one.what,
            "value": one.value,
            "shown": one.shown,
            "target": one.target,
            "met": one.is_met,
        }
        for one in findings
    ]


def contestant_json(results: Results, contestant: Contestant) -> dict[str, Any]:
    """One contestant's numbers; what was not measured is left out."""
    name = contestant.name
    runs = results.runs[name]
    content: dict[str, Any] = {
        "allocator": contestant.allocator,
        "median_s": results.seconds(name),
        "runs_s": [run.seconds for run in runs],
        "page_faults": results.page_faults(name),
        "page_faults_of_runs": [run.page_faults for run in runs],
        "peak_rss_mb": results.peak_mb(name),
        "rss_mb": runs[-1].rss_mb,
        "details": results.details(name),
        "facts": dict(results.facts.get(name, {})),
    }
    if name in results.loaded_runs:
        content["beside_load_s"] = [run.seconds for run in results.loaded_runs[name]]
        content["times_as_long_beside_load"] = results.slowdown(name).median
    gflops = step_gflops(results, name)
    if gflops is not None:
        content["gflop_per_s"] = gflops
    if name in results.primitives:
        primitives = results.primitives[name]
        content["convolving_share"] = primitives.convolving_share
        content["onednn_share"] = primitives.onednn_share
        content["onednn_s"] = dict(primitives.by_kind)
        content["winograd_s"] = primitives.winograd_seconds
        content["kernels_s"] = dict(primitives.kernel_seconds)
    if name in results.bytes_moved:
        content["gigabytes_moved"] = results.gigabytes(name)
        content["gigabytes_moved_by_phase"] = results.gigabytes_by_phase(name)
        content["bytes_moved"] = [row._asdict() for row in results.bytes_moved[name]]
    if name in results.operators:
        content["operators_s"] = dict(results.operators[name])
    return content
