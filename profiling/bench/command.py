"""`retinanet profile bench`: its command line, and a benchmark of variants from start to end."""

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from common.cli import add_command, numbers, positive
from common.console import make_console
from common.errors import FINISHED, InputError
from common.files import write_json
from common.machine import slow_bf16
from common.options import flag, json_option, option
from launch.environment import ALLOCATORS, find
from profiling.bench.benchmarks import (
    EVALUATE,
    LOSS,
    OPTIMIZER,
    PREDICT,
    STEP,
    SUBJECT,
    counterpart_findings,
)
from profiling.bench.interpreters import (
    find_interpreter,
    interpreter_with_ipex,
    this_interpreter,
)
from profiling.bench.job import doubling
from profiling.bench.jobs import JOB_BENCHMARKS
from profiling.bench.report import as_json, print_results
from profiling.bench.results import LIMITS, Benchmark, measure, with_files
from profiling.bench.shared import (
    LEADERBOARD_ABOUT,
    LeaderboardOptions,
    bench_leaderboard,
    write_shared,
)
from profiling.bench.single import SINGLE_BENCHMARKS
from profiling.bench.threads import measure_by_threads, print_by_threads, threads_json
from profiling.bench.variant import (
    STANDARD,
    Variant,
    Workload,
    choose,
    with_counterparts,
)
from retinanet.config_types import image_side

ABOUT = """\
Each contestant has its own process with its own memory policy. Contestants run one at a time, in
turn (A B C A B C), so that a temporary slowdown of the machine affects all of them. Ratios are
computed in each round, and the median is reported. Run it on an otherwise idle machine.

With --threads, a step is measured with several numbers of threads, each bound to a core of its own:
first one on each physical core, which is found by measurement, then the hyperthreads. A table shows
which kernel does not scale, beside the machine's matrix products and memory bandwidth.

With --against, each contestant also runs in another environment, such as one with another torch,
in the same rounds. Contestants with IPEX run in the environment of `make ipex`."""

EXAMPLES = """\
examples:
  retinanet profile bench step                                # compare training steps, minutes
  retinanet profile bench step --contestants torch,ceiling    # less than a minute
  retinanet profile bench step --contestants torch --where    # the most expensive operators
  retinanet profile bench step --contestants all --json step.json
  retinanet profile bench step --contestants torch,torch-compiled,torchvision-compiled   # compile
  retinanet profile bench step --contestants torch,torchvision-tuned --beside-load
  retinanet profile bench step --contestants torch --against .venv-old/bin/python
  retinanet profile bench step --threads 1,2,4,8,16           # which kernel does not scale, minutes
  retinanet profile bench step --share my-processor.json      # for docs/leaderboard.md, minutes
  retinanet profile bench leaderboard docs/leaderboard
  retinanet profile bench loss
  retinanet profile bench optimizer
  retinanet profile bench evaluate
  retinanet profile bench predict                             # and other runtimes: tens of minutes
  retinanet profile bench predict --images 1 --image-size 320 --json predict.json
  retinanet profile bench index                               # annotations, minutes
  retinanet profile bench checkpoint                          # saving during training
  retinanet profile bench log                                 # reading a million lines
  retinanet profile bench metric                              # COCO's metric at full size
  retinanet profile bench waiting --config coco.yaml data.root=/data/coco
  retinanet profile bench batch-split                         # one slow rank, minutes"""

HOW_TO_INSTALL = dict.fromkeys(("openvino", "nncf"), "make openvino")
"""Of packages that `make serving` does not bring."""

BENCHMARKS = (STEP, LOSS, OPTIMIZER, EVALUATE, PREDICT)


