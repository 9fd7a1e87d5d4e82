"""A training that writes checkpoints, in a process of its own, and how long what took."""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from launch.pinning.allocator import set_allocator
from profiling.bench.workload import Workload
from retinanet.processor import fastest_precision

if TYPE_CHECKING:
    from retinanet.engine.engines import PreparedTraining
    from retinanet.training.checkpoint.keeper import CheckpointKeeper
    from retinanet.training.checkpoint.state import State
    from retinanet.training.loop import StepResult

WARM_UP = 3
QUIET_STEPS = 4
"""In each round, before the checkpoint, for comparison."""


def main() -> None:
    """Measure as the first argument says, in JSON; print the rounds as JSON."""
    asked = json.loads(sys.argv[1])
    set_allocator("tuned")  # before torch is loaded
    from profiling.bench.recipes.step_torch import steps_of, training
    from retinanet.training.checkpoint.keeper import CheckpointKeeper

    workload = Workload(**asked["workload"])
    prepared = training(workload, precision=fastest_precision())
    steps = steps_of(prepared, workload)
    for _ in range(WARM_UP):
        next(steps)
    with tempfile.TemporaryDirectory(prefix="checkpoint-benchmark-", dir=asked["folder"]) as folder:
        keeper = CheckpointKeeper(Path(folder), keep=1, warn=sys.exit)
        rounds = [
            one_round(prepared, steps, keeper, workload, number=number)
            for number in range(asked["rounds"] + 1)
        ]
    print(json.dumps(rounds[1:]))  # the first copy takes new memory from the system


def one_round(
    prepared: "PreparedTraining",
    steps: "Iterator[StepResult]",
    keeper: "CheckpointKeeper",
    workload: Workload,
    *,
    number: int,
) -> dict[str, float]:
    """Some steps alone, then a checkpoint and the steps while it is written. [seconds, bytes]"""
    from launch.group.process_group import ProcessGroup
    from retinanet.training.saving import gathered

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
    from retinanet.training.checkpoint.state import ModelDescription, State, TrainingPosition

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
    main()
