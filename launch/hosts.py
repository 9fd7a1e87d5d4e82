"""The hosts that a user names, and the options that name them.

`--hosts` has lists: `a,b`, `a:4,b:4`, and Slurm's `node[01-03,07]`. A hostfile has one host a line,
with the number of its places if it has one, in MPICH's way (`node1:8`) or in Open MPI's
(`node1 slots=8`); a host may also stand on one line for each place, as batch systems write it. `#`
starts a comment. Names that are not known here are refused before mpirun tries them.
"""

import itertools
import math
import re
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import InputError
from common.files import read_text
from common.options import option
from common.processes import finished
from launch.topology import is_number, join_numbers

MOST_HOSTS = 100_000
PIECE = re.compile(r"[^\[\]]+|\[[^\[\]]*\]")


def expand_hosts(text: str) -> tuple[str, ...]:
    """Return the names of a list such as `node[01-03,07],login1` or `rack[1-2]n[1-2]`, in order.

    Numbers keep their leading zeros; several brackets vary the last one first.

    Raises:
        InputError: Brackets or numbers are not such a list, a host is named twice or there is none.
    """
    hosts: list[str] = []
    for item in split_list(text):
        pieces = PIECE.findall(item)
        if "".join(pieces) != item or any(letter.isspace() for letter in item):
            raise wrong_list(text)
        choices = [
            expand_bracket(piece[1:-1], text) if piece.startswith("[") else [piece]
            for piece in pieces
        ]
        # Before the names are made: five brackets of a hundred numbers are ten billion hosts.
        count = len(hosts) + math.prod(map(len, choices))
        if count > MOST_HOSTS or item.startswith("-"):  # ssh would take it for an option
            raise wrong_list(text)
        hosts += map("".join, itertools.product(*choices))
    host, count = Counter(hosts).most_common(1)[0]
    if count > 1:
        raise InputError(f"hosts {text!r}: {host} is named twice; give each host once")
    return tuple(hosts)


def expand_bracket(content: str, text: str) -> list[str]:
    """Return the numbers of `01-03,07`, with the same number of digits."""
    numbers: list[str] = []
    for part in content.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (is_number(first) and is_number(last) and int(first) <= int(last)):
            raise wrong_list(text)
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return numbers


def split_list(text: str) -> list[str]:
    """Return the items between commas that are not within brackets."""
    items = [item.strip() for item in re.findall(r"((?:\[[^\[\]]*\]|[^,])*),", f"{text},")]
    if not all(items):
        raise InputError(f"hosts {text!r}: a name is missing; expected a list such as a,b")
    return items


def wrong_list(text: str) -> InputError:
    """Return the error of a text that is no list of hosts, with an example."""
    return InputError(f"hosts {text!r}: expected a list such as a,b or node[01-04,07]")


def hosts_with_ranks(text: str, *, ranks: int | None) -> tuple[tuple[str, int], ...]:
    """Return hosts with their numbers of ranks: `a:4,b:4`, or `a,b`, which share `ranks` evenly.

    Names are those of `expand_hosts`. `ranks` counts over all hosts; None: the sum of the counts.

    Raises:
        InputError: The counts do not add up to `ranks`, or there are none and it cannot be divided.
    """
    items = split_list(text)
    counts = [item.rpartition(":")[2] if ":" in item else "" for item in items]
    if not any(counts):
        hosts = expand_hosts(text)
        if ranks is None:
            raise InputError(
                f"--hosts: no number of ranks; add --np N, or counts such as {hosts[0]}:4"
            )
        return evenly(hosts, ranks)
    for item, count in zip(items, counts, strict=True):
        if not is_number(count) or int(count) < 1:
            example = f"{item.partition(':')[0]}:4"
            raise InputError(f"--hosts: {item}: expected HOST:RANKS, such as {example}")
    names = [item.rpartition(":")[0] for item in items]
    expand_hosts(",".join(names))
    pairs = zip(names, map(int, counts), strict=True)
    ranks_by_host = tuple((host, count) for name, count in pairs for host in expand_hosts(name))
    total = sum(count for _, count in ranks_by_host)
    if ranks not in (None, total):
        raise InputError(f"--np {ranks}: the hosts' counts add up to {total}; use --np {total}")
    return ranks_by_host


def evenly(hosts: Sequence[str], ranks: int) -> tuple[tuple[str, int], ...]:
    """Return hosts with equal numbers of ranks; raise InputError if there is a remainder."""
    share, remainder = divmod(ranks, len(hosts))
    if remainder:
        below, above = share * len(hosts), (share + 1) * len(hosts)
        raise InputError(
            f"--np {ranks}: does not divide evenly among {len(hosts)} hosts; use "
            f"{f'{below} or {above}' if below else above}, "
            f"or counts such as {hosts[0]}:{share + 1}"
        )
    return tuple((host, share) for host in hosts)


LINE = re.compile(
    r"([A-Za-z0-9_][\w.-]*)(?::(\d{1,6})|\s+slots\s*=\s*(\d{1,6}))?(?:\s+max[_-]slots\s*=\s*\d+)?",
    re.ASCII,
)
"""A name cannot begin with a dash: launchers hand it to ssh, which would take it for an option."""

MOST_BYTES = 10_000_000
"""The limit of a hostfile: a line for each of a hundred thousand ranks is less."""


