"""`train.py --check`: all checks, on every host of the job, and what they come to."""

import argparse
import socket
import sys
import time
from dataclasses import replace

from launch.group.process_group import ProcessGroup
from launch.place import Place, chosen_backend
from launch.ranks import Ranks
from retinanet.config import Config
from retinanet.engine.engines import chosen_engine
from retinanet.errors import InputError
from retinanet.exit_codes import BAD_INPUT, FINISHED
from retinanet.preflight.allocator import check_allocator
from retinanet.preflight.batches import check_groups, check_split
from retinanet.preflight.data import check_data
from retinanet.preflight.finding import Finding, failure
from retinanet.preflight.known_data import KnownData, known_data
from retinanet.preflight.model_bytes import ModelBytes
from retinanet.preflight.placement import check_placement
from retinanet.preflight.quick import checks_of_host, checks_of_run, sizes_of_model
from retinanet.preflight.report import merged, print_findings
from retinanet.preflight.run_state import check_run_folder, resumes
from retinanet.preflight.versions import check_versions
from retinanet.preflight.weights import check_weights
from retinanet.printable import one_line


def check(
    config: Config, arguments: argparse.Namespace, *, group: ProcessGroup, place: Place
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
