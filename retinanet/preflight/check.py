"""All checks of a run: those of `--check`, and the cheap ones that every start makes.

`check` makes all of them, on every host of the job, and prints the results. `check_start` makes
those that take some 100 milliseconds once torch is loaded, before anything is written.
"""

import os
import sys
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from common.errors import BAD_INPUT, FINISHED, InputError, one_line
from common.machine import anonymous_bytes
from launch.host_state import HostState, read_host_state
from launch.limits import free_memory
from launch.pinning import RankContext, chosen_backend
from launch.process_group import ProcessGroup
from launch.ranks import Ranks
from launch.shares import Share
from retinanet.config import Config
from retinanet.config_file import RunOptions
from retinanet.engine.engines import chosen_engine
from retinanet.memory import MemoryNeed, ModelBytes, memory_need, model_bytes
from retinanet.preflight import host, run
from retinanet.preflight.findings import (
    Finding,
    failure,
    merged,
    print_findings,
    warning,
)
from retinanet.preflight.host_state import (
    HostReport,
    check_host_state,
    check_hosts,
    differences_of_hosts,
    software,
)
from retinanet.training.run_folder import holds_work


@dataclass(kw_only=True)
class Job:
    """A run to be checked: its configuration, command line and number of ranks."""

    config: Config
    arguments: RunOptions
    ranks: Ranks
    local_ranks: int  # Ranks of this host: the started ones, or --check-ranks
    all_ranks: int

    @cached_property
    def known(self) -> run.KnownData:
        """The known sizes of the run's data."""
        return run.known_data(self.config)

    @cached_property
    def sizes(self) -> ModelBytes:
        """The sizes of the run's model; with one class if their number is unknown."""
        model, training = self.config.model, self.config.training
        return model_bytes(model, training, num_classes=self.known.classes)

    def memory_need(self, engine: str) -> MemoryNeed:
        """Return the estimated memory of a rank."""
        return memory_need(
            self.config,
            self.sizes,
            num_classes=self.known.classes,
            engine=engine,
            ranks_on_host=self.local_ranks,
            validation_images=self.known.validation_images,
        )

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.config.run.root / self.config.run.name

    @property
    def resumes(self) -> bool:
        """Whether the job resumes an earlier run."""
        arguments = self.arguments
        return arguments.resume or (arguments.auto_resume and holds_work(self.folder))


def check(config: Config, arguments: RunOptions, *, group: ProcessGroup, place: RankContext) -> int:
    """Run and print all checks of a run, and return the exit code; leaves no files.

    Each rank of the group calls this.
    """
    began = time.monotonic()
    ranks = place.ranks
    planned = arguments.check_ranks or ranks.local_size
    # One rank of each host checks: hosts differ, the ranks of one do not.
    of_host = None
    if ranks.local_rank == 0:
        total = max(group.size, planned)
        job = Job(
            config=config, arguments=arguments, ranks=ranks, local_ranks=planned, all_ranks=total
        )
        placed = replace(ranks, local_size=planned, size=max(ranks.size, planned))
        placements, shares = host.check_placement(config, placed, started=place)
        findings = [
            *placements,
            *(warning(host.PLACEMENT, note, fix=host.SEE_PLAN) for note in place.pinned.notes),
            host.check_allocator(config.engine.allocator),
        ]
        # With these the other checks continue if the configured engine or backend is not installed.
        engine, backend = "torch", "gloo"
        try:
            engine = chosen_engine(config.engine.name)
            backend = chosen_backend(config.distributed.backend)
        except InputError as error:
            findings.append(failure("engine", str(error)))
        need = job.memory_need(engine)
        report = HostReport(
            host=group.hosts[group.rank],
            state=read_host_state(),
            shares=shares,
            memory_of_rank=need.all,
            software=software(config.engine.precision),
            pinned=config.launch.pin,
        )
        findings += [
            *cheap_host_findings(job, need, engine=engine, backend=backend),
            *check_host_state(report),
            host.check_versions(),
            *run.check_data(config, ranks=job.all_ranks),
        ]
        if group.is_first:
            folder = run.check_run_folder(
                job.folder, config, resume=job.resumes, overwrite=arguments.overwrite
            )
            findings += [
                *run.check_ranks(config, ranks=job.all_ranks),
                folder,
                *cheap_run_findings(job),
                *([] if job.resumes else [run.check_weights(config)]),
            ]
        of_host = (report, findings)
    # Rank 0 prints the findings of all hosts, and all ranks end with its exit code.
    hosts = group.gather(of_host, tuple[HostReport, list[Finding]] | None)
    has_failed = False
    if hosts is not None:
        checked = [item for item in hosts if item is not None]
        rows = merged([(report.host, findings) for report, findings in checked])
        rows += differences_of_hosts([report for report, _ in checked])
        print_findings(rows, seconds=time.monotonic() - began)
        lines = [row.line for row in rows if row.level == "failure"]
        print("".join(f"error: {one_line(line)}\n" for line in lines), end="", file=sys.stderr)
        has_failed = bool(lines)
    return BAD_INPUT if group.from_first(lambda: has_failed, bool) else FINISHED


