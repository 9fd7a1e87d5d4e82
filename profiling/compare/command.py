"""`python -m profiling compare`: its command line, and a comparison from start to end.

TODO-DOC `--fail-if`: conditions on a comparison, for scripts.
"""

import argparse
import json
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.cli import add_json_option, positive
from common.console import make_console, say
from common.errors import CONDITION_MET, FINISHED, InputError
from common.files import as_csv, require_free_json, require_free_outputs, write_whole
from profiling.compare.comparison import (
    Comparison,
    KindPair,
    Pair,
    compare,
    files_of,
    kinds_of,
    marked_steps,
    print_comparison,
    side_of,
)
from profiling.onednn_log.log import read_with_progress

ABOUT = """\
Put two oneDNN logs side by side: kinds, problems, calls and times. On top is what only one side
calls; so the paper found backward convolutions of layers that were frozen. Where both logs have
marks of steps (profile.onednn), a step is compared with a step, else a log with a log."""

EPILOG = """\
--fail-if CONDITION ends with status 4 if it holds, after everything is printed. The number is the
first log's over the second's:
  total > 1.1                        time of all calls
  convolution > 1.1                  time of a kind
  convolution backward data > 1.1    time of a kind and direction
  reorder calls > 1                  calls of a kind; `calls > 1` of all

examples:
  python -m profiling compare ours.log reference.log
  python -m profiling compare runs/openimages/onednn runs/coco/onednn --names openimages,coco
  python -m profiling compare new.log old.log --fail-if 'total > 1.1' --fail-if 'calls > 1'"""


