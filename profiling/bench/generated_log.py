"""A oneDNN log of any length, as a long run with time stamps would write it."""

from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

HEADER = """\
onednn_verbose,v1,info,oneDNN v3.7.1 (commit N/A)
onednn_verbose,v1,info,cpu,runtime:OpenMP,nthr:28
onednn_verbose,v1,info,cpu,isa:Intel AVX-512 with Intel DL Boost and bfloat16 support
"""
DIRECTIONS = ("forward_training", "backward_data", "backward_weights")
FOREIGN_EVERY = 50
"""After so many lines one of another program."""
FIRST_TIME_STAMP = 1_795_230_198_092.0


def write_log(file: Path, *, lines: int, problems: int) -> float:
    """Write `lines` executions of `problems` distinct problems; returns their sum in milliseconds.

    Every second problem is a convolution, every second one the reorder of its weights.
    """
    total = 0.0
    with file.open("w", encoding="ascii") as out:
        out.write(HEADER)
        for number, body in enumerate(islice(cycle(list(bodies(problems))), lines)):
            milliseconds = 0.0625 * (1 + number % 7)  # exact in binary, so that sums are equal
            total += milliseconds
            stamp = f"{FIRST_TIME_STAMP + number / 4:.6f}"
            out.write(f"onednn_verbose,v1,{stamp},primitive,exec,cpu,{body},{milliseconds:g}\n")
            if number % FOREIGN_EVERY == 0:
                out.write(f"epoch 1, step {number}: loss 0.3\n")
    return total


def bodies(problems: int) -> Iterator[str]:
    """What is between the engine and the time, each different."""
    for number in range(problems):
        channels = 16 * (1 + number // 2)
        if number % 2:
            yield (
                "reorder,jit:uni,undef,src:bf16::blocked:acdb::f0 "
                f"dst:bf16::blocked:AcdB16a2b::f0,attr-scratchpad:user,,{channels}x256x3x3"
            )
            continue
        shape = f"mb2_ic256oc{channels}_ih100oh100kh3sh1dh0ph1_iw100ow100kw3sw1dw0pw1"
        yield (
            "convolution,brg_conv_fwd:avx512_core_bf16,"
            f"{DIRECTIONS[number // 2 % 3]},src:bf16::blocked:acdb::f0 "
            "wei:bf16:a:blocked:AcdB16a2b::f0 bia:f32:a:blocked:a::f0 dst:bf16::blocked:acdb::f0,"
            f"attr-scratchpad:user,alg:convolution_direct,{shape}"
        )
