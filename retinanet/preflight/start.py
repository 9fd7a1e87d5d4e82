"""What every start checks before anything is written."""

import argparse
from dataclasses import replace

from launch.group.process_group import ProcessGroup
from launch.place import Place
from retinanet.config import Config
from retinanet.errors import InputError
from retinanet.preflight.known_data import known_data
from retinanet.preflight.quick import checks_of_host, checks_of_run, sizes_of_model
from retinanet.preflight.run_state import resumes


def checked(
    config: Config,
    arguments: argparse.Namespace,
    *,
    group: ProcessGroup,
    place: Place,
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
