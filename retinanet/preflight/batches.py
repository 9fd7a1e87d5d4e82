"""Whether batches can be split among the ranks, and ranks into groups, as they are told to be."""

from retinanet.batch_split import planned_split
from retinanet.compute_groups import planned_groups
from retinanet.config import Config
from retinanet.errors import InputError
from retinanet.preflight.finding import Finding, failure, ok

SUBJECT = "batches"
GROUPS = "compute groups"


def check_split(config: Config, *, ranks: int) -> list[Finding]:
    """Hold `distributed.batch_split` against so many ranks; nothing where it is even."""
    split, batch_size = config.distributed.batch_split, config.training.batch_size
    try:
        planned = planned_split(split, batch_size=batch_size, ranks=ranks)
    except InputError as error:
        return [failure(SUBJECT, str(error), fix="")]
    return [ok(SUBJECT, planned)] if planned else []


def check_groups(config: Config, *, ranks: int) -> list[Finding]:
    """Hold `distributed.groups` against so many ranks; nothing where there is one."""
    try:
        planned = planned_groups(config.distributed.groups, ranks=ranks)
    except InputError as error:
        return [failure(GROUPS, str(error), fix="")]
    return [ok(GROUPS, planned)] if planned else []
