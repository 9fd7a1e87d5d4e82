"""What saving costs a training: copying stops it, writing goes on beside it."""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from profiling.bench.finding import Finding
from profiling.bench.findings_output import put_out
from profiling.bench.workload import STANDARD, Workload
from retinanet.command_line import add_json_option, positive
from retinanet.errors import InputError
from retinanet.exit_codes import FINISHED
from retinanet.output_files import require_free_json
from retinanet.progress import MEGABYTE

EVERY_SECONDS = 600.0
"""`checkpoint.every: 10min`, for which the target is given."""
MOST_SHARE = 0.01

ABOUT = """\
Trains as train.py does, alone in a process, and writes checkpoints of model and optimizer to a
temporary folder: the time for which copying stops the training, and by how much the steps are
slower until the checkpoint is on the disk. Of both follows the share of a run with
checkpoint.every=10min."""


def add_checkpoint_benchmark(kinds: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `checkpoint` to the benchmarks of a command line."""
    about = "saving checkpoints while training goes on"
    parser = kinds.add_parser("checkpoint", help=about, description=f"Time {about}.\n\n{ABOUT}")
    for name, default, what in (
        ("--rounds", 5, "checkpoints that count"),
        ("--images", STANDARD.images, "images in a batch"),
        ("--image-size", STANDARD.image_size, "their height and width in pixels"),
    ):
        help_text = f"{what} (default: {default})"
        parser.add_argument(name, type=positive, default=default, metavar="N", help=help_text)
    parser.add_argument(
        "--folder", type=Path, help="on the disk that runs write to (default: that of temporaries)"
    )
    add_json_option(parser)
    parser.set_defaults(run=checkpoint_command)


def checkpoint_command(
    *, rounds: int, images: int, image_size: int, folder: Path | None, json_file: Path | None
) -> int:
    """Run the benchmark; returns the exit code.

    Raises:
        InputError: The folder is not there, or the JSON file is.
    """
    require_free_json(json_file)
    if folder is not None and not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give --folder one that exists")
    workload = Workload(images=images, image_size=image_size)
    asked = {
        "workload": asdict(workload),
        "rounds": rounds,
        "folder": None if folder is None else str(folder),
    }
    command = [sys.executable, "-m", "profiling.bench.checkpoint_worker", json.dumps(asked)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    put_out(
        describe(json.loads(output.splitlines()[-1])),
        benchmark="checkpoint",
        workload={**asdict(workload), "rounds": rounds},
        with_targets=True,  # tensors are as large, whatever the images
        json_file=json_file,
    )
    return FINISHED


def describe(rounds: Sequence[dict[str, float]]) -> list[Finding]:
    """Medians over the rounds, and the share of a run that follows from them."""
    of = {name: median(one[name] for one in rounds) for name in rounds[0]}
    cost = of["copying"] + max(0.0, of["slower"])
    share = cost / (EVERY_SECONDS + cost)
    return [
        seconds("a step without a checkpoint", of["quiet_step"]),
        Finding(
            what="a checkpoint, tensors",
            value=of["bytes"] / MEGABYTE,
            shown=f"{of['bytes'] / MEGABYTE:.0f} MB",
        ),
        seconds("copying, while training waits", of["copying"]),
        seconds("writing, while training goes on", of["writing"]),
        seconds("steps slower meanwhile, in all", of["slower"]),
        Finding(
            what="share of a run with checkpoint.every=10min",
            value=share,
            shown=f"{share:.2%}",
            at_most=MOST_SHARE,
        ),
    ]


def seconds(what: str, value: float) -> Finding:
    """A time."""
    return Finding(what=what, value=value, shown=f"{value:.2f} s")