def add_bench(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `bench` and its benchmarks to the commands of a command line."""
    about = f"Compare the speed of alternative implementations.\n\n{ABOUT}"
    bench = add_command(commands, "bench", about=about, examples=EXAMPLES)
    kinds = bench.add_subparsers(required=True, metavar="BENCHMARK")
    for benchmark in BENCHMARKS:
        names = [
            f"{'*' if variant.by_default else ' '} {variant.name:<20} {variant.about}"
            for variant in benchmark.variants
        ]
        parser = add_command(
            kinds,
            benchmark.name,
            summary=benchmark.about,
            about=f"Time {benchmark.about}.\n\n{ABOUT}",
            examples="\n".join(["contestants:", *names, "", EXAMPLES]),
            options=BenchOptions,
            run=partial(bench_command, benchmark),
        )
        parser.set_defaults(
            rounds=benchmark.rounds,
            warm_up=benchmark.warm_up,
            images=distinct(each.images for each in benchmark.workloads),
            image_size=distinct(each.image_size for each in benchmark.workloads),
        )
    for name, subject, text, options, run in (*JOB_BENCHMARKS, *SINGLE_BENCHMARKS):
        add_command(
            kinds,
            name,
            summary=subject,
            about=f"Time {subject}.\n\n{text}",
            options=options,
            run=run,
        )
    add_command(
        kinds,
        "leaderboard",
        summary="compare the processors of files of `bench step --share`",
        about=LEADERBOARD_ABOUT,
        options=LeaderboardOptions,
        run=bench_leaderboard,
    )


def distinct(values: Iterable[int]) -> str:
    """Return each value once, as they are typed."""
    return ",".join(map(str, dict.fromkeys(values)))


def image_sides(text: str) -> tuple[int, ...]:
    """Parse sides that `data.image_size` permits, such as `320,800`. [pixels]"""
    return tuple(dict.fromkeys(map(image_side, text.split(","))))


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The options of a benchmark with variants; each benchmark has its own numbers of runs."""

    contestants: str | None = option(
        "contestants to run, or `all` (default: those with * below)", default=None, metavar="A,B"
    )
    rounds: int = option("measured runs of each contestant", default=0, parse=positive, metavar="N")
    warm_up: int = option("warm-up runs of each contestant", default=0, parse=positive, metavar="N")
    images: tuple[int, ...] = option(
        "images per batch, one number or several", default="", parse=numbers, metavar="N,…"
    )
    image_size: tuple[int, ...] = option(
        "height and width of the images, one number or several [pixels]",
        default="",
        parse=image_sides,
        metavar="N,…",
    )
    classes: int = option(
        "classes that the head predicts", default=STANDARD.classes, parse=positive, metavar="N"
    )
    where: bool = flag("also print the most expensive operators of a run")
    against: str | None = option(
        "also run each contestant by the Python of another environment, which has this program's "
        "packages in other versions, such as .venv-old/bin/python; and compare",
        default=None,
        metavar="PYTHON",
    )
    beside_load: bool = flag(
        "also measure while another process keeps one core busy (each core in turn); `step` only"
    )
    threads: tuple[int, ...] | None = option(
        "numbers of compute threads, one thread per core: the step, each of its kernels and the "
        "machine's rates with each number; `step` only, by default of the contestant torch",
        default=None,
        parse=numbers,
        metavar="A,B",
    )
    share: Path | None = option(
        "also write the steps by threads to this file, to publish: processor, versions and times, "
        "but nothing that identifies you or the machine; `step` only, by default with 1, 2, 4 … "
        "and all threads",
        default=None,
        metavar="FILE",
        writes=True,
    )
    json: Path | None = json_option()


def bench_command(benchmark: Benchmark, options: BenchOptions) -> int:
    """Run a benchmark, print it and write it; return the exit code."""
    for name, is_given in (
        ("--beside-load", options.beside_load),
        ("--threads", options.threads),
        ("--share", options.share),
    ):
        if is_given and not benchmark.of_steps:
            raise InputError(f"{name}: `bench {benchmark.name}` is not measured so; omit it")
    if options.share and not options.threads:
        options = replace(options, threads=doubling(len(os.sched_getaffinity(0))))
    if options.threads and (options.beside_load or options.against):
        also = "--beside-load" if options.beside_load else "--against"
        by_threads = "--share" if options.share else "--threads"
        raise InputError(f"{by_threads}, {also}: not measured together; omit one of them")
    if options.share and options.contestants not in (None, SUBJECT):
        raise InputError(f"--share, --contestants: only {SUBJECT} is shared; omit one of them")
    console = make_console(stderr=True)
    print_line = partial(console.print, soft_wrap=True)
    by_default = SUBJECT if options.threads else None
    chosen = choose(benchmark.variants, options.contestants or by_default)
    chosen = usable(chosen, print_line, are_named=options.contestants not in (None, "all"))
    if not chosen:
        raise InputError("--contestants: none of them can run here; name others")
    if options.against is not None:
        fix = "give the Python of another environment, such as .venv-old/bin/python"
        other = find_interpreter(options.against, prefix="--against", fix=fix)
        chosen = with_counterparts(chosen, other)
    if options.threads is not None:
        return bench_threads(benchmark, chosen, options, console=console)
    contents, is_alone = [], len(options.image_size) * len(options.images) == 1
    for size in options.image_size:
        workload = Workload(image_size=size, classes=options.classes)
        with with_files(benchmark, chosen, workload, print_line=print_line) as variants:
            for images in options.images:
                contents.append(
                    measured(
                        benchmark, variants, replace(workload, images=images), options, console
                    )
                )
                if options.json is not None:  # Each time: an interruption keeps what is measured
                    several = {"benchmark": benchmark.name, "workloads": contents}
                    write_json(options.json, contents[0] if is_alone else several)
    return FINISHED


def measured(
    benchmark: Benchmark,
    variants: Sequence[Variant],
    workload: Workload,
    options: BenchOptions,
    console: Console,
) -> dict[str, Any]:
    """Measure a workload and print its results; return them for JSON."""
    results = measure(
        benchmark,
        variants,
        workload,
        options.rounds,
        options.warm_up,
        console=console,
        where=options.where,
        with_load=options.beside_load,
    )
    findings = counterpart_findings(results) + benchmark.findings(results.without_counterparts)
    content = as_json(results, findings, benchmark=benchmark.name)
    has_targets = any(finding.target for finding in findings)
    with_targets = has_targets and workload in benchmark.workloads
    print_results(results, content["contestants"], findings, with_targets=with_targets)
    return content


def bench_threads(
    benchmark: Benchmark,
    chosen: Sequence[Variant],
    options: BenchOptions,
    *,
    console: Console,
) -> int:
    """Run the contestants that take a step by threads; print and write; return the exit code."""
    assert options.threads is not None
    if len(options.images) * len(options.image_size) > 1:
        raise InputError("--images, --image-size: give one number of each beside --threads")
    [images], [size] = options.images, options.image_size
    workload = Workload(images=images, image_size=size, classes=options.classes)
    steps = [variant for variant in chosen if variant.recipe not in LIMITS]
    if not steps:
        raise InputError(f"--contestants: {chosen[0].name} takes no step; name others")
    results = measure_by_threads(
        benchmark,
        steps,
        workload,
        options.threads,
        rounds=options.rounds,
        warm_up=options.warm_up,
        where=options.where,
        console=console,
    )
    print_by_threads(results)
    if options.json is not None:
        write_json(options.json, threads_json(results, benchmark=benchmark.name))
    if options.share is not None:
        fault = write_shared(results, options.share)
        advice = f"not for the leaderboard: {fault}" if fault else "look at it, and publish it"
        console.print(f"{options.share}: {advice}; docs/leaderboard.md", soft_wrap=True)
    return FINISHED


def usable(
    variants: Sequence[Variant], print_line: Callable[[str], None], *, are_named: bool
) -> list[Variant]:
    """Return the variants that can run here, each with its Python; a line names each other one.

    What a variant `are_named` lacks beside IPEX is an error of its process.
    """
    placed = []
    for variant in variants:
        allocator, python, lacks = ALLOCATORS.get(variant.allocator), None, ""
        try:
            python = interpreter_with_ipex() if variant.needs_ipex else None
        except InputError as error:
            lacks = str(error)
        here = python or this_interpreter()
        if missing := [name for name in variant.packages if find_spec(name) is None]:
            ways = dict.fromkeys(HOW_TO_INSTALL.get(name, "make serving") for name in missing)
            lacks = f"{' and '.join(missing)} not installed ({'; '.join(ways)})"
        if not lacks and not are_named:
            if allocator is not None and find(allocator) is None:
                package = f"apt-get install {allocator.package}"
                lacks = f"{variant.allocator} is not installed ({package})"
            elif variant.needs_bf16 and slow_bf16():
                lacks = "this processor has no instructions for BF16"
            elif variant.needs_intel_openmp and here.openmp != "intel":
                lacks = f"intel-openmp is not installed in {here.environment}"
        if lacks:
            print_line(f"{variant.name} is skipped: {lacks}")
        else:
            placed.append(replace(variant, interpreter=python))
    return placed
