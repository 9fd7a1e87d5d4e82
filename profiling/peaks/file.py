"""Peaks as a JSON file. Loads no torch."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from profiling.peaks.peaks import Peaks
from retinanet.errors import InputError
from retinanet.json_objects import read_json_object
from retinanet.output_files import write_whole

ADVICE = "write one with python -m profiling peaks --json FILE"


def save(peaks: Peaks, file: Path) -> None:
    """Write a file that `load_peaks` reads.

    Raises:
        InputError: It cannot be written.
    """
    write_whole(file, json.dumps(asdict(peaks), indent=1, ensure_ascii=False) + "\n")


def load_peaks(path: Path) -> Peaks:
    """Read a file of `save`.

    Raises:
        InputError: It is not there, or not such a file; names the field.
    """
    content = read_json_object(path, advice=ADVICE)
    try:
        return peaks_of(content)
    except ValueError as error:
        raise InputError(f"{path}: {error}; {ADVICE}") from error


def peaks_of(content: Mapping[str, Any]) -> Peaks:
    """Peaks from an object of JSON; fields that are not known are passed over.

    Raises:
        ValueError: A field is missing or is something else; names it.
    """
    for name in ("matrix_gflop_per_s", "bandwidth_gb_per_s", "threads", "cpu", "versions"):
        require(name in content, f"{name} is missing")
    rates, threads = content["matrix_gflop_per_s"], content["threads"]
    fine = isinstance(rates, dict) and rates and all(map(is_rate, rates.values()))
    require(fine, "matrix_gflop_per_s: expected a rate above 0 for each type")
    fine = is_rate(content["bandwidth_gb_per_s"])
    require(fine, "bandwidth_gb_per_s: expected a number above 0")
    fine = isinstance(threads, int) and is_rate(threads)
    require(fine, "threads: expected a whole number of at least 1")
    require(isinstance(content["cpu"], str), "cpu: expected a name")
    for name in ("versions", "rates", "bandwidths", "left_out"):
        require(isinstance(content.get(name, {}), dict), f"{name}: expected an object")
    for works in content.get("rates", {}).values():
        fine = isinstance(works, dict) and all(map(is_rate, works.values()))
        require(fine, "rates: expected a rate above 0 for each work of each type")
    for name in ("cpus", "notes"):
        require(isinstance(content.get(name, []), list), f"{name}: expected a list")
    known = {one.name for one in fields(Peaks)}
    found = {name: value for name, value in content.items() if name in known}
    lists: dict[str, Any] = {name: tuple(found.get(name, ())) for name in ("cpus", "notes")}
    return Peaks(**{**found, **lists})


def require(fine: object, otherwise: str) -> None:
    """Raise ValueError where something is not fine."""
    if not fine:
        raise ValueError(otherwise)


def is_rate(value: object) -> bool:
    """Whether it is a number above 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e12