def check_start(
    config: Config,
    arguments: RunOptions,
    *,
    group: ProcessGroup,
    place: RankContext,
    engine: str,
) -> tuple[ProcessGroup, dict[str, HostState]]:
    """Make the cheap checks on the first rank of each host; each rank of the group calls this.

    The `engine` is `torch` or `ipex`. Returns the group, with the warnings among its notes, and on
    rank 0 the state of each host; none on other ranks.

    Raises:
        InputError: The run cannot work; nothing was written.
    """
    ranks, share, pinned = place.ranks, place.pinned.share, place.pinned.enabled
    name, report = group.hosts[group.rank], None
    if ranks.local_rank == 0:
        local, total = ranks.local_size, max(group.size, ranks.local_size)
        job = Job(
            config=config, arguments=arguments, ranks=ranks, local_ranks=local, all_ranks=total
        )
        need = job.memory_need(engine)
        findings = cheap_host_findings(job, need, engine=engine, backend=place.backend)
        if group.is_first:
            findings += cheap_run_findings(job)
        for finding in findings:
            if finding.level == "failure":
                raise InputError(finding.line)
        notes = tuple(finding.line for finding in findings if finding.level == "warning")
        group = replace(group, notes=(*group.notes, *notes))
        report = HostReport(
            host=name,
            state=read_host_state(),
            memory_of_rank=need.all,
            software=software(config.engine.precision),
            pinned=pinned,
        )
    gathered = group.gather((name, share, report), tuple[str, Share, HostReport | None])
    if gathered is None:
        return group, {}
    reports = [
        replace(report, shares=tuple(share for name, share, _ in gathered if name == report.host))
        for _, _, report in gathered
        if report is not None
    ]
    notes = tuple(finding.line for finding in check_hosts(reports))
    group = replace(group, notes=(*group.notes, *notes))
    return group, {report.host: report.state for report in reports}


def cheap_host_findings(job: Job, need: MemoryNeed, *, engine: str, backend: str) -> list[Finding]:
    """Make the cheap checks of one host, whose ranks need so much memory each."""
    config, known, sizes, planned = job.config, job.known, job.sizes, job.local_ranks
    free = free_memory()
    # The first rank's host holds the copies that checkpoints are written from, and compute groups
    # have the weights and the optimizer's state in common.
    once = sizes.checkpoint
    if config.distributed.groups > 1:
        once += sizes.trained + sizes.optimizer
    once = once if job.ranks.is_first else 0
    # Started ranks have loaded torch, which the free memory shows; planned ones have not.
    not_started = max(0, planned - job.ranks.local_size) * anonymous_bytes()
    memory = host.check_memory(need, ranks=planned, once=once, not_started=not_started, free=free)
    return [
        *host.check_launcher(job.ranks, os.environ, planned=planned),
        *host.check_counts(config, known, engine=engine, ranks=planned, free=free),
        host.check_shared_memory(config, ranks=planned),
        host.check_open_files(config),
        memory,
        host.check_precision(config.engine.precision, convolutions=config.engine.convolutions),
        host.check_compiler(config.engine.focal_loss),
        *host.check_conflicts(engine=engine, backend=backend),
    ]


def cheap_run_findings(job: Job) -> list[Finding]:
    """Make the cheap checks of the run: write access and disk space."""
    writing = run.check_writing(job.folder)
    if writing.level == "failure":
        return [writing]
    place = run.existing(job.folder)
    uses_folder = job.resumes or job.arguments.overwrite
    existing = run.disk_usage(job.folder / "checkpoints") if uses_folder else 0
    # The checkpoints of a resumed run count towards what it needs; --overwrite removes them before.
    held, freed = (existing, 0) if job.resumes else (0, existing)
    need = run.disk_need(job.config, job.sizes, job.known, ranks=job.all_ranks)
    free = run.free_space(place)
    return [writing, run.check_disk(place, free=free, need=need, held=held, freed=freed)]
