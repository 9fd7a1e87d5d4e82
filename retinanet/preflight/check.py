"""`train.py --check`: all checks, on every host of the job, and what they come to.

TODO-DOC What every start checks before anything is written.
"""

import argparse
import socket
import sys
import time
from dataclasses import replace

from common.errors import BAD_INPUT, FINISHED, InputError, one_line
from launch.process_group import ProcessGroup
from launch.rank_context import RankContext, chosen_backend
from launch.ranks import Ranks
from retinanet.config import Config
from retinanet.engine.engines import chosen_engine
from retinanet.preflight.data import KnownData, check_data, known_data
from retinanet.preflight.findings import Finding, failure, merged, print_findings
from retinanet.preflight.host import check_allocator, check_placement, check_versions
from retinanet.preflight.memory import ModelBytes
from retinanet.preflight.quick import checks_of_host, checks_of_run, sizes_of_model
from retinanet.preflight.run import (
    check_groups,
    check_run_folder,
    check_split,
    check_weights,
    resumes,
)


def check(
    config: Config, arguments: argparse.Namespace, *, group: ProcessGroup, place: RankContext
) -> int:
    """Look at all that a run needs, print it, and return the exit code; nothing is left behind.

    Args:
        config: The run's.
        arguments: Its command line: `resume`, `auto_resume`, `overwrite`, `check_ranks`.
        group: The ranks that were started; each calls this.
        place: This one's.
    """
    began = time.monotonic()
    ranks = place.ranks
    planned = arguments.check_ranks or ranks.local_size
    own: list[Finding] = []
    known = known_data(config)
    sizes = sizes_of_model(config, known)
    if ranks.local_rank == 0:
        own = host_findings(config, sizes, known=known, ranks=ranks, planned=planned)
        own += check_data(config, ranks=max(group.size, planned))
    if group.is_first:
        own += run_findings(config, arguments, sizes, known=known, ranks=max(group.size, planned))
    parts = group.gather((group.hosts[group.rank], own) if ranks.local_rank == 0 else None)
    failed = False
    if parts is not None:
        findings = merged([part for part in parts if part is not None])
        print_findings(findings, seconds=time.monotonic() - began)
        lines = [one.line for one in findings if one.level == "failure"]
        print("".join(f"error: {one_line(line)}\n" for line in lines), end="", file=sys.stderr)
        failed = bool(lines)
    return BAD_INPUT if group.from_first(lambda: failed) else FINISHED


def host_findings(
    config: Config, sizes: ModelBytes, *, known: KnownData, ranks: Ranks, planned: int
) -> list[Finding]:
    """What concerns one host, which its first rank looks at."""
    placed = replace(ranks, local_size=planned, size=max(ranks.size, planned))
    findings = [
        *check_placement(config, placed, host_name=socket.gethostname()),
        check_allocator(config.engine.allocator),
    ]
    engine, backend = "torch", "gloo"
    try:
        engine = chosen_engine(config.engine.name)
        backend = chosen_backend(config.distributed.backend)
    except InputError as error:
        findings.append(failure("engine", str(error), fix=""))
    findings += checks_of_host(
        config,
        sizes,
        known=known,
        ranks=ranks,
        planned=planned,
        engine=engine,
        backend=backend,
    )
    return [*findings, check_versions()]


def run_findings(
    config: Config,
    arguments: argparse.Namespace,
    sizes: ModelBytes,
    *,
    known: KnownData,
    ranks: int,
) -> list[Finding]:
    """What concerns the run as a whole, which the first rank looks at."""
    path = config.run.root / config.run.name
    resume = resumes(path, resume=arguments.resume, auto_resume=arguments.auto_resume)
    overwrite = arguments.overwrite
    return [
        *check_split(config, ranks=ranks),
        *check_groups(config, ranks=ranks),
        check_run_folder(path, config, resume=resume, overwrite=overwrite),
        *checks_of_run(
            config,
            sizes,
            path=path,
            known=known,
            ranks=ranks,
            resume=resume,
            overwrite=overwrite,
        ),
        *([] if resume else [check_weights(config.model)]),
    ]


def checked(
    config: Config,
    arguments: argparse.Namespace,
    *,
    group: ProcessGroup,
    place: RankContext,
    engine: str,
) -> ProcessGroup:
    """Make the cheap checks, on one rank of each host; it says what may go wrong as its notes.

    Args:
        config: The run's.
        arguments: Its command line: `resume`, `auto_resume`, `overwrite`.
        group: All ranks; each calls this.
        place: This one's.
        engine: `torch` or `ipex`.

    Returns:
        The group, with what there is to say.

    Raises:
        InputError: The run cannot work; nothing was written.
    """
    ranks = place.ranks
    if ranks.local_rank:
        return group
    known = known_data(config)
    sizes = sizes_of_model(config, known)
    findings = checks_of_host(
        config,
        sizes,
        known=known,
        ranks=ranks,
        planned=ranks.local_size,
        engine=engine,
        backend=place.backend,
    )
    if group.is_first:
        path = config.run.root / config.run.name
        findings = findings + checks_of_run(
            config,
            sizes,
            path=path,
            known=known,
            ranks=group.size,
            resume=resumes(path, resume=arguments.resume, auto_resume=arguments.auto_resume),
            overwrite=arguments.overwrite,
        )
    for finding in findings:
        if finding.level == "failure":
            raise InputError(finding.line)
    notes = tuple(finding.line for finding in findings if finding.level == "warning")
    return replace(group, notes=(*group.notes, *notes))
