"""Tiny traces with numbers that can be added up by hand. Times in µs, as in the files."""

import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]
MAIN, BACKWARD, OTHER = 1, 2, 3
"""Threads."""


def operator(
    name: str, start: float, end: float, *, thread: int = MAIN, sequence: int = -1, forward: int = 0
) -> Event:
    """Return an operator; `forward`: thread of the forward operator of a backward one."""
    arguments = {"Sequence number": sequence, "Fwd thread id": forward} if sequence >= 0 else {}
    return event("cpu_op", name, start, end, thread=thread) | {"args": arguments}


def annotation(text: str, start: float, end: float, *, thread: int = MAIN) -> Event:
    return event("user_annotation", text, start, end, thread=thread)


def module(name: str, start: float, end: float) -> Event:
    return event("python_function", f"nn.Module: {name}", start, end, thread=MAIN)


def event(category: str, name: str, start: float, end: float, *, thread: int) -> Event:
    return {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": thread,
            "ts": start, "dur": end - start}  # fmt: skip


def write(file: Path, *events: Event) -> Path:
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, "traceName": "x"}))
    return file


STEP = (
    annotation("step 20", 0, 1000),
    annotation("phase: forward", 0, 400),
    annotation("module: body", 0, 300),
    annotation("module: body.conv", 10, 290),
    operator("aten::conv2d", 20, 280, sequence=5),
    operator("aten::mkldnn_convolution", 30, 270),
    operator("aten::empty", 40, 50),
    annotation("phase: loss", 400, 500),
    operator("aten::mul", 410, 450, sequence=6),
    operator("aten::sum", 460, 490, sequence=7),
    annotation("phase: backward", 500, 900),
    operator("autograd::engine::evaluate_function: ConvolutionBackward0", 600, 880, sequence=5,
             forward=1),
    operator("ConvolutionBackward0", 610, 870, sequence=5, forward=1),
    operator("aten::convolution_backward", 620, 860),
    operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 880, 890),
)  # fmt: skip
"""A convolution, a loss, and their backward pass. By hand:

forward 400: conv2d 20, mkldnn_convolution 230, empty 10; gaps 140
loss 100: mul 40, sum 30; gaps 30
backward 400: wrapper 20, node 20, convolution_backward 240, storing 10; gaps 110
between phases 100: gaps 100
"""
