"""The options of `python -m launch tune`, and how their texts are read."""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

from common.cli import chart_file, number_of_ranks, positive, positive_number
from common.options import json_option, option, overrides_argument
from profiling.studies.tune.measurements import (
    Measurements,
    PartialMeasurement,
    write_measurements,
)
from profiling.studies.tune.model import Network, WithGroups
from retinanet.mlperf.rules import NEWEST, RULES, Rules

BITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
BITS_OF_A_BYTE = 8
NUMBER = r"(\d+(?:\.\d+)?)"
NETWORK = re.compile(
    rf"{NUMBER}\s*([KMGT]?)(bit|bps|b|B)(?:/s)?\s*,\s*{NUMBER}\s*(us|µs|ms|s)", re.ASCII
)


def parse_network(text: str) -> Network:
    """Parse a network such as `25Gbit/s,20us`: bandwidth per host, and latency of a message."""
    match = NETWORK.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(
            "expected each host's bandwidth and a message's latency, such as 25Gbit/s,20us or "
            f"1.2GB/s,50us; found {text!r}"
        )
    per_second = float(match[1]) * BITS[match[2]]
    # Only a capital B means bytes.
    bandwidth = per_second if match[3] == "B" else per_second / BITS_OF_A_BYTE
    return Network(
        latency=float(match[4]) * SECONDS[match[5]], bandwidth=bandwidth, source=f"given: {text}"
    )


def batch_sizes(text: str) -> tuple[int, ...]:
    """Parse at least two distinct batch sizes; return them in ascending order."""
    sizes = tuple(sorted({positive(size) for size in text.split(",")}))
    if len(sizes) < 2:
        raise argparse.ArgumentTypeError(
            f"expected at least two global batch sizes, such as 8,16,32, found {text!r}"
        )
    return sizes


def share(text: str) -> float:
    """Parse a number above 0 and at most 1."""
    value = positive_number(text)
    if value > 1:
        raise argparse.ArgumentTypeError(
            f"expected an mAP between 0 and 1, such as 0.3, found {text!r}"
        )
    return value


def groups_of(text: str) -> WithGroups:
    """Parse a number of groups and their factor on the epochs, such as `4,1.2`."""
    most, comma, times = text.partition(",")
    if not comma:
        raise argparse.ArgumentTypeError(
            f"expected a number of groups and a factor, such as 4,1.2, found {text!r}"
        )
    return WithGroups(most=positive(most), epochs=positive_number(times))


@dataclass(frozen=True, kw_only=True)
class PlannerOptions:
    """The options of `python -m launch tune`, by their names."""

    hosts: int = option("available hosts", default=1, parse=number_of_ranks, metavar="H")
    network: Network | None = option(
        "bandwidth per host and latency, such as 25Gbit/s,20us; overrides a measured network",
        default=None,
        parse=parse_network,
        metavar="BANDWIDTH,LATENCY",
    )
    measure_hosts: str | None = option(
        "measure the network between these hosts, reached by ssh as for launch run --hosts",
        default=None,
        metavar="A,B",
        exclusive="hosts",
    )
    hostfile: Path | None = option(
        "measure the network between the hosts of this file, as for launch run",
        default=None,
        metavar="FILE",
        exclusive="hosts",
    )
    cluster: Path | None = option(
        "forecast the training on described hosts instead, from steps that were measured elsewhere "
        "and, with --plan, on this host",
        default=None,
        metavar="FILE.yaml",
    )
    data: str | None = option(
        "training data: openimages (default; epochs from MLPerf's reference runs), or a "
        "configuration of train.py such as coco.yaml, with --probe",
        default=None,
        metavar="NAME",
    )
    rules: Rules = option(
        "version of MLPerf's rules for the reference runs", default=NEWEST, choices=RULES
    )
    probe: tuple[int, ...] | None = option(
        "train to the target with these global batch sizes (at least two)",
        default=None,
        parse=batch_sizes,
        metavar="B,B",
    )
    probe_target: float | None = option(
        "target of --probe and of the plan (default: training.target_map)",
        default=None,
        parse=share,
        metavar="mAP",
    )
    probe_seeds: int | None = option(
        "trainings per batch size, whose spread gives the range (default: 2)",
        default=None,
        parse=positive,
        metavar="N",
    )
    overrides: list[str] = overrides_argument()
    groups: WithGroups = option(
        "also consider up to G compute groups, which need TIMES the epochs of plain training at a "
        "group's batch size, such as 4,1.2; launch groups --whole measures this factor (default: "
        "none)",
        default=WithGroups(),
        parse=groups_of,
        metavar="G,TIMES",
    )
    deadline: float | None = option(
        "choose the cheapest allocation that finishes within HOURS even in the worst case",
        default=None,
        parse=positive_number,
        metavar="HOURS",
    )
    budget: float | None = option(
        "choose the fastest allocation within CORE-HOURS even in the worst case",
        default=None,
        parse=positive_number,
        metavar="CORE-HOURS",
    )
    plan: Path | None = option(
        "file of the measurements; read if it exists, else written", default=None, metavar="FILE"
    )
    chart: Path | None = option(
        "draw time and cost by number of hosts",
        default=None,
        parse=chart_file,
        metavar="FILE.png",
        writes=True,
    )
    slurm: Path | None = option(
        "write a Slurm script for the chosen allocation",
        default=None,
        metavar="FILE",
        writes=True,
    )
    json: Path | None = json_option("also write the forecasts of all allocations to this file")
    mpirun: Path | None = option(
        "mpirun to use (default: the first one found)", default=None, metavar="PATH"
    )

    def write(self, content: Measurements | PartialMeasurement) -> None:
        """Write measurements to the plan's file, if there is one."""
        if self.plan is not None:
            write_measurements(self.plan, content)
