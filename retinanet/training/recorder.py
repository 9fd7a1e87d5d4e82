"""What a run writes as it goes: metrics, pictures, detections, and lines on the console.

Rank 0 writes for all; the others have a `NullRecorder`. `RunFacts` is what is settled before the
first step: the console, `environment.json` and model cards describe the run by it.
"""

import math
import shlex
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from common.cli import installed
from common.errors import InputError, printable
from common.files import read_json_lines
from common.machine import peak_resident_mb
from data.dataset import DetectionData, DetectionDataset
from launch.pinning import RankContext
from launch.topology import format_cpu_list
from retinanet.config import Config
from retinanet.config_types import described_split
from retinanet.evaluation.metric import METRICS, Evaluation
from retinanet.evaluation.output import (
    SplitResult,
    evaluation_name,
    evaluation_sheet,
    save_picture,
    write_evaluation,
)
from retinanet.training.loop import StepResult
from retinanet.training.metrics import MetricsLog, draw_curves
from retinanet.training.rank_speed import RankBatches
from retinanet.training.run_folder import RunFolder
from retinanet.training.train_state import ModelDescription

SECONDS_BETWEEN_WARNINGS = 600.0
"""That a disk is full is said by checkpoints too, each time."""
STEPS_AVERAGED = 20
"""Speed and loss on the console are means over so many steps."""


