"""Variants that are whole jobs: ranks started by mpirun, pinned as train.py pins them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from launch.resources import page_faults
from launch.start.mpirun import choose_mpirun
from profiling.bench.contestant import Contestant
from profiling.bench.measured_job import MeasuredJob, measure_ranks
from profiling.bench.rank_steps import RankSteps, exposed, slowest, waited_for_data
from profiling.bench.run import Run
from profiling.bench.workload import Workload

STEPS = 4
WARM_UP = 2


class JobRunner:
    """Runs a job anew each time; between two runs there is nothing."""

    rss_mb = 0.0

    def __init__(
        self,
        contestant: Contestant,
        workload: Workload,
        *,
        scenes: Path,
        say: Callable[[str], None],
    ) -> None:
        """Options: `ranks`, `threads`, `images` of each rank in a step, `workers` that load.

        Args:
            contestant: Its options are the job's.
            workload: The size of images; `images` where the options do not say.
            scenes: Folder for drawn scenes.
            say: Is told what the ranks print.

        Raises:
            InputError: There is no mpirun.
        """
        options = contestant.options
        self.images = int(options.get("images", workload.images))
        self.facts: dict[str, Any] = {}
        self._say = say
        self._mpirun = choose_mpirun(None)
        self._job = MeasuredJob(
            ranks=int(options["ranks"]),
            config="demo.yaml",
            overrides=(
                f"launch.threads={options['threads']}",
                f"training.batch_size={self.images}",
                f"data.image_size={workload.image_size}",
                f"data.workers={options.get('workers', 0)}",
                f"engine.allocator={contestant.allocator}",
                f"engine.precision={options['precision']}",
                f"model.num_classes={workload.classes}",
                "data.scenes={train: 96, validation: 1}",
                "data.class_indices=category_id",
            ),
            warm_up=int(options.get("warm_up_steps", WARM_UP)),
            steps=int(options.get("steps", STEPS)),
            alternate=False,
            scenes=scenes,
        )

    def run(self) -> Run:
        """A job from start to end.

        Raises:
            JobFailedError: It did not end well; its ranks have said why.
        """
        faults = page_faults()
        ranks = measure_ranks(
            self._job, mpirun=self._mpirun, advance=lambda step: None, say=self._say
        )
        return run_of(ranks, images=self.images, faults=page_faults() - faults)

    def ask(self, question: str) -> dict[str, Any]:
        """A job answers nothing else."""
        raise NotImplementedError(question)

    def close(self) -> None:
        """Nothing is left of it."""


def run_of(ranks: list[RankSteps], *, images: int, faults: int) -> Run:
    """A job's median step, and what part of it was waiting."""
    steps = slowest(ranks)
    seconds = median(steps)
    return Run(
        seconds=seconds,
        page_faults=faults,
        rss_mb=0.0,
        peak_rss_mb=0.0,
        details={
            "images a second": len(ranks) * images / seconds,
            "waiting for data": median(waited_for_data(ranks)),
            "waiting for gradients": median(exposed(ranks)),
        },
    )


def job_starter(
    scenes: Path, say: Callable[[str], None]
) -> Callable[[Contestant, Workload], JobRunner]:
    """What makes runners for `Crew`."""
    return partial(JobRunner, scenes=scenes, say=say)
