"""A network as a user writes it: `25Gbit/s,20us`."""

import re

from launch.tune.network import Network

BITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
BITS_OF_A_BYTE = 8
NUMBER = r"(\d+(?:\.\d+)?)"
PATTERN = re.compile(
    rf"{NUMBER}\s*([KMGT]?)(bit|bps|b|B)(?:/s)?\s*,\s*{NUMBER}\s*(us|µs|ms|s)",
    re.ASCII,
)


def parse_network(text: str) -> Network:
    """The link of each host, and the latency of a message.

    Raises:
        ValueError: It is written differently; the message says how.
    """
    match = PATTERN.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise ValueError(
            f"expected each host's bandwidth and a message's latency, such as 25Gbit/s,20us or "
            f"1.2GB/s,50us; found {text!r}"
        )
    per_second = float(match[1]) * BITS[match[2]]
    bandwidth = per_second if match[3] == "B" else per_second / BITS_OF_A_BYTE
    return Network(
        latency=float(match[4]) * SECONDS[match[5]], bandwidth=bandwidth, source=f"given: {text}"
    )
