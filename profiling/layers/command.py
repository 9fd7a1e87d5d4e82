"""`python -m profiling layers`: time the layers of a network, print, write."""

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from common.charts import chart_files, save_chart
from common.cli import add_command, add_output_options, numbers, positive
from common.console import make_console
from common.errors import FINISHED, InputError
from common.files import require_free_json, require_free_outputs, write_atomically
from common.machine import environment
from launch.limits import read_allowance
from launch.pinning import choose_cores
from profiling.bench.command import image_side
from profiling.bench.results import add_counts, background_load
from profiling.bench.variant import CHOICES, Subject, huge_pages_remark, memory_remark, parse_memory
from profiling.layers.report import as_json, draw_layers, layers_csv, print_study
from profiling.layers.study import (
    CLASSIFIER_SIZE,
    DEFAULT_BATCH,
    DEFAULT_SIZE,
    Configuration,
    require_gpu,
    run_study,
)

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

MODEL is retinanet (ours, as train.py runs it, 264 classes), alexnet, resnet50 or resnext50
(torchvision's), with random weights. A layer is a module without submodules; if it runs several
times in an iteration, the sum is shown. All other work, such as residual sums, is the row `between
layers`, so that the rows add up to the iteration.

Configurations that are compared run in turn, each in a process of its own. Use a machine on which
nothing else runs."""

EXAMPLES = """\
examples:
  python -m profiling layers alexnet                                   # about a minute
  python -m profiling layers alexnet --onednn both --precision float32 --out alexnet
  python -m profiling layers retinanet --iterations 10 --out layers    # table and chart
  python -m profiling layers resnet50 --threads 1,2 --json resnet50.json
  python -m profiling layers resnet50 --memory local --memory interleave --huge-pages both"""


def add_layers(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `layers` to a command line."""
    parser = add_command(commands, "layers", about=ABOUT, examples=EXAMPLES)
    parser.add_argument("model", metavar="MODEL", help=", ".join(DEFAULT_BATCH))
    batches = ", ".join(f"{name} {count}" for name, count in DEFAULT_BATCH.items())
    parser.add_argument(
        "--batch", type=positive, metavar="N", help=f"images in the batch (default: {batches})"
    )
    parser.add_argument(
        "--image-size",
        type=image_side,
        metavar="N",
        help="height and width of the images (default: 800 for retinanet, else 224)",
    )
    parser.add_argument(
        "--precision",
        choices=("bf16", "float32"),
        default="bf16",
        help="precision of convolutions and matrix products (default: bf16, by autocast)",
    )
    add_counts(
        parser,
        ("--iterations", 50, "measured iterations"),
        ("--warm-up", 3, "warm-up iterations, not measured"),
    )
    add_configuration_options(parser)
    add_output_options(parser, "write layers.csv, layers.png and layers.svg here")
    parser.set_defaults(run=layers_command)


def add_configuration_options(parser: argparse.ArgumentParser) -> None:
    """Add options for what is compared."""
    parser.add_argument(
        "--onednn",
        choices=tuple(SWITCH),
        help="off: the default engine, torch's operators without oneDNN and without our "
        "kernels; on: the optimized engine; both: compare the two (default: on)",
    )
    parser.add_argument(
        "--threads",
        type=numbers,
        metavar="A,B",
        help="numbers of compute threads, one per core (default: all cores)",
    )
    parser.add_argument(
        "--memory",
        action="append",
        metavar="POLICY",
        help=f"memory policy, named as in numactl: {CHOICES}; repeat the option to compare",
    )
    parser.add_argument(
        "--huge-pages",
        nargs="?",
        choices=tuple(SWITCH),
        const="on",
        default="off",
        help="let the C library request transparent huge pages; both: with and without",
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="cuda: the first GPU (default: cpu)",
    )


def layers_command(
    model: str,
    *,
    batch: int | None,
    image_size: int | None,
    precision: str,
    iterations: int,
    warm_up: int,
    onednn: str | None,
    threads: tuple[int, ...] | None,
    memory: list[str] | None,
    huge_pages: str,
    device: str,
    out: Path | None,
    overwrite: bool,
    json_file: Path | None,
) -> int:
    """Run the study, print it, write it; return the exit code."""
    require_free_json(json_file)
    if out is not None:
        require_free_outputs(output_files(out), overwrite=overwrite)
    if model not in DEFAULT_BATCH:
        names = ", ".join(DEFAULT_BATCH)
        raise InputError(f"MODEL: {model!r} is not known; choose from {names}")
    subject = Subject(
        model=model,
        batch=batch or DEFAULT_BATCH[model],
        image_size=image_size or DEFAULT_SIZE.get(model, CLASSIFIER_SIZE),
        precision=precision,
        device=device,
    )
    configurations = combine(onednn, threads, memory, huge_pages, device=device)
    remarks = option_remarks(subject, configurations)
    progress_console = make_console(stderr=True)
    for remark in remarks:
        progress_console.print(remark, soft_wrap=True, markup=False)
    with background_load() as others:
        measured = run_study(subject, configurations, iterations, warm_up, progress_console)
    console = make_console()
    print_study(console, subject, measured, remarks=remarks, other_cores=others.cores)
    if json_file is not None:
        text = as_json(subject, measured, remarks=remarks, other_cores=others.cores)
        write_atomically(json_file, text + "\n")
    if out is not None:
        table, *chart = output_files(out)
        write_atomically(table, layers_csv(measured))
        name = environment()["cpu"] if device == "cpu" else measured[0].facts["device"]
        save_chart(draw_layers(measured, title=f"{subject}; {name}"), *chart)
        console.print(f"table and chart: {out}", soft_wrap=True)
    return FINISHED


def output_files(folder: Path) -> list[Path]:
    """Return the files of `--out`."""
    return [folder / "layers.csv", *chart_files(folder, "layers")]


def combine(
    onednn: str | None,
    threads: tuple[int, ...] | None,
    memory: list[str] | None,
    huge_pages: str,
    *,
    device: str,
) -> list[Configuration]:
    """Return all combinations of what is to be compared."""
    if device == "cuda" and onednn is not None:
        raise InputError("--onednn: applies to CPUs only; leave it out with --device cuda")
    if device == "cuda":
        require_gpu()
    nodes = read_allowance().memory_nodes
    # Wrong policies and numbers of threads are errors now, not in the middle of the study.
    for text in memory or ():
        parse_memory(text, allowed=nodes)
    counts = threads or (choose_cores(threads=None).threads,)
    for count in counts:
        choose_cores(threads=count)
    return [
        Configuration(onednn=engine, threads=count, memory=policy, huge_pages=pages)
        for count, policy, pages, engine in product(
            counts, memory or (None,), SWITCH[huge_pages], SWITCH[onednn or "on"]
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