def add_compare(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `compare` to the commands of a command line."""
    parser = commands.add_parser(
        "compare",
        description=ABOUT,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("first", type=Path, metavar="LOG", help="a log, or a folder of logs")
    parser.add_argument("second", type=Path, metavar="REFERENCE", help="what it is held against")
    parser.add_argument("--names", metavar="A,B", help="what to call them (default: their files)")
    parser.add_argument(
        "--ignore-types", action="store_true", help="float32 and BF16 are the same problem"
    )
    parser.add_argument(
        "--top", type=positive, default=15, metavar="N", help="problems a table (default: 15)"
    )
    parser.add_argument(
        "--fail-if", action="append", default=[], metavar="CONDITION", help="see below; repeatable"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write comparison.csv, .png and .svg here"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace files in DIR")
    add_json_option(parser)
    parser.set_defaults(run=compare_command)


def compare_command(
    first: Path,
    second: Path,
    *,
    names: str | None,
    ignore_types: bool,
    top: int,
    fail_if: list[str],
    out: Path | None,
    overwrite: bool,
    json_file: Path | None,
) -> int:
    """Read both, match, print, write; returns the exit code.

    Raises:
        InputError: A log cannot be read, a condition or a name is none, or a file is in the way.
    """
    console = make_console()
    conditions = [parse_condition(text) for text in fail_if]
    require_free_json(json_file)
    if out is not None:
        require_free_outputs(outputs(out), overwrite=overwrite)
    called = names_of(names, first, second)
    logs = [read_with_progress(files_of(path), console) for path in (first, second)]
    by_step = all(marked_steps(log) for log in logs)
    sides = [side_of(*pair, by_step=by_step) for pair in zip(called, logs, strict=True)]
    comparison = compare(*sides, with_types=not ignore_types, is_by_step=by_step)
    ratios = [ratio_of(condition, comparison) for condition in conditions]
    print_comparison(console, comparison, top=top)
    if json_file is not None:
        write_whole(json_file, json.dumps(as_json(comparison), indent=1))
    if out is not None:
        write_files(comparison, out)
        say(console, f"table and chart: {out}")
    failed = False
    for condition, ratio in zip(conditions, ratios, strict=True):
        met = is_met(condition, comparison)
        failed = failed or met
        say(console, f"{'FAILED' if met else 'passed'}: {condition.text}: it is {ratio:.3f}")
    return CONDITION_MET if failed else FINISHED


def names_of(names: str | None, first: Path, second: Path) -> tuple[str, str]:
    """What to call both sides: as asked, else the shortest ends of their paths that differ.

    Raises:
        InputError: There are not two names.
    """
    if names is not None:
        one, comma, other = names.partition(",")
        if not comma or not one or not other or "," in other:
            raise InputError(f"--names {names!r}: expected two names with a comma between them")
        return one, other
    parts = [path.resolve().with_suffix("").parts for path in (first, second)]
    for count in range(1, max(map(len, parts)) + 1):
        found = ["/".join(one[-count:]) for one in parts]
        if found[0] != found[1]:
            return found[0], found[1]
    return "first", "second"


def outputs(folder: Path) -> list[Path]:
    """All that is written to `--out`."""
    return [folder / f"comparison.{ending}" for ending in ("csv", "png", "svg")]


def write_files(comparison: Comparison, folder: Path) -> None:
    """The table of all problems, and the chart.

    Raises:
        InputError: They cannot be written.
    """
    # Here, because matplotlib is slow to load, and printing needs none.
    from common.charts import chart_files, save_chart  # noqa: PLC0415
    from profiling.compare.comparison import draw_comparison  # noqa: PLC0415

    table = [pair_json(pair) for pair in (*comparison.only_one, *comparison.both)]
    rows = (pair.values() for pair in table)
    write_whole(folder / "comparison.csv", as_csv(table[0], rows))
    save_chart(draw_comparison(comparison), *chart_files(folder, "comparison"))


def pair_json(pair: Pair) -> dict[str, Any]:
    """One problem of both sides."""
    return {
        "kind": pair.question.kind,
        "direction": pair.question.direction,
        "shape": pair.question.shape,
        "types": pair.question.types,
        "algorithm": pair.question.algorithm,
        "first_calls": pair.first.calls,
        "second_calls": pair.second.calls,
        "first_ms": pair.first.ms,
        "second_ms": pair.second.ms,
        "ratio": pair.ratio,
        "extra_calls": pair.extra_calls,
        "extra_ms": pair.extra_ms,
        "first_implementations": " ".join(pair.first.implementations),
        "second_implementations": " ".join(pair.second.implementations),
    }


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Everything for programs; what only one side calls comes first."""
    return {
        "first": comparison.first.name,
        "second": comparison.second.name,
        "by_step": comparison.is_by_step,
        "kinds": [
            {
                "kind": kind.kind,
                "direction": kind.direction,
                "first_calls": kind.first_calls,
                "second_calls": kind.second_calls,
                "first_ms": kind.first_ms,
                "second_ms": kind.second_ms,
            }
            for kind in kinds_of(comparison.pairs)
        ],
        "problems": [pair_json(pair) for pair in (*comparison.only_one, *comparison.both)],
    }


OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
FORM = re.compile(r"\s*([a-z_ .]+?)\s*(>=|<=|>|<)\s*(\d+(?:\.\d*)?)\s*")
ADVICE = "expected such as 'total > 1.1', 'convolution backward data > 1.2', 'reorder calls > 1'"


@dataclass(frozen=True)
class Condition:
    """The first log's number over the second's, against a bound."""

    text: str
    name: str
    """`total`, or a kind with or without its direction."""
    is_of_calls: bool
    """Numbers of calls; else times."""
    operator: str
    bound: float


def parse_condition(text: str) -> Condition:
    """Read `total > 1.1`, `reorder calls > 1`, `convolution backward_data >= 2`.

    Raises:
        InputError: It is no condition.
    """
    found = FORM.fullmatch(text)
    if not found:
        raise InputError(f"--fail-if {text!r}: {ADVICE}")
    words = re.split(r"[ .]+", found[1])
    is_of_calls = words[-1] == "calls"
    name = " ".join(words[:-1] if is_of_calls else words) or "total"
    return Condition(text.strip(), name, is_of_calls, found[2], float(found[3]))


def ratio_of(condition: Condition, comparison: Comparison) -> float:
    """The number that a condition is about; infinite where only the first log has such calls.

    Raises:
        InputError: Neither log has such a kind.
    """
    kinds = kinds_of(comparison.pairs)
    chosen = kinds if condition.name == "total" else [k for k in kinds if is_meant(condition, k)]
    if not chosen:
        known = ", ".join(["total", *dict.fromkeys(kind.name for kind in kinds)])
        raise InputError(
            f"--fail-if {condition.text!r}: neither log has {condition.name!r}; they have {known}"
        )
    if condition.is_of_calls:
        first = sum(kind.first_calls for kind in chosen)
        second = sum(kind.second_calls for kind in chosen)
    else:
        first = sum(kind.first_ms for kind in chosen)
        second = sum(kind.second_ms for kind in chosen)
    if not second:
        return float("inf") if first else 1.0
    return first / second


def is_meant(condition: Condition, kind: KindPair) -> bool:
    """Whether a condition is about a kind: `convolution`, or `convolution backward data`."""
    name = condition.name.replace("_", " ")
    return name in (kind.name.replace("_", " "), kind.kind.replace("_", " "))


def is_met(condition: Condition, comparison: Comparison) -> bool:
    """Whether to fail.

    Raises:
        InputError: Neither log has such a kind.
    """
    return OPERATORS[condition.operator](ratio_of(condition, comparison), condition.bound)
