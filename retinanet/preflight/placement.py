"""Whether the ranks of a host find their cores, and what that leaves idle."""

from launch.host.allowance import read_allowance
from launch.host.cpu_lists import format_cpu_list
from launch.host.topology import read_topology
from launch.pinning.binding import host_cpus
from launch.placement.fitting import count_ranks
from launch.plan.command import NOT_PINNED, configured_plan
from launch.ranks import Ranks
from launch.start.starting_words import ranks_option
from retinanet.config import Config
from retinanet.errors import InputError
from retinanet.preflight.finding import Finding, failure, ok, warning

SUBJECT = "placement"


def check_placement(config: Config, ranks: Ranks, *, host_name: str) -> list[Finding]:
    """Plan the ranks of this host, as they will place themselves.

    Args:
        config: Its sections `launch` and `distributed`, and the cores that load images.
        ranks: Their number on this host; what started them.
        host_name: This host's.
    """
    host = read_topology()
    try:
        plan = configured_plan(
            config,
            host,
            allowed=host.restricted(host_cpus(ranks)),
            quota=read_allowance().quota,
            hosts=((host_name, ranks.local_size),),
            option=ranks_option(ranks.launcher),
        )
    except InputError as error:
        what, _, fix = str(error).rpartition(": ")
        return [failure(SUBJECT, what, fix=fix)]
    shares = [one.share for one in plan.hosts[0].ranks]
    cpus = format_cpu_list(cpu for share in shares for cpu in share.cpus)
    threads = shares[0].threads
    found = f"{count_ranks(len(shares))} of {threads} thread{'s' if threads > 1 else ''}"
    notes = [note for note in plan.notes if note != NOT_PINNED]
    return [
        ok(SUBJECT, f"{found} on CPUs {cpus}"),
        *(warning(SUBJECT, note, fix="see `python -m launch plan`") for note in notes),
    ]
