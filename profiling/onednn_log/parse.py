"""Parse one line of oneDNN's log, in the formats of 1.0 to 3.13, or of a run's own lines in it.

    dnnl_verbose,exec,cpu,convolution,jit:avx2,forward_training,src_f32::…,,alg:…,mb2_ic16…,0.46
    onednn_verbose,1795230198093.04,exec,cpu,reorder,…                       2.x with time stamps
    onednn_verbose,v1,1795230198093.04,primitive,create:cache_miss,cpu,…     3.x
    onednn_verbose,v1,graph,exec,cpu,100002,sdp,…                            graphs and ukernels
    profilednn_facts,{"rank": 0, "ranks": 2, "images_a_step": 2, "threads": 1, "cpus": "0", …}
    profilednn_mark,1795230198092.801,begin,20,forward                       milliseconds since 1970
    profilednn_chosen,onednn_verbose,v1,primitive,exec,cpu,convolution,…     not a recorded step's
    profilednn_operator,{"name": "aten::addmm", "caller": "aten::linear", …}    of the next lines

oneDNN's own page on its verbose mode describes the fields; the others (1.0's missing attributes,
lines of GEMM calls, micro-kernels, graphs, and attention) are from real logs and from the sources
that print them. Marks are the begin and the end of each step and phase.
"""

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from sys import intern
from typing import Any, Literal, NamedTuple

from common.numbers import require_moderate
from profiling.onednn_log.work import MemoryDescriptor, Problem, parse_memories

MARKER = re.compile(r"(?:onednn|dnnl|mkldnn)_verbose,")
COMPONENTS = ("primitive", "graph", "ukernel", "common")
ENGINE = re.compile(r"(?:cpu|gpu|any)(?::\d+)?(?:2(?:cpu|gpu)(?::\d+)?)?")
OLD_QUERY = re.compile(r"query:\w+:[\dx]+")
ATTENDED = re.compile(r"(?:query|key|val|msk):")
OLD_ATTRIBUTES = {
    "scratchpad_mode": "attr-scratchpad",
    "oscale": "attr-oscale",
    "scales": "scales",  # Its form has changed too: it does not name the tensor
    "zero_points": "attr-zero-points",
    "post_ops": "attr-post-ops",
}
"""The names of attributes before 2.3, and their present ones."""
FIRST_VERSION = (
    "MKL-DNN 0.x wrote it, whose lines have neither engine nor types of all tensors; log with "
    "version 1.0 (2019) or later"
)
FIELDS = 8  # Between an operation and its time
MESSAGES = ("error", "warning")
UNSUPPORTED = "unsupported: "  # Begins what Arm's Compute Library (ACL) says when it is skipped


class Head(NamedTuple):
    """A line without its marker, its time stamp and its time: equal for equal work."""

    text: str
    time: str  # The last field


@dataclass(frozen=True, slots=True)
class Meaning:
    """The content of a head."""

    kind: Literal["execution", "creation", "dispatch", "message", "info"]
    problem: Problem | None = None  # Of a dispatch too, where the line has it
    text: str = ""  # A creation's state of the cache, a dispatch's reason, else the message
    primitive: str = ""  # A dispatch's kind of primitive; empty where the line lacks it
    skipped: str = ""  # Its implementation, or else the file of oneDNN that refused


def split_head(text: str) -> Head:
    """Split what follows the marker into head and time."""
    if text[:1] == "v" and text[1:2].isdigit():
        text = text.partition(",")[2]
    # A time stamp is before or after the component, depending on the version.
    text = without_time_stamp(text)
    for component in COMPONENTS:
        if text.startswith(component + ","):
            text = f"{component},{without_time_stamp(text[len(component) + 1 :])}"
            break
    head, _, time = text.rpartition(",")
    return Head(head, time)


def without_time_stamp(text: str) -> str:
    """Remove a time stamp such as `1795230198092.696045` at the beginning of a line."""
    if not text[:1].isdigit():
        return text
    first, _, others = text.partition(",")
    return others if first.replace(".", "", 1).isdigit() else text


LONGEST_MS = 1e12  # 31 years: of a call; sums of many are finite
LATEST_MS = 1e15  # Since 1970, 30,000 years
MOST_STEPS = 10**12


def milliseconds(time: str) -> float:
    """Return the last field of an execution or a creation as a number.

    Raises:
        ValueError: It is no time.
    """
    try:
        value = float(time)
    except ValueError:
        raise ValueError("the last field is not a time; the line may be truncated") from None
    if not 0 <= value <= LONGEST_MS:  # NaN compares false
        raise ValueError(f"invalid time: {time} ms")
    return value


