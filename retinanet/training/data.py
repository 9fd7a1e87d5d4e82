"""The data of a run: both splits of a data set or of synthetic data, and how batches are loaded.

Batches are loaded in the training process or in separate processes (`Loading`). Images that cannot
be read are replaced and counted, up to a limit (`BadImages`).
"""

import math
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from common.console import progress
from common.errors import InputError
from common.files import or_refused
from common.locks import one_process_at_a_time
from data.dataset import DetectionData, open_data
from data.decoding import describe_decoder, resolve_decoder
from data.loader import DetectionLoader, EvaluationBatches, TrainingBatches, evaluation_loader
from data.synthetic import make_synthetic_data
from launch.process_group import ProcessGroup
from retinanet.config import Config
from retinanet.config_file import configured_split, training_rules
from retinanet.config_sections import DataConfig
from retinanet.config_types import loading_processes
from retinanet.training.agreement import in_turn, require_equal_data
from retinanet.training.loop import StepResult


def open_run_data(
    config: Config, *, scenes_folder: Path, console: Console, group: ProcessGroup | None = None
) -> DetectionData:
    """Open both splits, on rank 0 first; generate synthetic data in a folder before, if configured.

    All ranks of the group call it. The console shows the progress.

    Raises:
        InputError: Fields contradict each other, the decoder is not installed, or files are
            missing, not what they should be, or not those of the other ranks.
    """
    settings, scenes = config.data, config.data.scenes

    def open_here() -> DetectionData:
        # The decoder comes first: a missing one is reported before images are generated.
        decoder = resolve_decoder(settings.decoder)
        root = settings.root
        if scenes is not None:
            require_no_files(settings)
            root = scenes_folder
            root.parent.mkdir(parents=True, exist_ok=True)
            total = scenes.train + scenes.validation
            with (
                # Hosts with local disks need a copy each; the lock lets one rank per host make it.
                or_refused(root),
                one_process_at_a_time(
                    root.with_name(f".{root.name}.lock"), what=f"drawing {root}", tell=console.print
                ),
                progress(console, "generating images", total=total) as advance,
            ):
                make_synthetic_data(
                    root,
                    seed=config.run.seed,
                    train=scenes.train,
                    validation=scenes.validation,
                    advance=advance,
                )
        return open_data(
            configured_split(settings, "train", root=root),
            configured_split(settings, "validation", root=root),
            training_rules(config, decoder=decoder),
            console=console,
        )

    ranks = group or ProcessGroup()
    data = in_turn(ranks, open_here)
    splits = {"training": data.train.annotations, "validation": data.validation.annotations}
    require_equal_data(ranks, splits)
    return data


def require_no_files(settings: DataConfig) -> None:
    """Refuse a configuration with both synthetic data and a data set.

    Raises:
        InputError: Names the field that was given beside `data.scenes`.
    """
    fields = ("root", "train_annotations", "train_images")
    for name in (*fields, "validation_annotations", "validation_images"):
        value = getattr(settings, name)
        if value is not None:
            raise InputError(
                f"data.{name}: {value} is given together with data.scenes; add data.scenes=null "
                "to train on it, or start from --config coco.yaml or openimages.yaml"
            )


LARGEST_SHARE = 0.01
"""Largest share of a step that loading may take before it moves out of the training process."""
FIRST_STEPS = 3  # Slow steps at the start, in which kernels are built and memory is mapped
STEPS_MEASURED = 8


