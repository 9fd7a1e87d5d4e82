"""`python -m profiling bench`: its command line, and a benchmark of variants from start to end."""

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from common.cli import add_command, add_json_option
from common.console import make_console
from common.errors import FINISHED
from common.files import require_free_json, write_atomically
from launch.environment import ALLOCATORS, find, installed_openmp
from profiling.bench.benchmarks import EVALUATE, LOSS, OPTIMIZER, STEP
from profiling.bench.jobs import add_batch_split_benchmark, add_waiting_benchmark
from profiling.bench.report import as_json, print_results
from profiling.bench.results import Benchmark, Benchmarks, add_benchmark, add_counts, measure
from profiling.bench.single import add_single_benchmarks
from profiling.bench.variant import STANDARD, Variant, Workload, choose

ABOUT = """\
Each contestant has its own process with its own memory policy. Contestants run one at a time, in
turn (A B C A B C), so that a temporary slowdown of the machine affects all of them. Ratios are
computed in each round, and the median is reported. Run it on an otherwise idle machine."""

EXAMPLES = """\
examples:
  python -m profiling bench step                                # compare training steps, minutes
  python -m profiling bench step --contestants torch,ceiling    # less than a minute
  python -m profiling bench step --contestants torch --where    # the most expensive operators
  python -m profiling bench step --contestants all --json step.json
  python -m profiling bench step --contestants torch,torch-compiled,torchvision-compiled   # compile
  python -m profiling bench step --contestants torch,torchvision-tuned --beside-load
  python -m profiling bench loss
  python -m profiling bench optimizer
  python -m profiling bench evaluate
  python -m profiling bench index                               # annotations, minutes
  python -m profiling bench checkpoint                          # saving during training
  python -m profiling bench log                                 # reading a million lines
  python -m profiling bench metric                              # COCO's metric at full size
  python -m profiling bench waiting --config coco.yaml data.root=/data/coco
  python -m profiling bench batch-split                         # one slow rank, minutes"""

BENCHMARKS = (STEP, LOSS, OPTIMIZER, EVALUATE)


def add_bench(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `bench` and its benchmarks to the commands of a command line."""
    about = f"Compare the speed of alternative implementations.\n\n{ABOUT}"
    bench = add_command(commands, "bench", about=about, examples=EXAMPLES)
    kinds = bench.add_subparsers(required=True, metavar="BENCHMARK")
    for benchmark in BENCHMARKS:
        add_variants_benchmark(kinds, benchmark)
    add_batch_split_benchmark(kinds)
    add_single_benchmarks(kinds)
    add_waiting_benchmark(kinds)


def add_variants_benchmark(kinds: Benchmarks, benchmark: Benchmark) -> None:
    """Add a benchmark with variants to those of the command line."""
    names = [f"  {variant.name:<20} {variant.about}" for variant in benchmark.variants]
    parser = add_benchmark(
        kinds,
        benchmark.name,
        partial(bench_command, benchmark),
        about=benchmark.about,
        text=ABOUT,
        epilog="\n".join(["contestants:", *names, "", EXAMPLES]),
    )
    chosen = ",".join(variant.name for variant in benchmark.variants if variant.by_default)
    parser.add_argument(
        "--contestants",
        dest="variants",
        metavar="A,B",
        help=f"contestants to run, or `all` (default: {chosen})",
    )
    add_counts(
        parser,
        ("--rounds", benchmark.rounds, "measured runs of each contestant"),
        ("--warm-up", benchmark.warm_up, "warm-up runs of each contestant"),
        ("--images", STANDARD.images, "images per batch"),
    )
    size = ("--image-size", STANDARD.image_size, "height and width of the images [pixels]")
    add_counts(parser, size, kind=image_side)
    add_counts(parser, ("--classes", STANDARD.classes, "classes that the head predicts"))
    parser.add_argument(
        "--where", action="store_true", help="also print the most expensive operators of a run"
    )
    if benchmark.beside_load:
        parser.add_argument(
            "--beside-load",
            action="store_true",
            help="also measure while another process keeps one core busy (each core in turn)",
        )
    add_json_option(parser)


def image_side(text: str) -> int:
    """Parse an image side in pixels that is a multiple of 32, for every variant."""
    # torchvision pads images to multiples of 32: its variants would compute on larger ones.
    if not text.isdigit() or int(text) < 64 or int(text) % 32 != 0:
        raise argparse.ArgumentTypeError(f"expected a multiple of 32, at least 64, found {text!r}")
    return int(text)


def bench_command(
    benchmark: Benchmark,
    *,
    variants: str | None,
    rounds: int,
    warm_up: int,
    images: int,
    image_size: int,
    classes: int,
    where: bool,
    beside_load: bool = False,
    json_file: Path | None,
) -> int:
    """Run a benchmark, print it and write it; return the exit code."""
    console = make_console(stderr=True)
    chosen = choose(benchmark.variants, variants)
    # A contestant named explicitly is never skipped: what it lacks is an error.
    if variants in (None, "all"):
        chosen = skip_missing(chosen, console.print)
    require_free_json(json_file)
    workload = Workload(images=images, image_size=image_size, classes=classes)
    results = measure(
        benchmark,
        chosen,
        workload,
        rounds,
        warm_up,
        console=console,
        where=where,
        with_load=beside_load,
    )
    findings = benchmark.findings(results)
    print_results(results, findings)
    if json_file is not None:
        content = as_json(results, findings, benchmark=benchmark.name)
        write_atomically(json_file, json.dumps(content, indent=1, ensure_ascii=False))
    return FINISHED


def skip_missing(variants: Sequence[Variant], print_line: Callable[[str], None]) -> list[Variant]:
    """Return the variants whose packages are installed; print a line about each other variant."""
    usable = []
    for variant in variants:
        allocator = ALLOCATORS.get(variant.allocator)
        if variant.package is not None and find_spec(variant.package) is None:
            problem = f"{variant.package} is not installed"
        elif allocator is not None and find(allocator) is None:
            problem = f"{variant.allocator} is not installed (apt-get install {allocator.package})"
        elif variant.needs_intel_openmp and installed_openmp() != "intel":
            problem = "Intel's OpenMP is not installed (pip install intel-openmp)"
        else:
            usable.append(variant)
            continue
        print_line(f"{variant.name} is skipped: {problem}")
    return usable
