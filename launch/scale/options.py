"""The command line of `python -m launch scale`."""

import argparse
from pathlib import Path

from launch.scale.command import scale_command
from launch.start.where import add_where
from retinanet.command_line import add_json_option, add_overrides, positive

ABOUT = """\
The scaling study: how many images a second different numbers of ranks and threads train.

Each combination of --ranks and --threads is a job of its own, started by mpirun, with its ranks
pinned as train.py pins them. They train MLPerf's model with weights from random numbers on the
configuration's data, one job after another, in rounds. Every other step exchanges no gradients,
so that the cost of the exchange shows within one job. Combinations for which there are too few
cores are shown as –, with the reason. Use a machine on which nothing else runs.

With --batch-size each rank has as many images in a step, whatever the number of ranks: weak
scaling. With --global-batch all ranks together have as many, as in training with one recipe on
different numbers of ranks. In practice more ranks of fewer threads are often faster so."""

EXAMPLES = """\
examples:
  python -m launch scale --ranks 1,2 --threads 1,2                    # drawn scenes, minutes
  python -m launch scale --ranks 1,2,4,8 --threads 7,14,28,56 --config coco.yaml \\
      data.root=/data/coco --json scaling.json                        # and scaling.png beside it
  python -m launch scale --ranks 1,2 --threads 1,2 --global-batch 2 \\
      data.image_size=800 distributed.compress=bf16                   # the project's targets
  python -m launch scale --ranks 2,4,8 --threads 28 --hosts a,b --config coco.yaml \\
      data.root=/data/coco --chart scaling.png                        # over two hosts"""


def add_scale(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `scale` to the commands of a command line."""
    parser = commands.add_parser(
        "scale",
        help="the scaling study: throughput by ranks and threads",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config",
        default="demo.yaml",
        metavar="NAME",
        help="a YAML file, or a name in configs/, as train.py takes it (default: demo.yaml)",
    )
    add_overrides(parser)
    for name, what in (
        ("--ranks", "numbers of ranks over all hosts"),
        ("--threads", "numbers of compute threads of each rank"),
    ):
        parser.add_argument(
            name, type=numbers, default=(1, 2, 4), metavar="A,B", help=f"{what} (default: 1,2,4)"
        )
    add_workload_options(parser)
    add_where(parser, hosts_help="hosts that share the ranks evenly; all are alike")
    add_json_option(parser, "write everything here too, and the chart beside it")
    parser.add_argument(
        "--chart",
        type=chart_file,
        nargs="?",
        const=Path("scaling.png"),
        metavar="FILE.png",
        help="draw the chart (default: beside --json, or scaling.png where no file is given)",
    )
    parser.set_defaults(run=scale_command)


def add_workload_options(parser: argparse.ArgumentParser) -> None:
    """How much each job does."""
    images = parser.add_mutually_exclusive_group()
    images.add_argument(
        "--batch-size",
        type=positive,
        metavar="N",
        help="images of each rank in a step (default: training.batch_size)",
    )
    images.add_argument(
        "--global-batch", type=positive, metavar="N", help="images of all ranks in a step"
    )
    for name, default, what in (
        ("--steps", 5, "steps of a job that count; beside each is one without exchange"),
        ("--warm-up", 3, "steps before them"),
        ("--rounds", 2, "jobs of each combination"),
    ):
        help_text = f"{what} (default: {default})"
        parser.add_argument(name, type=positive, default=default, metavar="N", help=help_text)


def numbers(text: str) -> tuple[int, ...]:
    """Different whole numbers of at least 1, ascending."""
    try:
        found = [positive(word) for word in text.split(",")]
    except argparse.ArgumentTypeError as error:
        message = f"expected numbers such as 1,2,4, found {text!r}"
        raise argparse.ArgumentTypeError(message) from error
    return tuple(sorted(set(found)))


def chart_file(text: str) -> Path:
    """A name that ends in .png."""
    if not text.endswith(".png"):
        raise argparse.ArgumentTypeError(f"expected a name that ends in .png, found {text!r}")
    return Path(text)
