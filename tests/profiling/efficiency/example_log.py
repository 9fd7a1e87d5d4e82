"""A small log and its replay, with an efficiency that can be computed by hand."""

from pathlib import Path

from profiling.onednn_log.parse import Mark, facts_line, mark_line
from profiling.replay.replay import Conditions, NotReplayed, Replay, ReplayTime
from tests.profiling.replay.problems import parse_v3 as v3

HEADER = """\
onednn_verbose,v1,info,oneDNN v3.7.1 (commit 8d263e6)
onednn_verbose,v1,info,cpu,runtime:OpenMP,nthr:2
onednn_verbose,v1,info,cpu,isa:Intel AVX-512
"""
PIXELS = (
    "src:bf16::blocked:acdb::f0 wei:bf16:a:blocked:AcdB64a2b::f0 bia:undef::undef::: "
    "dst:bf16::blocked:acdb::f0,attr-scratchpad:user,alg:convolution_direct,"
)
SHAPE = "mb2_ic256oc36_ih100oh100kh3sh1dh0ph1_iw100ow100kw3sw1dw0pw1"
FORWARD = f"cpu,convolution,brg,forward_training,{PIXELS}{SHAPE}"
BACKWARD = FORWARD.replace("forward_training", "backward_data")
PRODUCT = (
    "cpu,matmul,brg_matmul,undef,src:bf16::blocked:ba::f0 wei:bf16::blocked:ab::f0 "
    "dst:bf16::blocked:ab::f0,attr-scratchpad:user,,1024x5000:5000x512"
)
COPY = (
    "cpu,reorder,jit:uni,undef,src:bf16::blocked:acdb::f0 dst:bf16::blocked:AcdB64a2b::f0,"
    "attr-scratchpad:user,,256x256x3x3"
)

# Milliseconds of one call: in each of two steps, and in hot and cold isolation.
MEASURED = {
    FORWARD: (10.0, 14.0),
    BACKWARD: (20.0, 20.0),
    PRODUCT: (5.0, 7.0),
    COPY: (1.0, 1.0),
}
HOT = {FORWARD: 9.0, BACKWARD: 10.0, PRODUCT: 6.0}
COLD = {FORWARD: 12.0, BACKWARD: 15.0, PRODUCT: 6.0}
CALLS_A_STEP = {FORWARD: 2, BACKWARD: 1, PRODUCT: 1, COPY: 4}
WALL_MS = (100.0, 120.0)


def execution(line: str, milliseconds: float) -> str:
    return f"onednn_verbose,v1,primitive,exec,{line},{milliseconds}\n"


def log_text(*, rank: int | None = None, marks: bool = True, facts: bool = True) -> str:
    """Return a log of two steps, and one execution before them."""
    text = HEADER
    if facts:
        about = {"rank": rank or 0, "ranks": 2, "images_a_step": 8, "threads": 2}
        text += facts_line(about)
    text += execution(COPY, 50.0)
    for step, wall in enumerate(WALL_MS):
        if marks:
            text += mark_line(Mark(1000.0 * step, True, step, None))
        for line, milliseconds in MEASURED.items():
            text += execution(line, milliseconds[step]) * CALLS_A_STEP[line]
        if marks:
            text += mark_line(Mark(1000.0 * step + wall, False, step, None))
    return text


def write_log(folder: Path, *, marks: bool = True, facts: bool = True) -> Path:
    file = folder / "onednn.log"
    file.write_text(log_text(marks=marks, facts=facts))
    return file


def make_replay(hot: dict[str, float] = HOT, cold: dict[str, float] = COLD) -> Replay:
    """Return a replay of all problems but the reorder."""
    return Replay(
        runner="torch",
        version="3.7.1",
        instruction_set="Intel AVX-512",
        conditions=Conditions(threads=2),
        times=[ReplayTime(v3(line), hot[line], cold.get(line), 20, "brg") for line in hot],
        not_replayed=[NotReplayed(v3(COPY), "no operator makes it")],
    )
