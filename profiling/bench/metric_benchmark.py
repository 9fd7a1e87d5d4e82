"""What COCO's metric costs on a split of OpenImages' size, and whether it is pycocotools'."""

import argparse
import math
import os
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from common.cli import add_json_option, positive
from common.console import make_console
from common.errors import FINISHED
from common.files import require_free_json
from common.machine import peak_resident_mb
from common.processes import Answering, JsonWorker, serve
from profiling.bench.report import put_out
from profiling.bench.results import Finding
from retinanet.mlperf.rules import VALIDATION_IMAGES

FOUND = 300
"""The most boxes that the model's postprocessing keeps."""
TENTH = 10

ABOUT = """\
Generates true boxes and 300 found boxes in each of 24,781 images with the statistics of MLPerf's
validation split, and computes the metric in a process of its own on one core. On a tenth of the
images both libraries compute it, and their numbers are compared. Two minutes."""


def add_metric_benchmark(kinds: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `metric` to the benchmarks of a command line."""
    about = "COCO's metric of a split of OpenImages' size, beside pycocotools on a tenth"
    parser = kinds.add_parser("metric", help=about, description=f"Time {about}.\n\n{ABOUT}")
    for name, default, what in (
        ("--images", VALIDATION_IMAGES, "images"),
        ("--found", FOUND, "boxes found in each"),
    ):
        help_text = f"{what} (default: {default:,})"
        parser.add_argument(name, type=positive, default=default, metavar="N", help=help_text)
    add_json_option(parser)
    parser.set_defaults(run=metric_command)


def metric_command(*, images: int, found: int, json_file: Path | None) -> int:
    """Run the benchmark; returns the exit code.

    Raises:
        InputError: The file for the numbers exists.
    """
    require_free_json(json_file)
    console = make_console()
    tenth = max(1, images // TENTH)
    runs = {}
    for library, of in (
        ("faster-coco-eval", images),
        ("faster-coco-eval", tenth),
        ("pycocotools", tenth),
    ):
        console.print(f"{library}, {of:,} images, {of * found:,} boxes …")
        runs[library, of] = measured_metric(library, images=of, found=found)
    standard = (images, found) == (VALIDATION_IMAGES, FOUND)
    put_out(
        findings_of(runs, images=images, tenth=tenth, with_targets=standard),
        benchmark="metric",
        workload={"images": images, "found": found},
        with_targets=standard,
        json_file=json_file,
    )
    return FINISHED


def measured_metric(library: str, *, images: int, found: int) -> dict[str, Any]:
    """`seconds`, `peak_mb` and `numbers` of one library, in a new process on one core."""
    specification = {"library": library, "images": images, "found": found}
    with closing(JsonWorker("profiling.bench.metric_benchmark", specification)) as worker:
        return worker.ask("measure")


def prepare(specification: dict[str, Any]) -> tuple[dict[str, Any], Answering]:
    """Generate boxes; the answer to any question is what computing their metric took."""
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])  # before numpy counts cores
    import numpy as np

    from profiling.bench.readers import generated_detections, generated_truth
    from retinanet.evaluation.metric import TABLES, coco_metric

    [chosen] = (name for name in TABLES if name == specification["library"])
    random = np.random.default_rng(0)
    truth = generated_truth(images=specification["images"], random=random)
    detections = generated_detections(truth, found=specification["found"], random=random)

    def measure(_: object) -> dict[str, Any]:
        begin = time.perf_counter()
        evaluation = coco_metric(truth, detections, library=chosen)
        seconds = time.perf_counter() - begin
        numbers = list(evaluation.summary.values()) + list(evaluation.per_class.values())
        return {"seconds": seconds, "peak_mb": peak_resident_mb(), "numbers": numbers}

    return {}, measure


def findings_of(
    runs: dict[tuple[str, int], dict[str, Any]], *, images: int, tenth: int, with_targets: bool
) -> list[Finding]:
    """The numbers beside what is wanted."""

    def finding(what: str, value: float, *, shown: str, at_most: float | None) -> Finding:
        return Finding(
            what=what, value=value, shown=shown, at_most=at_most if with_targets else None
        )

    whole = runs["faster-coco-eval", images]
    ours, arbiter = runs["faster-coco-eval", tenth], runs["pycocotools", tenth]
    difference = largest_difference(ours["numbers"], arbiter["numbers"])
    peak_gb = whole["peak_mb"] / 1000
    faster = arbiter["seconds"] / ours["seconds"]
    return [
        finding(
            f"{images:,} images, seconds on one core",
            whole["seconds"],
            shown=f"{whole['seconds']:.1f} s",
            at_most=90,
        ),
        finding("the process at the most, GB", peak_gb, shown=f"{peak_gb:.2f} GB", at_most=4),
        finding(
            f"{tenth:,} images: largest difference to pycocotools, all numbers and classes",
            difference,
            shown=f"{difference:.1e}",
            at_most=1e-9,
        ),
        finding("the same: times as fast", faster, shown=f"{faster:.1f}", at_most=None),
        finding(
            "the same: memory at the most, ours and pycocotools'",
            ours["peak_mb"] / arbiter["peak_mb"],
            shown=f"{ours['peak_mb']:,.0f} MB, {arbiter['peak_mb']:,.0f} MB",
            at_most=None,
        ),
    ]


def largest_difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Of numbers in the same order; nan where only one of them could be measured."""
    known = [
        abs(one - other)
        for one, other in zip(ours, theirs, strict=True)
        if not (math.isnan(one) and math.isnan(other))
    ]
    return math.nan if any(map(math.isnan, known)) else max(known, default=0.0)


if __name__ == "__main__":
    serve(prepare)
