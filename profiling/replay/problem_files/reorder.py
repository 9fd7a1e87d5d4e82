"""Copies to another layout or type: benchdnn's driver `reorder`."""

import re

from profiling.onednn_log.memory_descriptor import MemoryDescriptor
from profiling.onednn_log.problem import Problem
from profiling.replay.problem_files.attributes import attribute_options
from profiling.replay.problem_files.fields import auxiliary_of, tensor, tensor_sizes
from profiling.replay.problem_files.layouts import layout_options
from profiling.replay.problem_files.problem_line import Dialect, NotExpressibleError, ProblemLine

COMPENSATIONS = {"s8m": "s8s8_comp", "zpm": "zp_comp"}
"""What int8 weights carry along, with the mask that follows; 2.x and 3.x write alike."""


def reorder_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """A copy. Its layouts are what it is about, so they are never the library's choice.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    source, destination = tensor(problem, "src"), tensor(problem, "dst")
    if has_compensation(source):
        raise NotExpressibleError(f"its source has more than values ({source.flags})")
    options = [
        f"--sdt={source.type}",
        f"--ddt={destination.type}",
        *layout_options(
            (source, destination),
            ("stag", "dtag"),
            dialect,
            takes_any=False,
            takes_strides=dialect.major != 2,
        ),
    ]
    if has_compensation(destination):
        options.append(f"--oflag={compensation(destination)}")
    mask = auxiliary_of(problem).get("runtime-dim-mask")
    if mask:
        options.append(f"--runtime-dim-mask={mask}")
    options += attribute_options(problem, dialect)
    return ProblemLine("reorder", tuple(options), tensor_sizes(problem, at_least=1)[0])


def has_compensation(memory: MemoryDescriptor) -> bool:
    """Whether more lies in the tensor than its values."""
    return memory.flags not in ("", "f0")


def compensation(memory: MemoryDescriptor) -> str:
    """`f8:s8m1` as `s8s8_comp:1`.

    Raises:
        NotExpressibleError: It is none that benchdnn knows.
    """
    found = []
    for word in memory.flags.split(":")[1:]:
        match = re.fullmatch(r"(s8m|zpm)(\d+)", word)
        if not match:
            raise NotExpressibleError(f"benchdnn does not know its result's {word} {memory.flags}")
        found.append(f"{COMPENSATIONS[match[1]]}:{match[2]}")
    if not found:
        raise NotExpressibleError(f"benchdnn does not know its result's {memory.flags}")
    return "+".join(found)
