"""Measure a plan: variants in turn, with the result written after every round.

Variants are workers' processes, or whole jobs: ranks started by mpirun, pinned as a training pins
them (`JobRunner`). Some ablations also compare two variants' calls of oneDNN, as `profiling
compare` does, and some read photos. Only one measurement runs on a machine at a time:
two would disturb each other.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from common.console import progress
from common.errors import InputError
from common.files import write_atomically, write_json
from common.locks import FileLock, LockHeldError
from common.machine import code_version, environment, installed_versions
from common.stored import first_difference
from data.packed import open_image_file
from launch.mpirun import choose_mpirun
from profiling.ablate.result import (
    JOBS,
    READS_PHOTOS,
    Plan,
    Result,
    read_result,
)
from profiling.bench.data_bench import draw, photos_in, read_list, write_list
from profiling.bench.job import MeasuredJob, RankSteps, measure_ranks, per_step
from profiling.bench.results import background_load
from profiling.bench.variant import Run, Variant, Workload
from profiling.bench.worker_pool import Runner, WorkerPool, run_interleaved, variant_worker
from profiling.compare import KIND_FIELDS, Side, compare, sum_by_kind
from profiling.onednn_log.log import read_logs

OTHER_PACKAGES = ("simplejpeg", "pillow", "numpy", "mlperf-logging", "mpich")
MAY_DIFFER = ("code", "kernel")
"""Between the rounds of one result: a commit more changes nothing, or the definition too."""


def measured_on() -> dict[str, str | int]:
    """Return machine, packages and code; runs git, so call it once for all results of a command."""
    code = code_version()
    commit = f"{code['commit'] or 'unknown'}{' and changes' if code['is_modified'] else ''}"
    return {**environment(), **installed_versions(OTHER_PACKAGES), "code": commit}


def begun_result(
    plan: Plan, file: Path, *, command: str, on: Mapping[str, str | int], overwrite: bool
) -> Result:
    """Return the stored result of a plan, else one without rounds; `on`: `measured_on`.

    Raises:
        InputError: The file is of another machine, other packages or another definition.
    """
    if overwrite or not file.exists():
        return Result(
            ablation=plan.name,
            size=plan.size,
            command=command,
            environment=on,
            definition=plan.definition,
            left_out=plan.left_out,
            rounds_wanted=plan.rounds,
        )
    result, definition = read_result(file), plan.definition
    stored = {**result.environment, "definition": result.definition}
    current = {**{name: on.get(name) for name in result.environment}, "definition": definition}
    if difference := first_difference(stored, current, ignored=MAY_DIFFER):
        name, before, after = difference
        what = f"{name} {before}, now {after}"
        if name == "definition":
            parts = [part for part, value in definition.items() if before[part] != value]
            what = f"another definition ({', '.join(parts)})"
        raise InputError(
            f"{file}: was measured with {what}; use --overwrite to replace it, or another --out"
        )
    # Fewer rounds than an earlier command wanted do not end its measurement early.
    return replace(
        result, rounds_wanted=max(result.rounds_wanted, plan.rounds), left_out=plan.left_out
    )


COUNT = 128  # Photos that decoders read, at most


@dataclass
class Photos:
    """The photos that decoders read: those of a folder, or synthetic images made when needed."""

    folder: Path | None  # The folder of a user's photos; None: synthetic images
    scratch: Path  # Folder for the list and for synthetic images
    console: Console

    def list_file(self) -> Path:
        """Return the file that lists the photos.

        Raises:
            InputError: The folder holds no image.
        """
        file = self.scratch / "photos.json"
        if not file.exists():
            folder = self.folder
            if folder is None:
                folder = draw(self.scratch / "drawn", count=COUNT, console=self.console)
            write_list(photos_in(folder, limit=COUNT, option="--photos"), file)
        return file

    def describe(self) -> str:
        """Describe the photos: number, size and digest; raise InputError as `list_file`."""
        photos = read_list(str(self.list_file()))
        contents = []
        for photo in photos:
            with open_image_file(photo) as file:
                contents.append(file.read())
        # A later command must read the same photos to add rounds.
        digest = hashlib.sha256(b"".join(contents)).hexdigest()
        megabytes = sum(map(len, contents)) / 1e6
        # Part of the definition in result files: another text would refuse to continue older ones.
        what = "drawn scenes" if self.folder is None else "photos"
        return f"{len(contents)} {what}, {megabytes:.1f} MB, SHA-256 {digest[:12]}…"


def with_photo_description(plan: Plan, photos: Photos) -> Plan:
    """Return a plan with the description of the photos, if its variants decode any."""
    if not any(variant.recipe.startswith(READS_PHOTOS) for variant in plan.variants.values()):
        return plan
    return replace(plan, photos=photos.describe())


def measure(plan: Plan, begun: Result, file: Path, *, photos: Photos, console: Console) -> Result:
    """Measure the rounds that `begun` lacks; each is written to the file when it is complete.

    In the scratch folder of `photos` is also what ablations share.

    Raises:
        WorkerDiedError, JobFailedError: A variant failed.
        InputError: The file cannot be written.
    """
    started = now()
    result = begun if begun.rounds else replace(begun, began=started, ended=started)
    if result.is_complete:
        write_json(file, asdict(result))
        return result
    missing = result.rounds_wanted - len(result.rounds)
    variants = list(plan.variants.values())

    def start(variant: Variant, workload: Workload) -> Runner:
        if plan.ablation.recipe == JOBS:
            print_line = partial(console.print, soft_wrap=True)
            return JobRunner(
                variant, workload, scenes=photos.scratch / "scenes", print_line=print_line
            )
        if variant.recipe.startswith(READS_PHOTOS):
            options = {**variant.options, "photos": str(photos.list_file())}
            variant = replace(variant, options=options)
        return variant_worker(variant, workload)

    # If a run draws random numbers, each round has its own, resumed or not.
    workload = replace(plan.workload, seed=len(result.rounds))
    total = len(variants) * (plan.warm_up + missing)
    with (
        background_load() as others,
        WorkerPool(workload, warm_up=plan.warm_up, print_line=console.print, start=start) as pool,
        progress(console, f"{plan.name}, runs", total=total) as advance,
    ):
        settling = plan.ablation.settling
        for runs in run_interleaved(
            pool, variants, rounds=missing, advance=advance, settling=settling
        ):
            if plan.ablation.calls is not None and result.calls is None:
                # With the first round, so that no result is complete without them.
                calls = compare_calls(plan.ablation.calls, pool, plan.variants, folder=file.parent)
                result = replace(result, calls=calls)
            rounds = (*result.rounds, runs)
            result = replace(result, rounds=rounds, facts=pool.facts, ended=now())
            write_json(file, asdict(result))
    result = replace(result, busy_cores=(*result.busy_cores, round(others.cores, 3)))
    write_json(file, asdict(result))
    return result


def now() -> str:
    """Return the time of day in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class JobRunner:
    """A variant that is a job, started for each run."""

    rss_mb = 0.0

    def __init__(
        self,
        variant: Variant,
        workload: Workload,
        *,
        scenes: Path,
        print_line: Callable[[str], None],
    ) -> None:
        """The variant's options: `ranks`, `threads`, `images` of each rank in a step, `workers`.

        Without the option `images`, the workload's number is used. `scenes` is the folder for
        synthetic data; `print_line` is called with each line that the ranks print.

        Raises:
            InputError: There is no mpirun.
        """
        options = variant.options
        self.images = int(options.get("images", workload.images))
        self.facts: dict[str, Any] = {}
        self._print_line = print_line
        self._mpirun = choose_mpirun(None)
        self._job = MeasuredJob(
            ranks=int(options["ranks"]),
            config="demo.yaml",
            overrides=(
                f"launch.threads={options['threads']}",
                f"training.batch_size={self.images}",
                f"data.image_size={workload.image_size}",
                f"data.workers={options.get('workers', 0)}",
                f"engine.allocator={variant.allocator}",
                f"engine.precision={options['precision']}",
                f"model.num_classes={workload.classes}",
                "data.scenes={train: 96, validation: 1}",
                # Category ids as indices leave the head the workload's number of classes.
                "data.class_indices=category_id",
            ),
            warm_up=int(options.get("warm_up_steps", 2)),
            steps=int(options.get("steps", 4)),
            alternate=False,
            scenes=scenes,
        )

    def run(self) -> Run:
        """Run a job from start to end.

        Raises:
            JobFailedError: It failed; its ranks have printed the reason.
        """
        ranks = measure_ranks(
            self._job, mpirun=self._mpirun, advance=lambda step: None, print_line=self._print_line
        )
        return summarize_job(ranks, images=self.images)

    def ask(self, question: str) -> dict[str, Any]:
        """Raise an error: a job has no worker to query."""
        raise NotImplementedError(question)

    def close(self) -> None:
        """Do nothing: a run leaves no process."""


