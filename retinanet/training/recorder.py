"""What a run leaves behind as it goes: metrics, pictures, detections, console lines.

TODO-DOC The record of a run on a rank that does not write: rank 0 writes for all.

TODO-DOC What a person reads on the console: the start, a table after each evaluation, the end.

TODO-DOC What a run says of itself at its start: to a person, and to whoever reads its numbers later.
"""

import math
import shlex
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table

from common.cli import installed
from common.errors import InputError, printable
from common.machine import peak_resident_mb
from data.dataset import DetectionDataset
from launch.topology import format_cpu_list
from retinanet.config import TrainingConfig
from retinanet.config_types import beta1_of, described_split, planned_groups
from retinanet.evaluation.metric import METRICS, Evaluation
from retinanet.evaluation.output import (
    SplitResult,
    evaluation_name,
    evaluation_sheet,
    save_picture,
    write_evaluation,
)
from retinanet.training.evaluation import BackgroundEvaluation
from retinanet.training.loop import StepResult
from retinanet.training.metrics import MetricsLog, draw_curves
from retinanet.training.metrics_file import read_metrics
from retinanet.training.run_folder import RunFolder

if TYPE_CHECKING:
    from retinanet.training.trainer import Trainer

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
        self._files: Callable[[], None] | None = None
        """Waits for those that a process writes beside the training."""

    def step(self, result: StepResult, *, epoch: float) -> str:
        """Note a step; returns what to say of it: speed and loss over the last steps."""
        with self._going_on():
            self._metrics.step(result, epoch=epoch)
        self._recent.append(result)
        self._page_faults.append(result.page_faults)
        images = sum(recent.images * recent.groups_at_work for recent in self._recent)
        seconds = sum(recent.seconds for recent in self._recent)
        losses = [recent.loss for recent in self._recent if not recent.nonfinite]
        loss = sum(losses) / len(losses) if losses else math.nan
        return f"{images / seconds:.2f} images/s  loss {loss:.4f}"

    def bad_image(self, problem: str, *, step: int) -> None:
        """Note an image that could not be read."""
        with self._going_on():
            self._metrics.bad_image(problem, step=step)

    def nonfinite(self, report: dict[str, Any]) -> None:
        """Note a step that was skipped."""
        with self._going_on():
            self._metrics.nonfinite(report)

    def evaluation(
        self,
        result: SplitResult,
        *,
        step: int,
        epoch: float,
        beside: BackgroundEvaluation | None = None,
    ) -> None:
        """Note an evaluation: table, metrics, detections, classes and their chart.

        `beside`: the process that writes the last three, if there is one.
        """
        print_evaluation(
            self._console, result.evaluation, title=f"after step {step}, epoch {epoch:.4g}"
        )
        seconds = result.seconds
        with self._going_on():
            self._metrics.evaluation(result.evaluation, step=step, epoch=epoch, seconds=seconds)
        self.wait_for_files()
        if beside is not None:
            self._files = partial(beside.require_files, result)
            return
        with self._going_on():
            write_evaluation(result, self._folder.evaluations, name=evaluation_name(step))

    def wait_for_files(self) -> None:
        """Until the last evaluation's are there."""
        files, self._files = self._files, None
        with self._going_on():
            if files is not None:
                files()

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
                read_metrics(self._folder.metrics),
                self._folder.pictures / "curves.png",
                title=self._folder.path.name,
                target_map=self._target_map,
            )

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """A disk that is full, or has gone, must not end a training: it is told of, now and then.

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
        """The last words: how the run ended, where its work lies, what to try next."""
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
    """What to say of memory at the end of a run that had so many page faults in each step."""
    text = f"{peak_resident_mb() / 1000:.1f} GB at the most"
    if page_faults:
        text += f", {median(page_faults):.0f} page faults in the median step"
    return text


class NullRecorder:
    """In the place of a `RunRecord`: takes the same calls and does nothing."""

    def step(self, *arguments: Any, **named: Any) -> str:
        """Nothing to say."""
        return ""

    def bad_image(self, *arguments: Any, **named: Any) -> None:
        """Nothing."""

    def nonfinite(self, *arguments: Any, **named: Any) -> None:
        """Nothing."""

    def evaluation(self, *arguments: Any, **named: Any) -> None:
        """Nothing."""

    def wait_for_files(self) -> None:
        """Nothing."""

    def pictures(self, *arguments: Any, **named: Any) -> None:
        """Nothing."""

    def closing(self, *arguments: Any, **named: Any) -> None:
        """Nothing."""


SUMMARY_COLUMNS = ("map", "map_50", "map_75", "map_small", "map_medium", "map_large")

CLASSES_SHOWN = 5


def print_evaluation(console: Console, evaluation: Evaluation, *, title: str) -> None:
    """The metric by size of object, then the best and the worst classes."""
    # Not as the table's own title, which is broken at the table's width.
    console.print(title, style="italic", highlight=False, soft_wrap=True)
    table = Table()
    for name in SUMMARY_COLUMNS:
        table.add_column(METRICS[name].heading, justify="right")
    table.add_row(*(shown(evaluation.summary[name]) for name in SUMMARY_COLUMNS))
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
    """Classes with their mAP, on one line."""
    return ", ".join(f"{printable(name)} {value:.3f}" for name, value in ranked)


def shown(value: float) -> str:
    """Three digits, or a dash where there was nothing to measure."""
    return "–" if math.isnan(value) else f"{value:.3f}"


def print_summary(
    console: Console,
    *,
    headline: str,
    paths: dict[str, Path],
    facts: dict[str, str],
    next_commands: Sequence[str],
) -> None:
    """The last words of a run: how it ended, where its work lies, what to know and to try next."""
    console.print(f"\n{headline}", style="bold")
    rows = {**paths, **facts}
    width = max(len(name) for name in rows)
    for name, value in rows.items():
        console.print(f"  {name:<{width}}  {value}", soft_wrap=True)
    if next_commands:
        console.print("next:")
        for command in next_commands:
            console.print(f"  {command}", soft_wrap=True, markup=False)


def describe_run(console: Console, rows: dict[str, Any]) -> None:
    """The first words of a run: a name and a value a line."""
    width = max(len(name) for name in rows)
    for name, value in rows.items():
        console.print(f"{name:<{width}}  {value}", soft_wrap=True, markup=False)


def described(run: "Trainer") -> dict[str, object]:
    """Rows for the console."""
    training, size = run.config.training, run.config.data.image_size
    trained = sum(one.numel() for one in run.model.parameters() if one.requires_grad)
    without_boxes = len(run.data.train.annotations) - len(run.data.train)
    skipped = f" ({without_boxes} without boxes are skipped)" if without_boxes else ""
    size_of_group = run.compute_group.size
    ranks = f"{size_of_group} ranks × " if size_of_group > 1 else ""
    threads = torch.get_num_threads()
    rows: dict[str, object] = {
        "run": run.folder.path,
        "data": f"{len(run.data.train)} training images{skipped}, "
        f"{len(run.data.validation)} for validation, "
        f"{run.description.num_classes} class indices",
        "images": run.loading.describe(),
        "model": f"RetinaNet-ResNeXt50, {trained / 1e6:.1f} million parameters that train, "
        f"{run.description.norm} norms",
        "steps": f"{run.plan.total_steps} of {ranks}{training.batch_size} × "
        f"{training.gradient_accumulation} images, {size}×{size} pixels, "
        f"{run.description.precision}, {threads} {'thread' if threads == 1 else 'threads'}, "
        f"engine {run.engine}",
        **described_batches(run),
        **described_ranks(run),
        **described_groups(run),
    }
    if run.step:
        rows["resumed"] = f"after step {run.step}"
    return rows


def described_batches(run: "Trainer") -> dict[str, object]:
    """How many images each rank has of a batch, where that was not left to be even."""
    batches = run.batches
    if run.config.distributed.batch_split == "even" or run.compute_group.size == 1:
        return {}
    words = described_split(batches.images, batches.speeds)
    if batches.is_recorded:
        words += ", as the run was split by speed before"
    return {"batches": words}


def described_ranks(run: "Trainer") -> dict[str, object]:
    """How many ranks there are, what exchanges their gradients, and where rank 0 runs."""
    group, place, way = run.group, run.place, way_of(run)
    share = place.pinned.share
    nodes = f"node{'s' if len(share.nodes) > 1 else ''} {format_cpu_list(share.nodes)}"
    cores = f"CPUs {format_cpu_list(share.cpus)}, memory of {nodes}"
    if not place.pinned.enabled:
        cores = "where the system puts them (launch.pin=false)"
    if group.size == 1:
        return {"cores": cores}
    hosts = list(dict.fromkeys(group.hosts))
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts, {hosts[0]} to {hosts[-1]}"
    by = f"gradients by {way}" if run.compute_group.size > 1 else "gradients of each by itself"
    by += " in bf16" if run.config.distributed.compress == "bf16" else ""
    if way == "gloo":
        by += "; three times as fast with ccl, which needs oneccl_bindings_for_pytorch"
    return {"ranks": f"{group.size} on {where}, {by}", "cores": f"rank 0: {cores}"}


def described_groups(run: "Trainer") -> dict[str, object]:
    """How many compute groups there are, their momentum, and where the weights are."""
    if run.groups is None:
        return {}
    count = run.config.distributed.groups
    words = planned_groups(count, ranks=count * run.compute_group.size)
    momentum = momentum_of_groups(run.config.training, count)
    return {"groups": f"{words}; {momentum}; weights by {run.groups.update.way}"}


def momentum_of_groups(training: TrainingConfig, groups: int) -> str:
    """What becomes of the optimizer's momentum, in words."""
    implicit = f"as 1 − 1/{groups} of momentum comes from not waiting"
    if training.optimizer == "sgd":
        return f"momentum {training.momentum:g} as told, beside the 1 − 1/{groups} of not waiting"
    beta1 = beta1_of(training.beta1, groups=groups)
    return f"beta1 {beta1:g}, {implicit if training.beta1 == 'auto' else 'as told'}"


def facts_of_ranks(run: "Trainer") -> dict[str, Any]:
    """How many there are, where, how they share batches and gradients; rank 0's CPUs for all."""
    return {
        "size": run.group.size,
        "hosts": list(run.group.hosts),
        "launcher": run.place.ranks.launcher,
        "exchange": way_of(run),
        "compute_groups": run.config.distributed.groups,
        "images_of_a_batch": list(run.batches.images),
        "measured_images_per_second": list(run.batches.speeds) or None,
        "pinned": run.place.pinned.enabled,
        "cpus_of_rank_0": list(run.place.pinned.share.cpus),
        "environment_of_rank_0": dict(run.place.pinned.environment),
    }


def way_of(run: "Trainer") -> str:
    """`shared memory`, `gloo`, `ccl`; `none` for one rank."""
    return run.exchange.way if run.exchange else "none"