def parse_head(head: Head) -> Meaning:
    """Return the content of a line, whatever its time.

    Raises:
        ValueError: It has an unknown form; the message has the reason in a few words.
    """
    fields = head.text.split(",") if head.text else []
    component = fields.pop(0) if fields and fields[0] in COMPONENTS else "primitive"
    if not fields:
        if component == "primitive" and head.time.startswith("info"):
            return Meaning("info", text=head.time)
        raise ValueError("it ends after its marker; the line may be truncated")
    if ENGINE.fullmatch(fields[0]):  # `cpu,acl,unsupported: …`, `gpu,error,…`, `cpu,debuginfo,…`
        fields.pop(0)
    operation, *fields = fields or [""]
    name, _, state = operation.partition(":")
    rest = ",".join([*fields, head.time])
    if operation in ("info", "debuginfo") or state in ("debug", "start", "external"):
        return Meaning("info", text=rest)
    is_acl = operation == "acl" and rest.startswith(UNSUPPORTED)
    if is_acl or state == "dispatch":
        reason = rest.removeprefix(UNSUPPORTED) if is_acl else ""
        return parse_dispatch(component, fields, source=head.time, reason=reason)
    if operation in MESSAGES or state == "check":
        return Meaning("message", text=": ".join([operation, *fields[:3]]))
    if name == "exec" and not state:
        return Meaning("execution", problem=parse_problem(component, fields))
    if name in ("create", "create_nested", "compile"):
        nested = "nested_" if name == "create_nested" else ""
        return Meaning("creation", problem=parse_problem(component, fields), text=nested + state)
    raise ValueError(f"unknown operation {operation[:40]!r}")


def parse_dispatch(component: str, fields: list[str], *, source: str, reason: str) -> Meaning:
    """Return why an implementation was skipped: of `convolution,cpu,convolution,jit:avx2,…,reason`.

    The problem has layouts before oneDNN chose them. Many lines have only the kind of primitive and
    the reason, and the `source` as all have: `src/cpu/x64/jit_brgemm_conv.cpp:263`. ACL's have the
    `reason` alone.
    """
    if reason:
        return Meaning("dispatch", text=reason)
    primitive = fields[0] if len(fields) > 1 and re.fullmatch(r"[a-z_]+", fields[0]) else ""
    problem, reason = None, fields[-1] if fields else ""
    skipped = source.rpartition("/")[2].partition(":")[0]
    if len(fields) > FIELDS + 1:
        with suppress(ValueError):
            problem = parse_problem(component, fields[1 : FIELDS + 1])
            skipped = problem.implementation.removesuffix(":undef") or skipped
            reason = ",".join(fields[FIELDS + 1 :])
    return Meaning("dispatch", problem, reason, primitive, skipped)


def parse_problem(component: str, fields: list[str]) -> Problem:
    """Return the problem in the fields between the operation and the time.

    Raises:
        ValueError: They are not those of a problem.
    """
    if not fields or not ENGINE.fullmatch(fields[0]):
        is_old = len(fields) == 6 and re.match(r"(f?src|f?data|f?wei|in):", fields[3])
        raise ValueError(FIRST_VERSION if is_old else "no engine follows the operation")
    if component == "graph":
        return graph_problem(fields)
    # From 3.5 to 3.8 attention has a field for each tensor, so the number of fields varies.
    if fields[1:2] == ["sdpa"] and any(OLD_QUERY.fullmatch(field) for field in fields):
        return attention_problem(fields)
    # 1.0 and 1.1 have no attributes; without a shape, the time is the shape of a line cut in it.
    if len(fields) == FIELDS - 1 and not re.match(r"$|[a-z]+:", fields[-1]):
        fields = [*fields[:5], "", *fields[5:]]
    if len(fields) != FIELDS:
        raise ValueError(f"{len(fields) + 1} fields after the operation; expected 9")
    engine, kind, implementation, direction, memories, attributes, auxiliary, shape = fields
    # From 1.8 to 2.7 some primitives have a second interface: `softmax_v2`.
    kind = re.sub(r"_v\d$", "", kind)
    if not re.fullmatch(r"[a-z_]+", kind) or not re.fullmatch(r"[a-z_]+", direction):
        raise ValueError(f"invalid primitive or direction: {kind[:30]!r}, {direction[:30]!r}")
    # Interned, since the same few texts occur in all problems of a log.
    return Problem(
        component=component,
        engine=intern(engine),
        kind=intern(kind),
        implementation=intern(implementation),
        direction=intern(direction),
        memories=parse_memories(memories),
        attributes=intern(modern_attributes(attributes.strip())),
        auxiliary=intern(auxiliary.strip()),
        shape=shape.strip(),
    )


def modern_attributes(text: str) -> str:
    """Return `oscale:2;post_ops:'sum;eltwise_relu;';` (before 2.3) as later versions have it."""
    plain = re.sub(r"'([^']*)'", lambda quoted: quoted[1].strip(";").replace(";", "+"), text)
    old = re.compile(rf"(?<![\w-])({'|'.join(OLD_ATTRIBUTES)}):([^;\s]*);")
    return old.sub(lambda match: f"{OLD_ATTRIBUTES[match[1]]}:{match[2]} ", plain).strip()


