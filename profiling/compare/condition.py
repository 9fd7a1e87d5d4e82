"""`--fail-if`: conditions on a comparison, for scripts."""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from profiling.compare.comparison import Comparison, KindPair, kinds_of
from retinanet.errors import InputError

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
