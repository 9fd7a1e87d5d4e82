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
from profiling.peaks import parse_share

BENCH, ABLATE = "profiling.bench.recipes", "profiling.ablate"
RECIPE_MODULES = {
    f"{package}.{recipe}": module
    for package, module, recipes in (
        ("data.bench.recipes", f"{BENCH}.images", "decode loader mlperf pipeline resize"),
        (
            BENCH,
            f"{BENCH}.step",
            "step_torch step_submission step_torchvision ceiling machine bandwidth checkpoint",
        ),
        (
            BENCH,
            f"{BENCH}.parts",
            "focal_loss gradient_norm optimizer_step weight_average postprocessing evaluation",
        ),
        (BENCH, f"{BENCH}.predict", "prediction prediction_files"),
        (BENCH, BENCH, "log metric"),
        (f"{ABLATE}.recipes", f"{ABLATE}.network_recipes", "networks conv_norm_relu"),
        (
            f"{ABLATE}.recipes",
            f"{ABLATE}.training_recipes",
            "training_step short_training ipex_lamb loss_precision convergence_points",
        ),
    )
    for recipe in recipes.split()
}
"""Modules by recipe. Result files name recipes: the names stay wherever the functions are."""


def prepare(specification: dict[str, Any]) -> tuple[dict[str, float], Answering]:
    """Prepare a variant's recipe; return its facts, and the function that answers questions.

    Cores and the memory policy are set first, before torch is loaded.
    """
    options = dict(specification["options"])
    given, pinned = specification["share"], specification["pinned"]
    share = parse_share(given) if given else choose_cores(threads=None) if pinned else None
    # Both ways may start this command again, with a library preloaded. So they come first.
    if share:
        take_cores(share, allocator=specification["allocator"])
    else:
        set_allocator(specification["allocator"])
    if specification["memory"] is not None:
        # The policy applies to pages that are touched from now on; torch's are still to come.
        apply_memory(specification["memory"], allowed=read_allowance().memory_nodes)
    if share:
        # This check loads torch, so it follows the memory policy.
        check_cores(share)
        if pinned:
            options["main_cpus"] = share.main_cpus
    prepare_recipe = load_recipe(specification["recipe"])
    prepared = prepare_recipe(Workload(**specification["workload"]), **options)
    return dict(prepared.facts), lambda question: answer(question, prepared)


def load_recipe(name: str) -> Callable[..., Prepared]:
    """Return the function that prepares a recipe; its module loads torch.

    The name is a key of `RECIPE_MODULES`, whose module has `prepare_NAME`, or a module with
    `prepare`.
    """
    if name not in RECIPE_MODULES:
        return load_function(f"{name}:prepare")
    return load_function(f"{RECIPE_MODULES[name]}:prepare_{name.rpartition('.')[2]}")


def answer(question: str, prepared: Prepared) -> dict[str, Any]:
    """Run once and return the measurement that the question names: for `run`, a `Run`'s fields."""
    if question == "run":
        faults = page_faults()
        start = time.perf_counter()
        details = prepared.run()
        seconds = time.perf_counter() - start
        return {
            "seconds": seconds,
            "page_faults": page_faults() - faults,
            "rss_mb": resident_mb(),
            "peak_rss_mb": peak_resident_mb(),
            "details": dict(details or {}),
        }
    # Loads torch, which not every recipe does.
    from profiling.bench import measured_steps

    if question == "primitives":
        return measured_steps.primitive_seconds(prepared.run)
    if question == "operators":
        events = measured_steps.watched(prepared.run)
        events.sort(key=lambda event: -event.self_cpu_time_total)
        own = {f"{each.key} x{each.count}": each.self_cpu_time_total / 1e6 for each in events}
        return {"operators": own}
    if question == "bytes":
        return {"bytes": measured_steps.bytes_of_run(prepared)}
    assert question == "log"
    return {"log": measured_steps.onednn_lines(prepared.run)}


if __name__ == "__main__":
    serve(prepare)
