"""Lists of hosts: `a,b`, `a:4,b:4`, and Slurm's `node[01-03,07]`."""

import itertools
import math
import re
from collections import Counter

from launch.host.cpu_lists import is_number
from retinanet.errors import InputError

MOST_HOSTS = 100_000
PIECE = re.compile(r"[^\[\]]+|\[[^\[\]]*\]")
"""Plain text, or numbers in brackets."""


def expand_hosts(text: str) -> tuple[str, ...]:
    """The names of a list such as `node[01-03,07],login1` or `rack[1-2]n[1-2]`, in its order.

    Numbers keep their leading zeros; several brackets vary the last one first.

    Raises:
        InputError: Brackets or numbers are not such a list, a host is named twice or there is none.
    """
    hosts: list[str] = []
    for word in split_list(text):
        hosts += expand_word(word, text)
        if len(hosts) > MOST_HOSTS or word.startswith("-"):  # ssh would take it for an option
            raise wrong_list(text)
    host, count = Counter(hosts).most_common(1)[0]
    if count > 1:
        raise InputError(f"hosts {text!r}: {host} is named twice; give each host once")
    return tuple(hosts)


def hosts_with_ranks(text: str, *, ranks: int | None) -> tuple[tuple[str, int], ...]:
    """Hosts with the number of ranks on each: `a:4,b:4`, or `a,b`, which share `ranks` evenly.

    Args:
        text: The list; names as `expand_hosts` takes them.
        ranks: Ranks over all hosts; None takes the sum of the counts.

    Raises:
        InputError: The counts do not add up to `ranks`, or there are none and it cannot be divided.
    """
    words = split_list(text)
    counts = [word.rpartition(":")[2] if ":" in word else "" for word in words]
    if not any(counts):
        return shared_evenly(expand_hosts(text), ranks)
    for word, count in zip(words, counts, strict=True):
        if not is_number(count) or int(count) < 1:
            example = f"{word.partition(':')[0]}:4"
            raise InputError(f"--hosts: {word}: expected HOST:RANKS, as for the others: {example}")
    names = [word.rpartition(":")[0] for word in words]
    expand_hosts(",".join(names))
    found = tuple(
        (host, int(count))
        for name, count in zip(names, counts, strict=True)
        for host in expand_hosts(name)
    )
    total = sum(count for _, count in found)
    if ranks not in (None, total):
        raise InputError(f"--np {ranks}: the hosts' counts add up to {total}; use --np {total}")
    return found


def shared_evenly(hosts: tuple[str, ...], ranks: int | None) -> tuple[tuple[str, int], ...]:
    """As many ranks on each host."""
    count = len(hosts)
    if ranks is None:
        raise InputError(f"--hosts: how many ranks? add --np N, or counts such as {hosts[0]}:4")
    if ranks % count:
        below, above = ranks // count * count, (ranks // count + 1) * count
        choices = f"{below} or {above}" if below else f"{above}"
        raise InputError(
            f"--np {ranks}: does not divide evenly among {count} hosts; use {choices}, "
            f"or counts such as {hosts[0]}:{ranks // count + 1}"
        )
    return tuple((host, ranks // count) for host in hosts)


def split_list(text: str) -> list[str]:
    """The words between commas that are not within brackets."""
    words, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            words.append("")
        else:
            words[-1] += letter
    words = [word.strip() for word in words]
    if not all(words):
        raise InputError(f"hosts {text!r}: a name is missing; expected a list such as a,b")
    return words


def expand_word(word: str, text: str) -> list[str]:
    """The names of one word: every choice of each bracket."""
    pieces = PIECE.findall(word)
    if "".join(pieces) != word or any(letter.isspace() for letter in word):
        raise wrong_list(text)
    choices = [
        expand_bracket(piece[1:-1], text) if piece.startswith("[") else [piece] for piece in pieces
    ]
    if math.prod(len(one) for one in choices) > MOST_HOSTS:
        raise wrong_list(text)
    return ["".join(names) for names in itertools.product(*choices)]


def expand_bracket(content: str, text: str) -> list[str]:
    """`01-03,07` as its numbers."""
    numbers: list[str] = []
    for part in content.split(","):
        numbers += expand_numbers(part, text)
        if len(numbers) > MOST_HOSTS:
            raise wrong_list(text)
    return numbers


def expand_numbers(part: str, text: str) -> list[str]:
    """`07`, or `01-03` with both ends and as many digits."""
    first, dash, last = part.strip().partition("-")
    last = last if dash else first
    if not (is_number(first) and is_number(last) and 0 <= int(last) - int(first) < MOST_HOSTS):
        raise wrong_list(text)
    return [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]


def wrong_list(text: str) -> InputError:
    """What a list of hosts looks like."""
    return InputError(f"hosts {text!r}: expected a list such as a,b or node[01-04,07]")
