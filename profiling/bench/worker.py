"""A variant's own process, a `common.processes.JsonWorker`."""

import time
from collections.abc import Callable
from typing import Any

from common.cli import load_function
from common.machine import page_faults, peak_resident_mb, resident_mb
from common.processes import Answering, serve
from launch.environment import set_allocator
from launch.limits import read_allowance
from launch.pinning import check_cores, choose_cores, take_cores
from profiling.bench.variant import Prepared, Workload, apply_memory

RECIPE_MODULES = {
    f"{names}.{name}": module
    for names, module, recipes in (
        (
            "data.bench.recipes",
            "profiling.bench.recipes.images",
            "decode loader mlperf pipeline resize",
        ),
        (
            "profiling.bench.recipes",
            "profiling.bench.recipes.step",
            "step_torch step_submission step_torchvision ceiling bandwidth checkpoint",
        ),
        (
            "profiling.bench.recipes",
            "profiling.bench.recipes.parts",
            "focal_loss gradient_norm optimizer_step postprocessing evaluation",
        ),
        ("profiling.bench.recipes", "profiling.bench.recipes", "metric"),
        (
            "profiling.ablate.recipes",
            "profiling.ablate.network_recipes",
            "networks conv_norm_relu",
        ),
        (
            "profiling.ablate.recipes",
            "profiling.ablate.training_recipes",
            "training_step short_training ipex_lamb loss_precision convergence_points",
        ),
    )
    for name in recipes.split()
}
"""Where the recipes are that benchmarks, ablations and their result files name."""


def prepare(specification: dict[str, Any]) -> tuple[dict[str, float], Answering]:
    """Prepare a variant's recipe; return its facts, and the function that answers `QUESTIONS`.

    Cores and the memory policy are set first, before torch is loaded.
    """
    if specification["pinned"]:
        take_cores(choose_cores(threads=None), allocator=specification["allocator"])
    else:
        set_allocator(specification["allocator"])
    if specification["memory"] is not None:
        apply_memory(specification["memory"], allowed=read_allowance().memory_nodes)
    options = dict(specification["options"])
    if specification["pinned"]:
        share = choose_cores(threads=None)
        check_cores(share)
        options["main_cpus"] = share.main_cpus
    prepare_recipe = load_recipe(specification["recipe"])
    prepared = prepare_recipe(Workload(**specification["workload"]), **options)
    return dict(prepared.facts), lambda question: QUESTIONS[question](prepared)


def load_recipe(name: str) -> Callable[..., Prepared]:
    """Return the function that prepares a recipe; its module loads torch.

    Result files name recipes, so the names stay what they are wherever the functions live.

    Args:
        name: A key of `RECIPE_MODULES`, whose module has a function `prepare_NAME`; or a module
            with a function `prepare`.
    """
    if name not in RECIPE_MODULES:
        return load_function(f"{name}:prepare")
    return load_function(f"{RECIPE_MODULES[name]}:prepare_{name.rpartition('.')[2]}")


def run(prepared: Prepared) -> dict[str, Any]:
    """Time one run; the fields of `profiling.bench.variant.Run`."""
    faults = page_faults()
    start = time.perf_counter()
    details = prepared.run()
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "page_faults": page_faults() - faults,
        "rss_mb": resident_mb(),
        "peak_rss_mb": peak_resident_mb(),
        "details": dict(details),
    }


def primitives(prepared: Prepared) -> dict[str, Any]:
    """Seconds of one run inside each kind of oneDNN primitive, in our convolutions, and in all."""
    from profiling.bench.measured_steps import kernel_seconds, onednn_seconds, winograd_seconds

    by_kind: dict[str, float] = {}
    seconds = 0.0

    def timed_run() -> None:
        nonlocal seconds  # of the run alone: the profiler takes as long again to start and to end
        start = time.perf_counter()
        prepared.run()
        seconds = time.perf_counter() - start

    with kernel_seconds() as kernels:
        winograd = winograd_seconds(lambda: by_kind.update(onednn_seconds(timed_run)))
    return {
        "seconds": seconds,
        "primitives": by_kind,
        "winograd": winograd,
        "kernels": kernels,
    }


def operators(prepared: Prepared) -> dict[str, Any]:
    """Seconds of one run in each of torch's operators, without what they call."""
    from profiling.bench.measured_steps import operator_seconds

    return {"operators": operator_seconds(prepared.run)}


def onednn_log(prepared: Prepared) -> dict[str, Any]:
    """What oneDNN says of one run."""
    from profiling.bench.measured_steps import onednn_lines

    return {"log": onednn_lines(prepared.run)}


def bytes_moved(prepared: Prepared) -> dict[str, Any]:
    """Bytes that the operators of one run move: phase, operator, calls, bytes read and written."""
    from profiling.bench.measured_steps import bytes_of_run

    return {"bytes": bytes_of_run(prepared)}


QUESTIONS = {
    "run": run,
    "primitives": primitives,
    "operators": operators,
    "bytes": bytes_moved,
    "log": onednn_log,
}


if __name__ == "__main__":
    serve(prepare)