class Loading:
    """Both splits' batches, the processes that load them, and images that could not be read."""

    def __init__(
        self,
        data: DetectionData,
        config: Config,
        *,
        cores: tuple[int, ...],
        rank: int = 0,
        ranks: int = 1,
        evaluation_rank: int = 0,
        evaluation_ranks: int = 1,
    ) -> None:
        """Load this rank's part of each split as configured; `cores` are reserved for loading."""
        batch_size, workers = config.training.batch_size, config.data.workers
        self.batches = TrainingBatches(
            data.train.images, batch_size=batch_size, seed=config.run.seed, rank=rank, ranks=ranks
        )
        self.bad_images = BadImages(config.data.bad_image_limit)
        self.decoder = data.train.rules.decoder
        self.workers = loading_processes(workers, reserved_cores=len(cores))
        self.watch = LoadingWatch(is_open=workers == "auto" and not cores)
        self.train = DetectionLoader(data.train, self.batches, workers=self.workers, cores=cores)
        self.validation = evaluation_loader(
            data.validation,
            batch_size=config.evaluation.batch_size,
            workers=self.workers,
            cores=cores,
            rank=evaluation_rank,
            ranks=evaluation_ranks,
        )
        # Both loaders start their processes here, before training fills the memory. After a fork,
        # this process has a page fault for every page that it writes. With `auto` and no reserved
        # cores, the process stays idle until loading proves slow.
        for loader in (self.train, self.validation):
            loader.start_workers()
            loader.in_this_process = self.watch.is_open

    def share_evaluation(self, *, rank: int, ranks: int) -> None:
        """Change this rank's part of the validation images, after other ranks have ended."""
        batches = self.validation.batch_sampler.batches
        assert isinstance(batches, EvaluationBatches)
        batches.share(rank=rank, ranks=ranks)

    def describe(self) -> str:
        """Return the decoder of images and the place where it runs."""
        where = "in the training process"
        if self.watch.is_open:
            where += ", or in a loading process if steps wait for data"
        elif self.workers:
            where = f"in {self.workers} loading process{'' if self.workers == 1 else 'es'}"
        return f"{describe_decoder(self.decoder)}, {where}"

    def move_out_if_needed(self, result: StepResult) -> str | None:
        """Record a step; return a message, at most once, if loading moves to a separate process.

        The caller must then restart the iteration over batches at the next step.
        """
        reason = self.watch.step(result)
        if reason:
            self.train.in_this_process = self.validation.in_this_process = False
        return reason


@dataclass
class LoadingWatch:
    """Starts a loading process if loading is too slow, with `data.workers=auto`.

    A loading process needs the same core time as loading in the training process. It saves time if
    loading waits for a disk or a network, or if training leaves a core idle. It never costs time
    (docs/experiments.md), but below `LARGEST_SHARE` it saves none either.
    """

    is_open: bool  # Whether the decision is still pending
    seen: list[StepResult] = field(default_factory=list)

    def step(self, result: StepResult) -> str | None:
        """Record a step; return, at most once, a message about why loading should move."""
        if not self.is_open:
            return None
        self.seen.append(result)
        if len(self.seen) < FIRST_STEPS + STEPS_MEASURED:
            return None
        self.is_open = False
        measured = self.seen[FIRST_STEPS:]
        waited = sum(result.data_seconds for result in measured)
        share = waited / sum(result.seconds for result in measured)
        self.seen.clear()
        if share <= LARGEST_SHARE:
            return None
        text = f"loading took {share:.1%} of step time: a separate process loads from now on"
        # Loading takes `share` of a step, computation the rest. n processes keep up if share / n is
        # at most 1 - share.
        needed = math.ceil(share / (1 - share))
        if needed > 1:
            text += f"; set data.workers={needed} to keep up"
        return text


@dataclass
class BadImages:
    """The images of a run that could not be read, up to a limit. Each counts once."""

    limit: int
    seen: set[str] = field(default_factory=set)

    def note(self, problems: tuple[str, ...]) -> list[str]:
        """Record the unreadable images of a step; return the new ones.

        Raises:
            InputError: There are more than the limit.
        """
        new = [problem for problem in dict.fromkeys(problems) if problem not in self.seen]
        self.seen.update(new)
        if new and len(self.seen) > self.limit:
            raise InputError(
                f"{new[-1]}; more than data.bad_image_limit={self.limit} images could not be read: "
                "run `retinanet data verify`, which finds all of them"
            )
        return new