class Recorder:
    """Writes below the run's folder and on the console; decides nothing about the training."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        console: Console,
        first_step: int,
        target_map: float | None,
    ) -> None:
        self._folder = folder
        self._console = console
        self._target_map = target_map
        self._metrics = MetricsLog(folder.metrics, folder.tensorboard, resumed_step=first_step)
        self._recent: deque[StepResult] = deque(maxlen=STEPS_AVERAGED)
        self._page_faults: list[int] = []
        self._next_warning = 0.0
        self._write_files: Callable[[], None] | None = None
        """Waits for files that a process writes while training continues."""

    def step(self, result: StepResult, *, epoch: float) -> str:
        """Write a step; return speed and loss over the last steps, for the progress bar."""
        with self._going_on():
            self._metrics.step(result, epoch=epoch)
        self._recent.append(result)
        self._page_faults.append(result.page_faults)
        images = sum(recent.images for recent in self._recent)
        seconds = sum(recent.run_seconds for recent in self._recent)
        losses = [recent.loss for recent in self._recent if not recent.nonfinite]
        loss = sum(losses) / len(losses) if losses else math.nan
        return f"{images / seconds:.2f} images/s  loss {loss:.4f}"

    def bad_image(self, problem: str, *, step: int) -> None:
        """Write an image that could not be read."""
        with self._going_on():
            self._metrics.bad_image(problem, step=step)

    def nonfinite(self, report: dict[str, Any]) -> None:
        """Write a step that was skipped; see `NonFiniteReport.content`."""
        with self._going_on():
            self._metrics.nonfinite(report)

    def evaluation(
        self,
        result: SplitResult,
        *,
        step: int,
        epoch: float,
        write_files: Callable[[], None] | None = None,
    ) -> None:
        """Write an evaluation: table, metrics, detections, classes and their chart.

        Args:
            result: What it came to.
            step: Of its weights.
            epoch: The same in epochs, with the share of the running one.
            write_files: Waits for the last three, which a process writes; None: write them here.
        """
        print_evaluation(
            self._console, result.evaluation, title=f"after step {step}, epoch {epoch:.4g}"
        )
        seconds = result.seconds
        with self._going_on():
            self._metrics.evaluation(result.evaluation, step=step, epoch=epoch, seconds=seconds)
        self.wait_for_files()
        self._write_files = write_files
        if write_files is None:
            with self._going_on():
                write_evaluation(result, self._folder.evaluations, name=evaluation_name(step))

    def wait_for_files(self) -> None:
        """Wait until the last evaluation's files are there."""
        write_files, self._write_files = self._write_files, None
        with self._going_on():
            if write_files is not None:
                write_files()

    def pictures(
        self, result: SplitResult, dataset: DetectionDataset, *, step: int, count: int
    ) -> None:
        """Draw some of an evaluation's images, and the curves as far as the run has come."""
        with self._going_on():
            sheet = evaluation_sheet(
                dataset.annotations, dataset.image_folder, result.detections, count=count
            )
            if sheet is not None:
                save_picture(sheet, self._folder.pictures / f"{evaluation_name(step)}.png")
                self._metrics.picture("validation", sheet, step=step)
            draw_curves(
                read_json_lines(self._folder.metrics),
                self._folder.pictures / "curves.png",
                title=self._folder.path.name,
                target_map=self._target_map,
            )

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Turn a full or missing disk into a warning, now and then: it must not end a training.

        `metrics.jsonl` gets its lines once there is room; detections and pictures are left out.
        """
        try:
            yield
        except (OSError, InputError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            if time.monotonic() >= self._next_warning:
                self._next_warning = time.monotonic() + SECONDS_BETWEEN_WARNINGS
                text = f"warning: {self._folder.path}: cannot be written: {reason or error}"
                self._console.print(f"{text}; training goes on", soft_wrap=True, markup=False)

    def closing(
        self,
        *,
        is_reached: bool,
        step: int,
        best_map: float | None,
        bad_images: int,
        example: Path,
    ) -> None:
        """Print how the run ended, where its files are, and what to try next."""
        self._metrics.close()
        folder = self._folder
        headline = f"finished after {step} steps"
        if self._target_map is not None:
            outcome = "reached" if is_reached else "not reached"
            headline += f", target mAP {self._target_map:g} {outcome}"
        if best_map is not None:
            headline += f", best mAP {best_map:.3f}"
        facts = {"memory": memory_used(self._page_faults)}
        if bad_images:
            facts["bad images"] = f"{bad_images} could not be read, see metrics"
        print_summary(
            self._console,
            headline=headline,
            facts=facts,
            paths={
                "pictures": folder.pictures,
                "curves": folder.pictures / "curves.png",
                "best checkpoint": folder.checkpoints / "best",
                "metrics": folder.metrics,
                "tensorboard": folder.tensorboard,
            },
            next_commands=[
                shlex.join(
                    [
                        installed("python"),
                        "-m",
                        "retinanet",
                        "predict",
                        "--checkpoint",
                        str(folder.checkpoints / "best"),
                        str(example),
                    ]
                ),
                shlex.join([installed("tensorboard"), "--logdir", str(folder.tensorboard)]),
            ],
        )


def memory_used(page_faults: list[int]) -> str:
    """Return a line on memory, of a run with so many page faults in each step."""
    text = f"{peak_resident_mb() / 1000:.1f} GB at the most"
    if page_faults:
        text += f", {median(page_faults):.0f} page faults in the median step"
    return text


class NullRecorder:
    """The recorder of ranks other than 0, which write nothing."""

    def step(self, *arguments: Any, **named: Any) -> str:
        """Return no text."""
        return ""

    def ignore(self, *arguments: Any, **named: Any) -> None:
        """Do nothing."""

    bad_image = nonfinite = evaluation = wait_for_files = pictures = closing = ignore


SUMMARY_COLUMNS = ("map", "map_50", "map_75", "map_small", "map_medium", "map_large")

CLASSES_SHOWN = 5


def print_evaluation(console: Console, evaluation: Evaluation, *, title: str) -> None:
    """Print the metric by size of object, then the best and the worst classes."""
    # Not as the table's own title, which is broken at the table's width.
    console.print(title, style="italic", highlight=False, soft_wrap=True)
    table = Table()
    for name in SUMMARY_COLUMNS:
        table.add_column(METRICS[name].heading, justify="right")
    table.add_row(*(format_metric(evaluation.summary[name]) for name in SUMMARY_COLUMNS))
    console.print(table)
    ranked = sorted(evaluation.per_class.items(), key=lambda item: -item[1])
    if not ranked:
        console.print("no true boxes in this split: no class can be measured")
    elif len(ranked) <= 2 * CLASSES_SHOWN:
        console.print(f"mAP by class: {class_list(ranked)}")
    else:
        console.print(f"best classes:  {class_list(ranked[:CLASSES_SHOWN])}")
        console.print(f"worst classes: {class_list(ranked[-CLASSES_SHOWN:])}")


def class_list(ranked: Sequence[tuple[str, float]]) -> str:
    """Return classes with their mAP, on one line."""
    return ", ".join(f"{printable(name)} {value:.3f}" for name, value in ranked)


def format_metric(value: float) -> str:
    """Return three digits, or a dash where there was nothing to measure."""
    return "–" if math.isnan(value) else f"{value:.3f}"


def print_summary(
    console: Console,
    *,
    headline: str,
    paths: dict[str, Path],
    facts: dict[str, str],
    next_commands: Sequence[str],
) -> None:
    """Print how something ended, where its files are, and what to know and to try next."""
    console.print(f"\n{headline}", style="bold")
    rows = {**paths, **facts}
    width = max(len(name) for name in rows)
    for name, value in rows.items():
        console.print(f"  {name:<{width}}  {value}", soft_wrap=True)
    if next_commands:
        console.print("next:")
        for command in next_commands:
            console.print(f"  {command}", soft_wrap=True, markup=False)


def print_rows(console: Console, rows: dict[str, Any]) -> None:
    """Print a name and a value a line."""
    width = max(len(name) for name in rows)
    for name, value in rows.items():
        console.print(f"{name:<{width}}  {value}", soft_wrap=True, markup=False)


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What a run is, as settled before its first step."""

    config: Config
    folder: RunFolder
    data: DetectionData
    model: ModelDescription
    parameters: int
    trained_parameters: int
    total_steps: int
    images_per_step: int
    """Of all ranks that take a step together."""
    engine: str
    loading: str
    """Who decodes images, and where."""
    hosts: tuple[str, ...]
    """Of each rank."""
    averaging_ranks: int
    """That average their gradients with each other."""
    exchange: str
    """What averages gradients: `shared memory`, `gloo`, `ccl`; `none` for one rank."""
    batches: RankBatches
    context: RankContext
    """Rank 0's."""
    rows: dict[str, object]
    """Of the way in which ranks take the steps of an epoch."""