def summarize_job(ranks: list[RankSteps], *, images: int) -> Run:
    """Return a job's median step, and what part of it was waiting; ranks report no memory."""
    steps = per_step(ranks, "seconds")
    seconds = median(steps)
    return Run(
        seconds=seconds,
        page_faults=0,
        rss_mb=0.0,
        peak_rss_mb=0.0,
        details={
            "images a second": len(ranks) * images / seconds,
            "waiting for data": median(per_step(ranks, "data_seconds")),
            "waiting for gradients": median(per_step(ranks, "exchange_seconds", min)),
        },
    )


def compare_calls(
    names: tuple[str, str], pool: WorkerPool, variants: Mapping[str, Variant], *, folder: Path
) -> dict[str, Any] | None:
    """Log a step of each of two variants to the folder; return what `compare` finds in the logs.

    None where one of the two cannot run here.
    """
    if not all(name in variants for name in names):
        return None
    sides = []
    for name in names:
        log = folder / f"{name}.log"
        # The logs stay beside the result, for `profiling compare`.
        write_atomically(log, pool.worker(variants[name]).ask("log")["log"])
        sides.append(Side(name, read_logs([log])))
    comparison = compare(*sides, by_step=False)
    fields = ("kind", "direction", "shape", "extra_calls", "extra_ms")
    records = [pair.record() for pair in comparison.only_one[:20]]
    return {
        "first": names[0],
        "second": names[1],
        "logs": [f"{name}.log" for name in names],
        "kinds": [
            {"kind": kind.name, **{name: kind.record()[name] for name in KIND_FIELDS[2:]}}
            for kind in sum_by_kind(comparison.pairs)
        ],
        "only_one": [{name: record[name] for name in fields} for record in records],
    }


@contextmanager
def alone_on_this_machine() -> Iterator[None]:
    """Lock the machine against other measurements of this user in the context.

    Raises:
        InputError: Another measurement holds it, or the lock cannot be made.
    """
    # Among the temporary files, as a home may be that of many hosts.
    file = Path(tempfile.gettempdir(), f"retinanet-ablate-{os.getuid()}.lock")
    try:
        lock = FileLock(file)
        lock.take()
    except LockHeldError as error:
        raise InputError(
            "another `ablate run` is measuring on this machine; wait until it has finished"
        ) from error
    except OSError as error:
        raise InputError(f"{file}: cannot be opened: {error.strerror}; set TMPDIR") from error
    try:
        yield
    finally:
        lock.release()
