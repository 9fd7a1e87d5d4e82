"""A program that trains for two steps, with a trace and oneDNN's log of the same steps.

python logged_model.py TRACE > LOG, under ONEDNN_VERBOSE=1
"""

import sys
import time

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from common.machine import fastest_precision
from profiling.onednn_log.parse import Mark, mark_line

STEPS = (20, 21)
PHASES = ("forward", "backward")


def main(trace: str) -> None:
    torch.set_num_threads(1)
    dtype = torch.bfloat16 if fastest_precision() == "bf16" else torch.float32
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 3), torch.nn.Flatten(), torch.nn.Linear(64 * 62 * 62, 32)
    ).to(dtype)
    image = torch.randn(2, 3, 64, 64, dtype=dtype)
    model(image).sum().backward()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for number in STEPS:
            print_mark(number, None, is_begin=True)
            with record_function(f"step {number}"):
                print_mark(number, "forward", is_begin=True)
                with record_function("phase: forward"):
                    loss = model(image).sum()
                print_mark(number, "forward", is_begin=False)
                print_mark(number, "backward", is_begin=True)
                with record_function("phase: backward"):
                    loss.backward()
                print_mark(number, "backward", is_begin=False)
            print_mark(number, None, is_begin=False)
    profiler.export_chrome_trace(trace)


def print_mark(step: int, phase: str | None, *, is_begin: bool) -> None:
    print(mark_line(Mark(time.time() * 1000, is_begin, step, phase)), end="", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
