"""Logs of a run with numbers that can be computed by hand, logs with harmful names, and pages."""

import argparse
from pathlib import Path

from profiling.onednn_log.parse import Mark, facts_line, mark_line
from profiling.peaks import Peaks, save
from profiling.report.command import add_report

PEAKS = Peaks({"f32": 100.0, "bf16": 400.0}, 20.0, threads=2, cpu="a CPU", versions={})

HEADER = """\
onednn_verbose,v1,info,oneDNN v3.7.1 (commit 8d263e6)
onednn_verbose,v1,info,cpu,runtime:OpenMP,nthr:2
onednn_verbose,v1,info,cpu,isa:Intel AVX-512 with Intel DL Boost and bfloat16 support
"""
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "\"'onmouseover=alert(3) \x1b[2J\x00\u202e`",
    "{{ 7 * 7 }}${alert(4)}<svg/onload=alert(5)>",
)
"""Harmful names of implementations; without commas, since these separate fields of a log."""
SHAPE = "mb2_ic{channels}oc{channels}_ih7oh7kh3sh1dh0ph1_iw7ow7kw3sw1dw0pw1"


def convolution(
    milliseconds: float,
    *,
    channels: int = 16,
    implementation: str = "brg:avx512",
    direction: str = "forward_training",
) -> str:
    """Return an execution in the form of oneDNN 3.7."""
    return (
        f"onednn_verbose,v1,primitive,exec,cpu,convolution,{implementation},{direction},"
        "src:f32::blocked:acdb::f0 wei:f32::blocked:Acdb16a::f0 dst:f32::blocked:acdb::f0,,"
        f"alg:convolution_direct,{SHAPE.format(channels=channels)},{milliseconds}\n"
    )


def reorder(milliseconds: float) -> str:
    return (
        "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:abcd::f0 "
        f"dst:f32::blocked:acdb::f0,,,2x16x7x7,{milliseconds}\n"
    )


def rank_log(rank: int, *, slower: float = 1.0) -> str:
    """Return two steps of 100 ms; forward: 40 ms, 30 in oneDNN; backward: 50 ms, 45 in oneDNN."""
    facts = {"run": "by hand", "rank": rank, "ranks": 2, "images_a_step": 2, "threads": 2}
    text = HEADER + facts_line(facts)
    for step in (20, 21):
        begin = 1000.0 * step
        text += mark_line(Mark(begin, True, step, None))
        text += mark_line(Mark(begin + 5, True, step, "forward"))
        text += convolution(10 * slower) * 2 + reorder(10)
        text += mark_line(Mark(begin + 45, False, step, "forward"))
        text += mark_line(Mark(begin + 45, True, step, "backward"))
        text += convolution(45 * slower, direction="backward_weights")
        text += mark_line(Mark(begin + 95, False, step, "backward"))
        text += mark_line(Mark(begin + 100, False, step, None))
    return text


def write_run(folder: Path) -> Path:
    """Write the folder of a run with the logs of two ranks."""
    logs = folder / "by-hand" / "onednn"
    logs.mkdir(parents=True)
    for rank in (0, 1):
        (logs / f"rank{rank}.log").write_text(rank_log(rank, slower=1 + 0.2 * rank))
    return logs.parent


def hostile_log(file: Path) -> Path:
    """Write a log with harmful names, each with another time; kinds and shapes are valid."""
    lines = [
        convolution(10.0 * place, implementation=name, channels=8 * place)
        for place, name in enumerate(HOSTILE, 1)
    ]
    graph = (
        "onednn_verbose,v1,graph,exec,cpu,7,<b onclick=alert(6)>$\\frac$,</style>,,in0_f32:1:x,"
        "fpm:strict,<script>alert(7)</script>,dnnl_backend,99\n"
    )
    broken = "onednn_verbose,v1,<iframe src=javascript:alert(8)>,0.5\n"
    facts = facts_line({"run": "<u>run</u>", "rank": 0, "command": ["</title><script>alert(9)"]})
    file.write_text(HEADER + facts + "".join(lines) + graph + broken)
    return file


def write_page(folder: Path, *arguments: str | Path) -> Path:
    """Run `report` with these peaks in this process, and return the page."""
    peaks, page = folder / "peaks.json", folder / "page.html"
    save(PEAKS, peaks)
    parser = argparse.ArgumentParser()
    add_report(parser.add_subparsers())
    command = ("report", *arguments, "--peaks", peaks, "--out", page, "--overwrite")
    options = vars(parser.parse_args(list(map(str, command))))
    assert options.pop("run")(**options) == 0
    return page
