"""The command line of `python -m profiling layers`."""

import argparse
from pathlib import Path

from launch.scale.options import numbers
from profiling.bench.command import image_side
from profiling.layers.command import SWITCH, layers_command
from profiling.layers.subject import DEFAULT_BATCH
from profiling.memory_choice import CHOICES
from retinanet.command_line import add_json_option, positive

ABOUT = """\
Time each layer of a network, forward and backward, as `caffe time` does: iterations on one batch
of random images, without an optimizer, averaged. Then the layer-wise study of Awan et al., "An
In-depth Performance Characterization of CPU- and GPU-based DNN Training on Modern Architectures"
(2017): the default engine against the optimized one, threads, memory, forward against backward.

MODEL is retinanet (ours, as train.py runs it, 264 classes), alexnet, resnet50 or resnext50
(torchvision's), with weights from random numbers. A layer is a module that has no modules inside;
one that runs several times in an iteration shows the sum. What no layer does, such as residual
sums, is the row `between layers`, so that all rows add up to the iteration.

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
    """Add `layers` to the commands of a command line."""
    parser = commands.add_parser(
        "layers",
        help="time each layer of a network, forward and backward",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_subject_options(parser)
    add_configuration_options(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="write layers.csv, layers.png and layers.svg here",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace files of an earlier call in DIR"
    )
    add_json_option(parser)
    parser.set_defaults(run=layers_command)


def add_subject_options(parser: argparse.ArgumentParser) -> None:
    """What is timed, and how often."""
    parser.add_argument("model", metavar="MODEL", help=", ".join(DEFAULT_BATCH))
    batches = ", ".join(f"{name} {count}" for name, count in DEFAULT_BATCH.items())
    parser.add_argument(
        "--batch", type=positive, metavar="N", help=f"images in the batch (default: {batches})"
    )
    parser.add_argument(
        "--image-size",
        type=image_side,
        metavar="N",
        help="their height and width (default: 800 for retinanet, else 224)",
    )
    parser.add_argument(
        "--precision",
        choices=("bf16", "float32"),
        default="bf16",
        help="of convolutions and matrix products (default: bf16, by autocast)",
    )
    for name, default, what in (
        ("--iterations", 50, "iterations that count"),
        ("--warm-up", 3, "iterations before them"),
    ):
        help_text = f"{what} (default: {default})"
        parser.add_argument(name, type=positive, default=default, metavar="N", help=help_text)


def add_configuration_options(parser: argparse.ArgumentParser) -> None:
    """What is compared."""
    parser.add_argument(
        "--onednn",
        choices=tuple(SWITCH),
        help="off: the default engine, torch's operators without oneDNN and without ours; "
        "on: the optimized one; both: one against the other (default: on)",
    )
    parser.add_argument(
        "--threads",
        type=numbers,
        metavar="A,B",
        help="numbers of compute threads, one a core (default: all cores)",
    )
    parser.add_argument(
        "--memory",
        action="append",
        metavar="POLICY",
        help=f"memory policy, as numactl's: {CHOICES}; give it again to compare",
    )
    parser.add_argument(
        "--huge-pages",
        nargs="?",
        choices=tuple(SWITCH),
        const="on",
        default="off",
        help="have the C library ask for transparent huge pages; both: with and without",
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="cuda: the first GPU (default: cpu)",
    )