@dataclass(frozen=True)
class Host:
    """A line of a hostfile."""

    name: str
    slots: int | None  # Ranks that it has places for; None if the line has no number


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """Return the hosts of a file in its order, each once.

    Raises:
        InputError: The file cannot be read, holds no host, or a line is none.
    """
    try:
        text = read_text(path, most_bytes=MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise InputError(
            f"--hostfile: {path}: {reason}; give a text file with one host per line"
        ) from error
    hosts = []
    for number, whole in enumerate(text.splitlines(), start=1):
        line = whole.partition("#")[0].strip()
        if not line:
            continue
        match = LINE.fullmatch(line)
        slots = (match[2] or match[3]) if match else None
        if match is None or (slots and int(slots) == 0):
            raise InputError(
                f"--hostfile: {path}:{number}: found {line!r}, expected HOST, HOST:SLOTS or "
                "HOST slots=N"
            )
        hosts.append(Host(match[1], int(slots) if slots else None))
    if not hosts:
        raise InputError(f"--hostfile: {path}: no host; write one host per line, such as node1")
    if len({host.name for host in hosts}) < len(hosts):
        # Several lines of a host add up, and one without a number is one place.
        places: Counter[str] = Counter()
        for host in hosts:
            places[host.name] += host.slots or 1
        return tuple(Host(name, count) for name, count in places.items())
    unnumbered = [host.name for host in hosts if host.slots is None]
    if unnumbered and len(unnumbered) < len(hosts):
        raise InputError(
            f"--hostfile: {path}: {unnumbered[0]} has no number of slots, but other hosts have; "
            f"give every host one, such as {unnumbered[0]}:8, or none"
        )
    return tuple(hosts)


def ranks_of_hosts(hosts: tuple[Host, ...], *, ranks: int) -> tuple[tuple[str, int], ...]:
    """Return the number of ranks of each host: all its slots, or an even share.

    Raises:
        InputError: Neither fits; the message names numbers that do.
    """
    slots = [host.slots for host in hosts if host.slots is not None]
    if not slots:
        return evenly([host.name for host in hosts], ranks)
    if ranks == sum(slots):
        return tuple((host.name, count) for host, count in zip(hosts, slots, strict=True))
    share, remainder = divmod(ranks, len(hosts))
    if share and not remainder and share <= min(slots):
        return tuple((host.name, share) for host in hosts)
    # The numbers of ranks that fit, at most the three nearest to the given one.
    even = {len(slots) * count for count in range(1, min(slots) + 1)}
    nearest = sorted(even | {sum(slots)}, key=lambda fitting: abs(fitting - ranks))[:3]
    raise InputError(
        f"--np {ranks}: does not fit the {sum(slots)} slots of the hosts ({len(hosts)}); "
        f"use --np {join_numbers(sorted(nearest), 'or')}"
    )


BATCH_SYSTEMS = ("LSB_JOBID", "PBS_JOBID", "SLURM_JOB_ID")
OTHER_LAUNCHERS = ("HYDRA_LAUNCHER", "I_MPI_HYDRA_BOOTSTRAP", "OMPI_MCA_plm", "PRTE_MCA_plm")
"""Variables with which mpirun does not start hosts by plain ssh: names may be of other kinds."""
NOT_KNOWN = (socket.EAI_NONAME, socket.EAI_NODATA)
"""Answers of name servers; others mean that none has answered."""
SECONDS = 10


def require_known_hosts(
    hosts: Sequence[str], environment: Mapping[str, str], *, option: str
) -> None:
    """Check that every name is an address, a known host or one of ssh's configuration.

    Under some variables of the `environment` names are not ssh's. Messages name the `option`.

    Raises:
        InputError: Some are not; names them.
    """
    if any(name.startswith((*OTHER_LAUNCHERS, *BATCH_SYSTEMS)) for name in environment):
        return
    unknown = [host for host in hosts if not is_known(host) and not is_known_to_ssh(host)]
    if unknown:
        raise InputError(
            f"{option}: {', '.join(unknown)}: not known on {socket.gethostname()}; check the "
            "spelling, or add the name to /etc/hosts or ~/.ssh/config"
        )


def is_known(host: str) -> bool:
    """Return whether the name has an address, or no name server answers."""
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        return error.errno not in NOT_KNOWN
    except UnicodeError:
        # Python encodes names as IDNA, which fails for empty parts and those of over 63 letters.
        return False
    return True


def is_known_to_ssh(host: str) -> bool:
    """Return whether ssh's configuration has another name for it, or a way there."""
    # With -G ssh prints the options for this host and connects to nothing.
    done = finished(["ssh", "-G", host], seconds=SECONDS)
    settings = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    name = settings.get("hostname", host)
    # The name is looked up by the proxy, not on this host.
    proxies = {settings.get(way, "none") for way in ("proxycommand", "proxyjump")}
    return proxies != {"none"} or (name != host and is_known(name))


@dataclass(frozen=True, kw_only=True)
class Where:
    """The options of a command that starts ranks on hosts by an mpirun."""

    hosts: str | None = option(
        "hosts, with the ranks of each if they differ: A:8,B:4",
        default=None,
        metavar="A,B",
        exclusive="hosts",
    )
    hostfile: Path | None = option(
        "hosts from a file", default=None, metavar="FILE", exclusive="hosts"
    )
    mpirun: Path | None = option(
        "mpirun to use (default: the first one found)", default=None, metavar="PATH"
    )

    def as_given(self) -> list[str]:
        """Return the options as words of a command line."""
        values = {"--hosts": self.hosts, "--hostfile": self.hostfile, "--mpirun": self.mpirun}
        given = [(name, str(value)) for name, value in values.items() if value is not None]
        return [word for pair in given for word in pair]

    def ranks_by_host(self, ranks: int) -> tuple[tuple[str, int], ...]:
        """Return the named hosts with their numbers of ranks; none if the user names none."""
        if self.hostfile is not None:
            return ranks_of_hosts(read_hostfile(self.hostfile), ranks=ranks)
        return hosts_with_ranks(self.hosts, ranks=ranks) if self.hosts is not None else ()
