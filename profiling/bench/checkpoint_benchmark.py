"""What saving costs a training: copying stops it, writing goes on beside it.

TODO-DOC A training that writes checkpoints, in a process of its own, and how long what took.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from common.cli import add_json_option, positive
from common.console import MEGABYTE
from common.errors import FINISHED, InputError
from common.files import require_free_json
from common.machine import fastest_precision
from common.processes import Answering, JsonWorker, serve
from launch.environment import set_allocator
from profiling.bench.report import put_out
from profiling.bench.results import Finding
from profiling.bench.variant import STANDARD, Workload

if TYPE_CHECKING:
    from retinanet.engine.engines import PreparedTraining
    from retinanet.training.checkpoint_state import State
    from retinanet.training.checkpointer import Checkpointer
    from retinanet.training.loop import StepResult

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
    with tempfile.TemporaryDirectory(prefix="checkpoint-benchmark-", dir=folder) as checkpoints:
        specification = {"workload": asdict(workload), "folder": checkpoints}
        with closing(JsonWorker("profiling.bench.checkpoint_benchmark", specification)) as worker:
            measured = [worker.ask(number) for number in range(rounds + 1)]
    put_out(
        describe(measured[1:]),  # the first copy takes new memory from the system
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


WARM_UP = 3
QUIET_STEPS = 4
"""In each round, before the checkpoint, for comparison."""


def prepare(specification: dict[str, Any]) -> tuple[dict[str, Any], Answering]:
    """Warm a training up; each question is a round's number, and its answer what it measured."""
    set_allocator("tuned")  # before torch is loaded
    from profiling.bench.recipes.step import steps_of, training
    from retinanet.training.checkpointer import Checkpointer

    workload = Workload(**specification["workload"])
    prepared = training(workload, precision=fastest_precision())
    steps = steps_of(prepared, workload)
    for _ in range(WARM_UP):
        next(steps)
    writer = Checkpointer(Path(specification["folder"]), keep=1, warn=sys.exit)
    return {}, lambda number: one_round(prepared, steps, writer, workload, number=number)


def one_round(
    prepared: "PreparedTraining",
    steps: "Iterator[StepResult]",
    keeper: "Checkpointer",
    workload: Workload,
    *,
    number: int,
) -> dict[str, float]:
    """Some steps alone, then a checkpoint and the steps while it is written. [seconds, bytes]"""
    from launch.process_group import ProcessGroup
    from retinanet.training.checkpointer import gathered

    quiet = median(next(steps).seconds for _ in range(QUIET_STEPS))
    state = made_up_state(workload, step=number)
    start = time.perf_counter()
    contents = gathered(ProcessGroup(), prepared.model, prepared.optimizer, state)
    assert contents is not None
    copying = time.perf_counter() - start
    size = sum(one.nbytes for part in contents.parts.values() for one in part.values())
    keeper.write(contents)
    del contents
    beside = []
    while keeper.is_writing:
        beside.append(next(steps).seconds)
    return {
        "quiet_step": quiet,
        "copying": copying,
        "writing": keeper.seconds,
        "steps_meanwhile": len(beside),
        "slower": sum(beside) - quiet * len(beside),
        "bytes": size,
    }


def made_up_state(workload: Workload, *, step: int) -> "State":
    """What goes into `state.json`, which is small beside the tensors."""
    from retinanet.training.checkpoint_state import ModelDescription, State, TrainingPosition

    ids = range(workload.classes)
    return State(
        model=ModelDescription(
            num_classes=workload.classes,
            norm="frozen",
            trainable_layers=3,
            image_size=workload.image_size,
            precision="bf16",
            classes={"category_ids": list(ids), "names": list(map(str, ids))},
        ),
        position=TrainingPosition(
            step=step, epoch=0, images=0, images_per_epoch=1, map_here=None, best_map=None
        ),
        setup={"ranks": 1},
        config={},
        random_states=[],
        parts={},
    )


if __name__ == "__main__":
    serve(prepare)
