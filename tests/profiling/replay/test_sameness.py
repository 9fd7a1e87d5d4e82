"""Which lines of logs are the same work, and which are not."""

import pytest

from profiling.onednn_log.work import Problem
from profiling.replay.replay import difference, same_layouts, work_of
from tests.profiling.replay.problems import problem, v3

PIXELS = "src:bf16::blocked:acdb::f0 wei:bf16:a:blocked:AcdB64a2b::f0 bia:undef::undef::: "
SHAPE = "mb4_ic32oc64_ih24oh24kh1sh1dh0ph0_iw32ow32kw1sw1dw0pw0"


def convolution(
    *,
    implementation: str = "brgconv_1x1:avx512_core_bf16",
    direction: str = "forward_training",
    memories: str = f"{PIXELS}dst:bf16::blocked:acdb::f0",
    attributes: str = "attr-scratchpad:user",
    shape: str = SHAPE,
) -> Problem:
    return v3(
        f"cpu,convolution,{implementation},{direction},{memories},{attributes},"
        f"alg:convolution_direct,{shape}"
    )


def is_same(one: Problem, other: Problem) -> bool:
    return work_of(one) == work_of(other) and same_layouts(one, other)


def test_versions_call_the_same_work_otherwise() -> None:
    old = problem(
        "exec,cpu,convolution,jit_bf16_1x1:avx512_core_bf16,backward_data,"
        "src_bf16::blocked:acdb:f0 wei_bf16::blocked:BAcd8a16b2a:f0 bia_undef::undef::f0 "
        "dst_bf16::blocked:acdb:f0,"
        f"attr-scratchpad:user ,alg:convolution_direct,{SHAPE}"
    )
    new = convolution(implementation="brg_conv_bwd:avx512_core_bf16", direction="backward_data")
    assert is_same(old, new)
    old = problem(
        "exec,cpu,matmul,brg:avx512_core_bf16,undef,src_bf16::blocked:ab:f0 "
        "wei_bf16::blocked:ba:f0 dst_bf16::blocked:ab:f0,attr-scratchpad:user "
        "attr-post-ops:sum ,,4x128:128x10:4x10"
    )
    assert is_same(old, product(attributes="attr-scratchpad:user attr-post-ops:sum"))


def product(*, attributes: str = "attr-scratchpad:user", weights: str = "ba") -> Problem:
    return v3(
        "cpu,matmul,brg_matmul:avx512_core_bf16,undef,src:bf16::blocked:ab::f0 "
        f"wei:bf16::blocked:{weights}::f0 dst:bf16::blocked:ab::f0,{attributes},,4x128:128x10"
    )


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (convolution(shape=SHAPE.replace("mb4", "mb8")), "torch made it mb8"),
        (
            convolution(memories=f"{PIXELS}dst:f32::blocked:acdb::f0"),
            "torch made it src:bf16 wei:bf16 dst:f32",
        ),
        (convolution(direction="backward_data"), "torch made it backward_data"),
        (convolution(attributes="attr-post-ops:eltwise_relu"), "torch made it with eltwise_relu"),
        (
            convolution(memories=f"{PIXELS.replace('acdb', 'abcd')}dst:bf16::blocked:abcd::f0"),
            "torch made it with layouts src:abcd wei:AcdB64a2b dst:abcd",
        ),
    ],
)
def test_other_work_is_no_replay_and_the_difference_is_told(other: Problem, why: str) -> None:
    assert not is_same(convolution(), other)
    assert difference(convolution(), other).startswith(why)


def test_how_weights_lie_is_the_librarys_choice() -> None:
    memories = PIXELS.replace("AcdB64a2b", "aBcd16b") + "dst:bf16::blocked:acdb::f0"
    assert is_same(convolution(), convolution(memories=memories))


def test_a_line_of_pixels_is_a_picture_of_height_1() -> None:
    flat = "mb2_ic8oc16_iw20ow18kw3sw1dw0pw0"
    tall = "mb2_ic8oc16_ih1oh1kh1sh1dh0ph0_iw20ow18kw3sw1dw0pw0"
    assert is_same(convolution(shape=flat), convolution(shape=tall))


def test_a_product_of_another_order_is_another() -> None:
    assert is_same(product(), product())
    assert not is_same(product(), product(weights="ab"))
    assert not is_same(product(), product(attributes="attr-post-ops:sum"))


def reorder(source: str, target: str, shape: str) -> Problem:
    return v3(
        f"cpu,reorder,jit:uni,undef,src:bf16::blocked:{source}::f0 dst:bf16::blocked:{target}::f0,"
        f"attr-scratchpad:user,,{shape}"
    )


def test_a_reorder_is_its_two_layouts() -> None:
    asked = reorder("acdb", "AcdB64a2b", "64x32x1x1")
    assert is_same(asked, reorder("acdb", "AcdB64a2b", "64x32x1x1"))
    assert not is_same(asked, reorder("acdb", "ABcd8a16b2a", "64x32x1x1"))
    # Dimensions of 1 are never walked along; others are.
    assert is_same(asked, reorder("abcd", "AcdB64a2b", "64x32x1x1"))
    assert not is_same(
        reorder("acdb", "AcdB64a2b", "64x32x3x3"), reorder("abcd", "AcdB64a2b", "64x32x3x3")
    )


def test_data_and_source_are_one_role() -> None:
    shared = "attr-scratchpad:user,alg:eltwise_relu alpha:0 beta:0,2x32x20x20"
    older = v3(f"cpu,eltwise,jit,forward_training,data:f32::blocked:abcd::f0,{shared}")
    newer = v3(
        "cpu,eltwise,jit,forward_training,src:f32::blocked:abcd::f0 "
        f"dst:f32::blocked:abcd::f0,{shared}"
    )
    assert is_same(older, newer)
    other = v3(
        "cpu,eltwise,jit,forward_training,data:f32::blocked:abcd::f0,attr-scratchpad:user,"
        "alg:eltwise_tanh alpha:0 beta:0,2x32x20x20"
    )
    assert not is_same(older, other)