def describe_run(facts: RunFacts, *, step: int) -> dict[str, object]:
    """Return rows for the console, of a run that begins after `step` steps."""
    training, size = facts.config.training, facts.config.data.image_size
    train, validation, _ = facts.data
    without_boxes = len(train.annotations) - len(train)
    skipped = f" ({without_boxes} without boxes are skipped)" if without_boxes else ""
    ranks = f"{facts.averaging_ranks} ranks × " if facts.averaging_ranks > 1 else ""
    threads = torch.get_num_threads()
    rows: dict[str, object] = {
        "run": facts.folder.path,
        "data": f"{len(train)} training images{skipped}, {len(validation)} for validation, "
        f"{facts.model.num_classes} class indices",
        "images": facts.loading,
        "model": f"RetinaNet-ResNeXt50, {facts.trained_parameters / 1e6:.1f} million parameters "
        f"that train, {facts.model.norm} norms",
        "steps": f"{facts.total_steps} of {ranks}{training.batch_size} × "
        f"{training.gradient_accumulation} images, {size}×{size} pixels, "
        f"{facts.model.precision}, {threads} {'thread' if threads == 1 else 'threads'}, "
        f"engine {facts.engine}",
        **describe_batches(facts),
        **describe_ranks(facts),
        **facts.rows,
    }
    if step:
        rows["resumed"] = f"after step {step}"
    return rows


def describe_batches(facts: RunFacts) -> dict[str, object]:
    """Return how many images each rank has of a batch, where that was not left to be even."""
    batches = facts.batches
    if facts.config.distributed.batch_split == "even" or facts.averaging_ranks == 1:
        return {}
    text = described_split(batches.images, batches.speeds)
    if batches.is_recorded:
        text += ", as the run was split by speed before"
    return {"batches": text}


def describe_ranks(facts: RunFacts) -> dict[str, object]:
    """Return how many ranks there are, what averages their gradients, and where rank 0 runs."""
    pinned = facts.context.pinned
    nodes = f"node{'s' if len(pinned.share.nodes) > 1 else ''}"
    cores = (
        f"CPUs {format_cpu_list(pinned.share.cpus)}, memory of {nodes} "
        f"{format_cpu_list(pinned.share.nodes)}"
    )
    if not pinned.enabled:
        cores = "where the system puts them (launch.pin=false)"
    if len(facts.hosts) == 1:
        return {"cores": cores}
    hosts = list(dict.fromkeys(facts.hosts))
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts, {hosts[0]} to {hosts[-1]}"
    by = f"gradients by {facts.exchange}"
    if facts.averaging_ranks == 1:
        by = "gradients of each by itself"
    by += " in bf16" if facts.config.distributed.compress == "bf16" else ""
    if facts.exchange == "gloo":
        by += "; three times as fast with ccl, which needs oneccl_bindings_for_pytorch"
    return {"ranks": f"{len(facts.hosts)} on {where}, {by}", "cores": f"rank 0: {cores}"}


def ranks_as_json(facts: RunFacts) -> dict[str, Any]:
    """Return what `environment.json` says of the ranks; rank 0's CPUs stand for all."""
    context = facts.context
    return {
        "size": len(facts.hosts),
        "hosts": list(facts.hosts),
        "launcher": context.ranks.launcher,
        "exchange": facts.exchange,
        "compute_groups": facts.config.distributed.groups,
        "images_of_a_batch": list(facts.batches.images),
        "measured_images_per_second": list(facts.batches.speeds) or None,
        "pinned": context.pinned.enabled,
        "cpus_of_rank_0": list(context.pinned.share.cpus),
        "environment_of_rank_0": dict(context.pinned.environment),
    }
