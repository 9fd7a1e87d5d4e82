"""The parameters of each problem as the paper names them (Fu et al. 2023, Table 2)."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from sys import intern

from profiling.onednn_log.drivers import DRIVERS
from profiling.onednn_log.log import Calls
from profiling.onednn_log.problem import Problem

DIRECTIONS = {
    "forward_training": "FWD_D",
    "forward_inference": "FWD_I",
    "forward": "FWD_D",
    "backward": "BWD_DW",
    "backward_data": "BWD_D",
    "backward_weights": "BWD_W",
    "backward_bias": "BWD_WB",
}
AXES = "dhw"


@dataclass(frozen=True, slots=True)
class Parameters:
    """The names of the fields are the columns of `parameters.csv`; empty where there is none."""

    driver: str
    configuration: str
    """Types of source, weights and destination, run together: `u8s8u8`, `bf16bf16bf16`."""
    directory: str
    """The paper's word for benchdnn's `--dir`: `FWD_D`, `BWD_D`, `BWD_W`, `BWD_WB`."""
    post_ops: str
    algorithm: str
    problem_batchsize: str
    problem_input: str
    problem_output: str
    problem_stride: str
    problem_kernel: str
    problem_padding: str
    problem_channel: str
    calls: int


COLUMNS = tuple(field.name for field in fields(Parameters))


def parameters_of(calls: Mapping[Problem, Calls]) -> Iterator[Parameters]:
    """Yield a row for each problem, the costliest first; equal rows are one."""
    counted: dict[Parameters, int] = {}
    for problem, one in sorted(calls.items(), key=lambda item: -item[1].total_ms):
        found = parameters_without_calls(problem)
        counted[found] = counted.get(found, 0) + one.count
    return (replace(found, calls=count) for found, count in counted.items())


def parameters_without_calls(problem: Problem) -> Parameters:
    """All fields but the number of calls, which is 0."""
    sizes = named(problem.shape)
    return Parameters(
        driver=DRIVERS.get(problem.kind, problem.kind),
        configuration=configuration(problem),
        directory=direction(problem),
        post_ops=intern(post_ops(problem.attributes)),
        algorithm=intern(problem.algorithm.rpartition("_")[2].upper()),
        problem_batchsize=pick(sizes, ["mb"]),
        # A shape that is a list of sizes has no names; it is the problem's input as it stands.
        problem_input=pick(sizes, ["i" + axis for axis in AXES]) if sizes else problem.shape,
        problem_output=pick(sizes, ["o" + axis for axis in AXES]),
        problem_stride=pick(sizes, ["s" + axis for axis in AXES]),
        problem_kernel=pick(sizes, ["k" + axis for axis in AXES]),
        problem_padding=pick(sizes, ["p" + axis for axis in AXES]),
        problem_channel=pick(sizes, ["g", "ic", "oc"]),
        calls=0,
    )


def named(shape: str) -> dict[str, str]:
    """`mb2_ic64oc64_ih7` as names and sizes, empty for a shape that is a list of sizes."""
    return {} if shape[:1].isdigit() else dict(re.findall(r"([a-z]+)(\d+)", shape))


def pick(sizes: dict[str, str], names: list[str]) -> str:
    """The sizes of those names that are there: `kh3kw3`."""
    return intern("".join(name + sizes[name] for name in names if name in sizes))


def configuration(problem: Problem) -> str:
    """Types in the order source, weights, destination; others as the log has them."""
    roles = [problem.memory(role) for role in ("src", "wei", "dst")]
    found = [one.type for one in roles if one]
    return intern("".join(found or [one.type for one in problem.memories if one.is_there]))


def direction(problem: Problem) -> str:
    """benchdnn's `--dir`; with the gradient of a bias where there is one."""
    name = DIRECTIONS.get(problem.direction, "")
    has_bias = problem.memory("bia") is not None
    if has_bias and name in ("BWD_W", "FWD_D") and problem.is_computing:
        return {"BWD_W": "BWD_WB", "FWD_D": "FWD_B"}[name]
    return name


def post_ops(attributes: str) -> str:
    """`sum+eltwise_relu`, in the spellings of 1.x (`post_ops:'sum;eltwise_relu;';`) and later."""
    found = re.search(r"attr-post-ops:(\S+)", attributes)
    if found:
        return found[1]
    old = re.search(r"post_ops:'([^']*)'", attributes)
    return old[1].strip(";").replace(";", "+") if old else ""
