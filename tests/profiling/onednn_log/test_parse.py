"""Every spelling of a line, from 1.0 to 3.13, and of a run's own lines."""

import pytest

from profiling.onednn_log.parse import (
    Mark,
    mark_line,
    milliseconds,
    parse_facts,
    parse_head,
    parse_mark,
    split_head,
)
from profiling.onednn_log.work import MemoryDescriptor, Problem, parse_memory
from tests.profiling.onednn_log.example_lines import CONVOLUTION_SHAPE, OTHERS, SPELLINGS


def problem_in(line: str) -> Problem:
    meaning = parse_head(split_head(line.partition(",")[2]))
    assert meaning.kind == "execution"
    assert meaning.problem is not None
    return meaning.problem


@pytest.mark.parametrize("version", SPELLINGS)
def test_convolution_is_the_same_problem_in_every_version(version: str) -> None:
    assert problem_in(SPELLINGS[version]) == Problem(
        component="primitive",
        engine="cpu",
        kind="convolution",
        implementation="jit:avx2",
        direction="forward_training",
        memories=(
            MemoryDescriptor("src", "f32", tag="aBcd8b", flags="f0"),
            MemoryDescriptor("wei", "f32", tag="ABcd8b8a", flags="f0"),
            MemoryDescriptor("bia", "f32", tag="a", flags="f0"),
            MemoryDescriptor("dst", "f32", tag="aBcd8b", flags="f0"),
        ),
        attributes="",
        auxiliary="alg:convolution_direct",
        shape=CONVOLUTION_SHAPE,
    )
    assert milliseconds(split_head(SPELLINGS[version].partition(",")[2]).time) == 0.25


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("post_ops:'sum;eltwise_relu;';", "attr-post-ops:sum+eltwise_relu"),
        (
            "scratchpad_mode:user;oscale:0:0.5;zero_points:'src:0:1_dst:0:*';post_ops:'sum:0.5;';",
            "attr-scratchpad:user attr-oscale:0:0.5 attr-zero-points:src:0:1_dst:0:* "
            "attr-post-ops:sum:0.5",
        ),
        (
            "attr-scratchpad:user attr-post-ops:'sum;eltwise_relu;'",
            "attr-scratchpad:user attr-post-ops:sum+eltwise_relu",
        ),
        ("rnn_data_qparams:2:3;", "rnn_data_qparams:2:3;"),
        ("attr-scales:src:0:f32+wei:1:f32", "attr-scales:src:0:f32+wei:1:f32"),
    ],
)
def test_attributes_of_earlier_versions_are_those_of_later_ones(old: str, new: str) -> None:
    line = SPELLINGS["1.8"].replace(",,alg:", f",{old},alg:")
    assert problem_in(line).attributes == new


@pytest.mark.parametrize("kind", ["softmax", "pooling", "layer_normalization", "eltwise"])
def test_second_interface_is_the_same_primitive(kind: str) -> None:
    line = "onednn_verbose,exec,cpu,{},ref:any,undef,src_f32::blocked:ab:f0,,,2x3,0.5"
    assert problem_in(line.format(f"{kind}_v2")) == problem_in(line.format(kind))


def test_rare_executions() -> None:
    problems = {name: problem_in(line) for name, line in OTHERS.items()}
    assert all(milliseconds(split_head(line).time) > 0 for line in OTHERS.values())
    assert problems["graph"].kind == "sdp"
    assert problems["graph"].implementation == "sdp_decomp_kernel_t:dnnl_backend"
    assert problems["graph"].attributes == "fpm:strict"
    # The number of a partition differs from run to run.
    assert problem_in(OTHERS["graph"].replace(",100002,", ",100077,")) == problems["graph"]
    assert problems["graph's own kernel"].kind.startswith("_gen_index")
    assert problems["micro-kernel"].component == "ukernel"
    assert problems["transform"].implementation == "pack_B"
    assert problems["gemm call"].attributes == "lda:80"
    assert problems["attention, 3.7"].types == "query:f16 key:f16 val:f16"
    assert problems["attention, 3.9"].types == "query:f16 key:s8 val:s8 dst:f16"
    assert problems["between devices"].engine == "cpu2gpu:0"
    bias = problems["masked bias"].memory("bia")
    assert bias is not None and (bias.tag, bias.flags) == ("ab", "f0_mask2")
    source, target = problems["strides"].memories
    assert source.layout == "acdb(150528x1x672x3)"
    assert (target.properties, target.flags) == ("p", "f8:s8m1")


@pytest.mark.parametrize(
    ("text", "role", "type_", "layout"),
    [
        ("bia_undef::undef::f0", "bia", "undef", "undef"),
        ("bia:undef::undef:::", "bia", "undef", "undef"),
        ("wei_u8:a:any:any::f0", "wei", "u8", "any"),
        ("wei_f32:p:wino:f0", "wei", "f32", "wino"),
        ("src_layer_f32::blocked:abc:f0", "src_layer", "f32", "abc"),
        ("diff_src_iter:bf16::blocked:abcd::f0", "diff_src_iter", "bf16", "abcd"),
        ("src:f8_e4m3::blocked:ab::f0", "src", "f8_e4m3", "ab"),
        ("wei:f32::sparse:csr::f0", "wei", "f32", "csr"),
    ],
)
def test_tensors_in_both_spellings(text: str, role: str, type_: str, layout: str) -> None:
    memory = parse_memory(text)
    assert (memory.role, memory.type, memory.layout) == (role, type_, layout)


@pytest.mark.parametrize("time", ["1e308", "9" * 300, "1e13", "-1", "nan", "inf"])
def test_time_that_no_call_takes_is_refused(time: str) -> None:
    with pytest.raises(ValueError, match="invalid time: "):
        milliseconds(time)


def test_marks_and_facts_of_a_run() -> None:
    mark = Mark(1000.5, is_begin=True, step=20, phase="forward")
    assert parse_mark(mark_line(mark).partition(",")[2]) == mark
    long = "9" * 300
    for text in (
        *("1.0,middle,20", "1.0,begin,20,a,b", "nan,begin,20", "1.0,begin,x"),
        *("1e308,begin,20", f"{long},end,20", "-1,end,20", f"1.0,end,{long}", "1.0,begin,-1"),
    ):
        with pytest.raises(ValueError, match=r"\w+ "):
            parse_mark(text)
    for text in (
        "[1]",
        "{",
        "[" * 100_000,
        '{"rank": []}',
        '{"threads": 1e308}',
        f'{{"a": [{long}]}}',
    ):
        with pytest.raises(ValueError, match=r"\w+"):
            parse_facts(text)
