"""`retinanet profile layers`: time the layers of a network, print, write."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from common.charts import chart_files, chart_names, save_chart
from common.cli import add_command, numbers, positive
from common.console import make_console, print_line
from common.errors import FINISHED, InputError
from common.files import write_atomically, write_json
from common.machine import environment
from common.options import Outputs, argument, included, option
from launch.limits import read_allowance
from launch.pinning import choose_cores
from profiling.bench.results import background_load
from profiling.bench.variant import CHOICES, Subject, huge_pages_remark, memory_remark, parse_memory
from profiling.layers.report import as_json, draw_layers, layers_csv, print_study
from profiling.layers.study import (
    CLASSIFIER_SIZE,
    DEFAULT_BATCH,
    DEFAULT_SIZE,
    Configuration,
    run_study,
)
from retinanet.config_types import image_side

SWITCH = {"off": (False,), "on": (True,), "both": (False, True)}
SLOW_BF16 = (
    "without oneDNN, BF16 is computed one number at a time; both engines of the 2017 study used "
    "float32: add --precision float32"
)

ABOUT = """\
Time each layer of a network, forward and backward, as `caffe time` does: iterations on one batch
of random images, without an optimizer, averaged. Then the layer-wise study of Awan et al., "An
In-depth Performance Characterization of CPU- and GPU-based DNN Training on Modern Architectures"
(2017): the default engine against the optimized one, threads, memory, forward against backward.

MODEL is retinanet (ours, as a training runs it, 264 classes), alexnet, resnet50 or resnext50
(torchvision's), with random weights. A layer is a module without submodules; if it runs several
times in an iteration, the sum is shown. All other work, such as residual sums, is the row `between
layers`, so that the rows add up to the iteration.

Configurations that are compared run in turn, each in a process of its own. Use a machine on which
nothing else runs."""

EXAMPLES = """\
files in --out DIR: layers.csv, layers.png, layers.svg

examples:
  retinanet profile layers alexnet                                   # about a minute
  retinanet profile layers alexnet --onednn both --precision float32 --out alexnet
  retinanet profile layers retinanet --iterations 10 --out layers    # table and chart
  retinanet profile layers resnet50 --threads 1,2 --json resnet50.json
  retinanet profile layers resnet50 --memory local --memory interleave --huge-pages both"""


BATCHES = ", ".join(f"{name} {count}" for name, count in DEFAULT_BATCH.items())


@dataclass(frozen=True, kw_only=True)
class LayersOptions:
    """The options of `retinanet profile layers`."""

    model: str = argument(", ".join(DEFAULT_BATCH), metavar="MODEL")
    batch: int | None = option(
        f"images in the batch (default: {BATCHES})", default=None, parse=positive, metavar="N"
    )
    image_size: int | None = option(
        "height and width of the images (default: 800 for retinanet, else 224)",
        default=None,
        parse=image_side,
        metavar="N",
    )
    precision: Literal["bf16", "float32"] = option(
        "precision of convolutions and matrix products; bf16: by autocast", default="bf16"
    )
    iterations: int = option("measured iterations", default=50, parse=positive, metavar="N")
    warm_up: int = option(
        "warm-up iterations, not measured", default=3, parse=positive, metavar="N"
    )
    onednn: str | None = option(
        "off: the default engine, torch's operators without oneDNN and without our kernels; on: "
        "the optimized engine; both: compare the two (default: on)",
        default=None,
        choices=tuple(SWITCH),
    )
    threads: tuple[int, ...] | None = option(
        "numbers of compute threads, one per core (default: all cores)",
        default=None,
        parse=numbers,
        metavar="A,B",
    )
    memory: list[str] | None = option(
        f"memory policy, named as in numactl: {CHOICES}; repeat the option to compare",
        default=None,
        action="append",
        metavar="POLICY",
    )
    huge_pages: str = option(
        "let the C library request transparent huge pages; both: with and without",
        default="off",
        nargs="?",
        const="on",
        choices=tuple(SWITCH),
    )
    device: Literal["cpu", "cuda"] = option("cuda: the first GPU", default="cpu")
    outputs: Outputs = included(Outputs, writes=("layers.csv", *chart_names("layers")))


def add_layers(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `layers` to a command line."""
    add_command(
        commands, "layers", about=ABOUT, examples=EXAMPLES, options=LayersOptions, run=run_layers
    )


def run_layers(options: LayersOptions) -> int:
    """Run the study, print it, write it; return the exit code."""
    outputs, model = options.outputs, options.model
    if model not in DEFAULT_BATCH:
        names = ", ".join(DEFAULT_BATCH)
        raise InputError(f"MODEL: {model!r} is not known; choose from {names}")
    subject = Subject(
        model=model,
        batch=options.batch or DEFAULT_BATCH[model],
        image_size=options.image_size or DEFAULT_SIZE.get(model, CLASSIFIER_SIZE),
        precision=options.precision,
        device=options.device,
    )
    configurations = combine(options)
    remarks = option_remarks(subject, configurations)
    progress_console, console = make_console(stderr=True), make_console()
    for remark in remarks:
        print_line(progress_console, remark)
    counts = (options.iterations, options.warm_up)
    with background_load() as others:
        measured = run_study(subject, configurations, *counts, progress_console)
    print_study(console, subject, measured, remarks=remarks, other_cores=others.cores)
    if outputs.json is not None:
        content = as_json(subject, measured, remarks=remarks, other_cores=others.cores)
        write_json(outputs.json, content)
    if outputs.out is not None:
        write_atomically(outputs.out / "layers.csv", layers_csv(measured))
        name = environment()["cpu"] if options.device == "cpu" else measured[0].facts["device"]
        figure = draw_layers(measured, title=f"{subject}; {name}")
        save_chart(figure, *chart_files(outputs.out, "layers"))
        print_line(console, f"table and chart: {outputs.out}")
    return FINISHED


def combine(options: LayersOptions) -> list[Configuration]:
    """Return all combinations of what is to be compared."""
    if options.device == "cuda":
        if options.onednn is not None:
            raise InputError("--onednn: applies to CPUs only; leave it out with --device cuda")
        import torch  # noqa: PLC0415 - it takes seconds to load

        if not torch.cuda.is_available():
            raise InputError("--device: cuda: torch finds no GPU that it can use; leave it out")
    nodes = read_allowance().memory_nodes
    # Wrong policies and numbers of threads are errors now, not in the middle of the study.
    for text in options.memory or ():
        parse_memory(text, allowed=nodes)
    counts = options.threads or (choose_cores(threads=None).threads,)
    for count in counts:
        choose_cores(threads=count)
    engines, pages = SWITCH[options.onednn or "on"], SWITCH[options.huge_pages]
    return [
        Configuration(onednn=engine, threads=count, memory=policy, huge_pages=has_huge)
        for count, policy, has_huge, engine in product(
            counts, options.memory or (None,), pages, engines
        )
    ]


def option_remarks(subject: Subject, configurations: Sequence[Configuration]) -> list[str]:
    """Return notes on options that have no effect on this machine, or an unexpected one."""
    nodes = read_allowance().memory_nodes
    policies = dict.fromkeys(each.memory for each in configurations if each.memory)
    remarks = [memory_remark(text, allowed=nodes) for text in policies]
    if any(each.huge_pages for each in configurations):
        remarks.append(huge_pages_remark())
    if subject.precision == "bf16" and any(not each.onednn for each in configurations):
        remarks.append(SLOW_BF16)
    return [f"note: {line}" for line in remarks if line]
