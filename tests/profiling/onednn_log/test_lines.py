"""Every spelling of a line, from 1.0 to 3.12."""

import pytest

from profiling.onednn_log.parse import head_of, meaning_of, milliseconds
from profiling.onednn_log.work import MemoryDescriptor, Problem, parse_memory
from tests.profiling.onednn_log.lines import (
    CONVOLUTION_SHAPE,
    DAMAGED,
    OTHERS,
    SPELLINGS,
    UNLIKE_OTHERS,
)


def problem_in(line: str) -> Problem:
    meaning = meaning_of(head_of(line.partition(",")[2]))
    assert meaning.kind == "execution"
    assert meaning.problem is not None
    return meaning.problem


@pytest.mark.parametrize("version", SPELLINGS)
def test_a_convolution_is_the_same_problem_in_every_version(version: str) -> None:
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
    assert milliseconds(head_of(SPELLINGS[version].partition(",")[2]).time) == 0.25


@pytest.mark.parametrize("name", OTHERS)
def test_rare_lines_are_executions_with_a_time(name: str) -> None:
    problem = problem_in(OTHERS[name])
    assert problem.kind
    assert milliseconds(head_of(OTHERS[name]).time) > 0


def test_fields_of_rare_lines() -> None:
    assert problem_in(OTHERS["graph"]).kind == "sdp"
    assert problem_in(OTHERS["graph"]).implementation == "sdp_decomp_kernel_t:dnnl_backend"
    assert problem_in(OTHERS["graph"]).attributes == "fpm:strict"
    assert problem_in(OTHERS["graph's own kernel"]).kind.startswith("_gen_index")
    assert problem_in(OTHERS["micro-kernel"]).component == "ukernel"
    assert problem_in(OTHERS["transform"]).implementation == "pack_B"
    assert problem_in(OTHERS["gemm call"]).attributes == "lda:80"
    assert problem_in(OTHERS["attention, 3.7"]).types == "query:f16 key:f16 val:f16"
    assert problem_in(OTHERS["attention, 3.9"]).types == "query:f16 key:s8 val:s8 dst:f16"
    assert problem_in(OTHERS["between devices"]).engine == "cpu2gpu:0"
    bias = problem_in(OTHERS["masked bias"]).memory("bia")
    assert bias is not None
    assert (bias.tag, bias.flags) == ("ab", "f0_mask2")


def test_the_partition_of_a_graph_is_the_same_whatever_its_number() -> None:
    again = OTHERS["graph"].replace(",100002,", ",100077,")
    assert problem_in(again) == problem_in(OTHERS["graph"])


def test_strides_and_flags_of_a_tensor() -> None:
    source, target = problem_in(OTHERS["strides"]).memories
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
    found = parse_memory(text)
    assert (found.role, found.type, found.layout) == (role, type_, layout)


@pytest.mark.parametrize("line", UNLIKE_OTHERS)
def test_lines_of_other_kinds_are_understood(line: str) -> None:
    assert meaning_of(head_of(line.partition(",")[2])).kind != "execution"


@pytest.mark.parametrize("line", DAMAGED)
def test_damaged_lines_are_refused_with_a_reason(line: str) -> None:
    head = head_of(line.partition(",")[2])
    with pytest.raises(ValueError, match=r"\w+ "):
        meaning_of(head)
        milliseconds(head.time)