def graph_problem(fields: list[str]) -> Problem:
    """Return a compiled partition: its kind, its operations' names, its tensors.

    Raises:
        ValueError: Fields are missing.
    """
    if len(fields) < 6:
        raise ValueError("too few fields for a graph partition; the line may be truncated")
    engine, *others = fields
    if others[0].isdigit():  # the partition's number differs from run to run
        others = others[1:]
    kind, operations, *others = others
    names: list[str] = []
    # Backend and kernel are last, in a varying number of fields; tensors precede them.
    while others and not others[-1].startswith(("in", "out")) and ":" not in others[-1]:
        names.insert(0, others.pop())
    fpmath = others.pop() if others and others[-1].startswith("fpm:") else ""
    return Problem(
        component="graph",
        engine=engine,
        kind=kind,
        implementation=":".join(names).rstrip(":"),
        direction="undef",
        memories=(),
        attributes=fpmath,
        auxiliary=operations,
        shape=" ".join(filter(None, others)),
    )


def attention_problem(fields: list[str]) -> Problem:
    """Return attention as 3.5 to 3.8 have it: a field for each tensor; later as all others."""
    engine, kind, implementation, *others = fields
    tensors = [field for field in others if field.count(":") > 1 and ATTENDED.match(field)]
    memories = []
    for tensor in tensors:
        role, type_, *tail = [*tensor.split(":"), ""]
        memories.append(MemoryDescriptor(role, type_, tag=tail[1] if len(tail) > 2 else ""))
    return Problem(
        component="primitive",
        engine=engine,
        kind=kind,
        implementation=implementation,
        direction="undef",
        memories=tuple(memories),
        attributes=" ".join(field for field in others if field and field not in tensors),
        auxiliary="",
        shape=" ".join(tensors),
    )


MARK = "profilednn_mark,"
OPERATOR = "profilednn_operator,"
CHOSEN = "profilednn_chosen,"
"""Begins executions outside of the recorded steps: none of them counts, but each is the primitive
of the reasons before it."""
FACTS = "profilednn_facts,"
COUNTS = ("rank", "ranks", "threads", "images_a_step")
PHASES = ("data", "forward", "loss", "backward", "optimizer")
"""In order; with several batches a step the middle three repeat (`retinanet.training.loop`)."""


class Mark(NamedTuple):
    """The beginning or end of a step, or of one of its phases."""

    milliseconds: float
    is_begin: bool
    step: int
    phase: str | None


class Operator(NamedTuple):
    """The torch operator that executed the primitives after it, as `profile capture` writes it.

    Its name is empty where no operator was running.
    """

    name: str  # `aten::mkldnn_convolution`, the innermost that was running
    caller: str = ""  # `aten::conv2d`, the outermost; in the backward pass `ConvolutionBackward0`
    module: str = ""  # `ResNet.layer1.0.conv2`; empty outside of modules
    shapes: str = ""  # `2x64x56x56 64x64x3x3`: of its tensors


def mark_line(mark: Mark) -> str:
    """Return a mark as a line of the log, newline included."""
    edge = "begin" if mark.is_begin else "end"
    phase = f",{mark.phase}" if mark.phase else ""
    return f"{MARK}{mark.milliseconds:.6f},{edge},{mark.step}{phase}\n"


def facts_line(facts: dict[str, Any]) -> str:
    """Return a line of the log with facts about the run."""
    return f"{FACTS}{json.dumps(facts)}\n"


def parse_mark(text: str) -> Mark:
    """Read what follows `MARK`.

    Raises:
        ValueError: It is not what `mark_line` writes.
    """
    milliseconds, edge, step, *phase = text.rstrip().split(",")
    if edge not in ("begin", "end") or len(phase) > 1:
        raise ValueError("not a mark of a step")
    time, number = float(milliseconds), int(step)
    if not 0 <= time <= LATEST_MS:
        raise ValueError(f"invalid time: {time} ms")
    if not 0 <= number <= MOST_STEPS:
        raise ValueError(f"invalid step: {step[:20]}")
    return Mark(time, edge == "begin", number, phase[0] if phase else None)


def parse_operator(text: str) -> Operator:
    """Read what follows `OPERATOR`.

    Raises:
        ValueError: It is not what the recorder of `profile capture` writes.
    """
    fields = json.loads(text)
    if not isinstance(fields, dict) or fields.keys() != set(Operator._fields):
        raise ValueError("not an operator")
    if not all(isinstance(value, str) for value in fields.values()):
        raise ValueError("not an operator")
    caller = fields["caller"].removeprefix("autograd::engine::evaluate_function: ")
    return Operator(**{**fields, "caller": caller})


def parse_facts(text: str) -> dict[str, Any]:
    """Read what follows `FACTS`.

    Raises:
        ValueError: It is not a JSON object.
    """
    try:
        facts = json.loads(text)
    except RecursionError:  # json.loads recurses once per level of nesting
        raise ValueError("JSON that is nested too deeply") from None
    if not isinstance(facts, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004
    for name in COUNTS:
        if type(facts.get(name, 0)) not in (int, type(None)):
            raise ValueError(f"{name}: not a whole number")
    require_moderate(facts, "facts")
    return facts
