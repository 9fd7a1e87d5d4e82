"""Each kind of primitive in benchdnn's language, as its documentation has it."""

import re

import pytest

from profiling.onednn_log.parse import head_of, meaning_of
from profiling.onednn_log.work import Problem
from profiling.replay.benchdnn_fields import Dialect, NotExpressibleError
from profiling.replay.benchdnn_problems import problem_line

THREE = Dialect(3)
ALWAYS = "--reset --allow-enum-tags-only=false "


def read(line: str) -> Problem:
    """The problem of a log's line, told without marker and time."""
    problem = meaning_of(head_of(f"v1,primitive,exec,{line},0.5")).problem
    assert problem is not None
    return problem


def words(line: str, dialect: Dialect = THREE) -> str:
    """Driver and what follows it, without what every line begins with."""
    found = problem_line(read(line), dialect)
    assert found.text.startswith(ALWAYS)
    return f"{found.driver}: {found.text.removeprefix(ALWAYS)}"


EXPECTED = {
    "a convolution whose weights' layout the library chose": (
        "cpu,convolution,brg_conv_fwd:avx512_core,forward_training,src:bf16::blocked:acdb::f0 "
        "wei:bf16:ap:blocked:AcdB32a2b::f0 bia:undef::undef::: dst:bf16::blocked:acdb::f0,"
        "attr-scratchpad:user attr-post-ops:eltwise_relu,alg:convolution_direct,"
        "mb4_ic3oc32_ih96oh48kh7sh2dh0ph3_iw128ow64kw7sw2dw0pw3",
        "conv: --dir=FWD_D --dt=bf16:bf16:bf16 --stag=acdb --wtag=any --dtag=acdb --alg=DIRECT "
        "--attr-scratchpad=user --attr-post-ops=relu:0:0 "
        "mb4_ic3oc32_ih96oh48kh7sh2dh0ph3_iw128ow64kw7sw2dw0pw3",
    ),
    "a convolution's gradient of weights and bias": (
        "cpu,convolution,jit:avx512_core,backward_weights,src:f32::blocked:acdb::f0 "
        "wei:f32::blocked:ABcd16b16a::f0 bia:f32:a:blocked:a::f0 dst:f32::blocked:acdb::f0,,"
        "alg:convolution_direct,g32mb4_ic64oc64_ih24oh24kh3sh1dh0ph1_iw32ow32kw3sw1dw0pw1",
        "conv: --dir=BWD_WB --dt=f32:f32:f32 --stag=acdb --wtag=ABcd16b16a --dtag=acdb "
        "--alg=DIRECT g32mb4_ic64oc64_ih24oh24kh3sh1dh0ph1_iw32ow32kw3sw1dw0pw1",
    ),
    "a convolution with a source that is not dense": (
        "cpu,convolution,jit:avx512_core,backward_data,src:f32::blocked:acdb:150528x1x672x3:f0 "
        "wei:f32:a:blocked:ABcd16b16a::f0 bia:undef::undef::: dst:f32::blocked:acdb::f0,,"
        "alg:convolution_winograd,mb1_ic3oc64_ih224oh112kh7sh2dh0ph3_iw224ow112kw7sw2dw0pw3",
        "conv: --dir=BWD_D --dt=f32:f32:f32 --wtag=any --dtag=acdb --strides=150528x1x672x3:: "
        "--alg=WINO mb1_ic3oc64_ih224oh112kh7sh2dh0ph3_iw224ow112kw7sw2dw0pw3",
    ),
    "an int8 convolution with scales and zero points": (
        "cpu,convolution,brgconv:avx512_core_vnni,forward_inference,src:u8::blocked:acdb::f0 "
        "wei:s8:a:blocked:AcdB64a4b::f0 bia:undef::undef::: dst:u8::blocked:acdb::f0,"
        "attr-scales:src0:0:f32+dst:0:f32+wei:1:f32 attr-zero-points:src0:0:s32,"
        "alg:convolution_direct,mb1_ic64oc64_ih56oh56kh3sh1dh0ph1_iw56ow56kw3sw1dw0pw1",
        "conv: --dir=FWD_I --dt=u8:s8:u8 --stag=acdb --wtag=any --dtag=acdb --alg=DIRECT "
        "--attr-scales=src0:common:0.5+dst:common:0.5+wei:per_oc "
        "--attr-zero-points=src0:common:1 "
        "mb1_ic64oc64_ih56oh56kh3sh1dh0ph1_iw56ow56kw3sw1dw0pw1",
    ),
    "a convolution and a depthwise one in one": (
        "cpu,convolution,jit_1x1:avx512_core,forward_inference,src:f32::blocked:acdb::f0 "
        "wei:f32:a:blocked:ABcd16b16a::f0 bia:f32:a:blocked:a::f0 src_fused:f32:a:blocked:aBcd16b"
        "::f0 wei_fused:f32::blocked:Abcde16a::f0 bia_fused:f32::blocked:a::f0 "
        "dst:f32::blocked:aBcd16b::f0,attr-post-ops:eltwise_relu+dw:k3s1p1,"
        "alg:convolution_direct,mb1_ic16oc16_ih4oh4kh1sh1dh0ph0_iw4ow4kw1sw1dw0pw0",
        "conv: --dir=FWD_B --dt=f32:f32:f32 --stag=acdb --wtag=any --dtag=any --alg=DIRECT "
        "--attr-post-ops=relu:0:0+dw:k3s1p1 "
        "mb1_ic16oc16_ih4oh4kh1sh1dh0ph0_iw4ow4kw1sw1dw0pw0",
    ),
    "a deconvolution": (
        "cpu,deconvolution,jit:avx512_core,forward_training,src:f32::blocked:acdb::f0 "
        "wei:f32:a:blocked:Acdb16a::f0 bia:f32:a:blocked:a::f0 dst:f32::blocked:acdb::f0,,"
        "alg:deconvolution_direct,mb2_ic64oc32_ih8oh16kh2sh2dh0ph0_iw8ow16kw2sw2dw0pw0",
        "deconv: --dir=FWD_B --dt=f32:f32:f32 --stag=acdb --wtag=any --dtag=acdb --alg=DIRECT "
        "mb2_ic64oc32_ih8oh16kh2sh2dh0ph0_iw8ow16kw2sw2dw0pw0",
    ),
    "a matrix product with a bias and a sum": (
        "cpu,matmul,brg_matmul:avx512_core_bf16,undef,src:bf16::blocked:ab::f0 "
        "wei:bf16::blocked:ba::f0 bia:bf16:a:blocked:ab::f0_mask2 dst:bf16::blocked:ab::f0,"
        "attr-scratchpad:user attr-post-ops:sum:0.5,,400x256:256x64",
        "matmul: --dt=bf16:bf16:bf16 --stag=ab --wtag=ba --dtag=ab --bia_dt=bf16 --bia_mask=2 "
        "--attr-scratchpad=user --attr-post-ops=sum:0.5 400x256:256x64",
    ),
    "a batch of products with strides and a second tensor": (
        "cpu,matmul,brg_matmul:avx512_core,undef,src:f32::blocked:abc:8x4x1:f0 "
        "wei:f32::blocked:abc::f0 dst:f32::blocked:abc:21x7x1:f0,"
        "attr-post-ops:binary_add:f32:4+binary_mul:f32:7:abc,,3x2x4:3x4x6",
        "matmul: --dt=f32:f32:f32 --wtag=abc --strides=8x4x1::21x7x1 "
        "--attr-post-ops=add:f32:4+mul:f32:7:abc 3x2x4:3x4x6",
    ),
    "a product with sizes known at run time and groups of scales": (
        "cpu,matmul,ref:any,undef,src:f32::blocked:ab::f0 wei:s8::blocked:ab::f0 "
        "dst:f32::blocked:ab::f0,attr-fpmath:bf16:true attr-scales:wei:3:bf16:2x1 "
        "attr-zero-points:wei:3:s8:2x1,runtime_dims_masks:1:0,6x4:4x5",
        "matmul: --dt=f32:s8:f32 --stag=ab --wtag=ab --dtag=ab --runtime_dims_masks=1:0 "
        "--attr-fpmath=bf16:true --attr-scales=wei:per_ocic:bf16:2x1 "
        "--attr-zero-points=wei:per_ocic:s8:2x1 6x4:4x5",
    ),
    "an inner product": (
        "cpu,inner_product,brgemm:avx512_core,backward_weights,src:f32::blocked:ab::f0 "
        "wei:f32:a:blocked:AB16b64a::f0 bia:f32::blocked:a::f0 dst:f32::blocked:ab::f0,,,"
        "mb112ic2048oc1000",
        "ip: --dir=BWD_WB --dt=f32:f32:f32 --stag=ab --wtag=any --dtag=ab mb112ic2048oc1000",
    ),
    "a reorder into a layout with blocks": (
        "cpu,reorder,jit:uni,undef,src:f32::blocked:acdb::f0 dst:bf16:p:blocked:AcdB32a2b::f0,,,"
        "32x3x7x7",
        "reorder: --sdt=f32 --ddt=bf16 --stag=acdb --dtag=AcdB32a2b 32x3x7x7",
    ),
    "a reorder of a part, and of int8 weights with what they carry along": (
        "cpu,reorder,simple:any,undef,src:f32::blocked:ab:12x1:f0 dst:s8::blocked:BA16a64b4a::"
        "f8:s8m1:zpm3,attr-scales:src0:0:f32,,10x6",
        "reorder: --sdt=f32 --ddt=s8 --dtag=BA16a64b4a --strides=12x1: "
        "--oflag=s8s8_comp:1+zp_comp:3 --attr-scales=src0:common:0.5 10x6",
    ),
    "pooling": (
        "cpu,pooling,jit:avx512_core,forward_training,src:f32::blocked:acdb::f0 "
        "dst:f32:a:blocked:acdb::f0 ws:u8::blocked:acdb::f0,,alg:pooling_max,"
        "mb4ic32_ih48oh24kh3sh2dh0ph1_iw64ow32kw3sw2dw0pw1",
        "pool: --dir=FWD_D --dt=f32:f32 --tag=acdb --alg=max "
        "mb4ic32_ih48oh24kh3sh2dh0ph1_iw64ow32kw3sw2dw0pw1",
    ),
    "pooling's gradient": (
        "cpu,pooling,jit:avx512_core,backward_data,src:bf16:a:blocked:aBcd16b::f0 "
        "dst:bf16::blocked:aBcd16b::f0,,alg:pooling_avg_include_padding,"
        "mb4ic32_ih7oh1kh7sh7dh0ph0_iw7ow1kw7sw7dw0pw0",
        "pool: --dir=BWD_D --dt=bf16:bf16 --tag=aBcd16b --alg=avg_p "
        "mb4ic32_ih7oh1kh7sh7dh0ph0_iw7ow1kw7sw7dw0pw0",
    ),
    "batch normalization": (
        "cpu,batch_normalization,bnorm_jit:avx512_core,forward_training,data:f32::blocked:acdb::f0,"
        ",flags:CHR,mb2ic64ih100iw100",
        "bnorm: --dir=FWD_D --dt=f32 --tag=acdb --flags=CHR mb2ic64ih100iw100",
    ),
    "batch normalization's gradient": (
        "cpu,batch_normalization,bnorm_jit:avx512_core,backward,data:f32::blocked:acdb::f0 "
        "diff:f32::blocked:acdb::f0,,flags:GCH,mb2ic64ih100iw100",
        "bnorm: --dir=BWD_DW --dt=f32 --tag=acdb --flags=GCH mb2ic64ih100iw100",
    ),
    "layer normalization": (
        "cpu,layer_normalization,jit:uni,forward_training,src:bf16::blocked:abc::f0 "
        "dst:f32::blocked:abc::f0 stats:f32::blocked:ab::f0 scale:bf16::blocked:a::f0 "
        "shift:bf16::blocked:a::f0,,flags:CH,8x32x1024",
        "lnorm: --dir=FWD_D --dt=bf16:f32 --tag=abc:abc --stat_tag=ab --ss_dt=bf16 --flags=CH "
        "8x32x1024",
    ),
    "group normalization": (
        "cpu,group_normalization,jit:uni,backward,src:f32::blocked:acdb::f0 "
        "dst:f32:a:blocked:acdb::f0 diff_src:f32:a:blocked:acdb::f0,,flags:CH,g8mb2ic64ih10iw10",
        "gnorm: --dir=BWD_DW --dt=f32:f32 --tag=acdb:any --flags=CH g8mb2ic64ih10iw10",
    ),
    "a function of every element": (
        "cpu,eltwise,jit:avx512_core,forward_training,data:bf16::blocked:acdb::f0,,"
        "alg:eltwise_swish alpha:1 beta:0,2x64x100x100",
        "eltwise: --dir=FWD_D --dt=bf16 --tag=acdb --alg=swish --alpha=1 --beta=0 2x64x100x100",
    ),
    "its gradient from the result": (
        "cpu,eltwise,jit:avx512_core,backward_data,data:f32::blocked:ab::f0 "
        "diff:f32:a:blocked:ab::f0,,alg:eltwise_relu_use_dst_for_bwd alpha:0 beta:0,64x1000",
        "eltwise: --dir=BWD_D --dt=f32 --tag=ab --alg=relu_dst --alpha=0 --beta=0 64x1000",
    ),
    "an operation of two tensors": (
        "cpu,binary,jit:uni,undef,src:f32::blocked:acdb::f0 src:bf16::blocked:acdb::f0 "
        "dst:f32:a:blocked:acdb::f0,attr-post-ops:eltwise_linear:2:1,alg:binary_add,"
        "2x64x8x8:1x64x1x1",
        "binary: --sdt=f32:bf16 --ddt=f32 --stag=acdb:acdb --dtag=any --alg=add "
        "--attr-post-ops=linear:2:1 2x64x8x8:1x64x1x1",
    ),
    "softmax": (
        "cpu,softmax,jit:avx512_core,forward_inference,src:f32::blocked:ab::f0 "
        "dst:bf16::blocked:ab::f0,,alg:softmax_log axis:1,256x1000",
        "softmax: --dir=FWD_I --sdt=f32 --ddt=bf16 --stag=ab --dtag=ab --alg=LOGSOFTMAX --axis=1 "
        "256x1000",
    ),
    "resampling": (
        "cpu,resampling,jit:uni,forward_training,src:f32::blocked:acdb::f0 "
        "dst:f32:a:blocked:acdb::f0,,alg:resampling_nearest,mb2ic256_ih13oh25_iw13ow25",
        "resampling: --dir=FWD_D --sdt=f32 --ddt=f32 --tag=acdb --alg=nearest "
        "mb2ic256_ih13oh25_iw13ow25",
    ),
    "reduction": (
        "cpu,reduction,jit:avx512_core,undef,src:f32::blocked:abc::f0 dst:f32::blocked:abc::f0,,"
        "alg:reduction_norm_lp_sum p:2 eps:0.5,1x2x3:1x1x3",
        "reduction: --sdt=f32 --ddt=f32 --stag=abc --dtag=abc --alg=norm_lp_sum --p=2 --eps=0.5 "
        "1x2x3:1x1x3",
    ),
    "tensors one after the other": (
        "cpu,concat,simple:any,undef,src:f32::blocked:acdb::f0 src:f32::blocked:acdb::f0 "
        "src:f32::blocked:acdb::f0 dst:f32:a:blocked:acdb::f0,,axis:2,8x8x3x5:8x8x7x5:8x8x1x5",
        "concat: --sdt=f32 --ddt=f32 --stag=acdb:acdb:acdb --dtag=any --axis=2 "
        "8x8x3x5:8x8x7x5:8x8x1x5",
    ),
    "tensors added up": (
        "cpu,sum,jit:uni,undef,src:bf16::blocked:acdb::f0 src:bf16::blocked:acdb::f0 "
        "dst:f32::blocked:acdb::f0,,,16x16x3x5",
        "sum: --sdt=bf16:bf16 --ddt=f32 --stag=acdb:acdb --dtag=acdb 16x16x3x5",
    ),
    "channels in another order": (
        "cpu,shuffle,jit:uni,backward_data,data:f32::blocked:acdb::f0,,axis:1 group:4,1x68x56x56",
        "shuffle: --dir=BWD_D --dt=f32 --tag=acdb --axis=1 --group=4 1x68x56x56",
    ),
    "local response normalization": (
        "cpu,lrn,jit:avx512_core,forward_training,data:f32::blocked:aBcd16b::f0,,"
        "alg:lrn_across_channels,mb2ic96ih55iw55ls5beta0.75",
        "lrn: --dir=FWD_D --dt=f32 --tag=aBcd16b --alg=ACROSS mb2ic96ih55iw55ls5beta0.75",
    ),
    "ReLU with learnt slopes": (
        "cpu,prelu,jit:uni,backward,data:f32::blocked:abcd::f0 wei:f32:a:blocked:abcd::f0 "
        "diff:f32:a:blocked:abcd::f0 diff_wei:f32:a:blocked:abcd::f0,,,256x128x7x7:1x128x1x1",
        "prelu: --dir=BWD_DW --sdt=f32:f32 --stag=abcd:any 256x128x7x7:1x128x1x1",
    ),
    "an LSTM": (
        "cpu,rnn,brgemm:avx512_core,forward_training,src_layer:f32::blocked:abc::f0 "
        "src_iter:f32::blocked:abcd::f0 wei_layer:f32:a:blocked:abdEc32e::f0 "
        "wei_iter:f32:a:blocked:abdEc32e::f0 wei_peephole:f32::blocked:abcd::f0 "
        "bias:f32:a:blocked:abcd::f0 dst_layer:f32::blocked:abc::f0 dst_iter:f32::blocked:abcd::f0,"
        ",alg:vanilla_lstm direction:unidirectional_left2right activation:undef flags:,"
        "l1t3mb4sic16slc16dhc16dic16",
        "rnn: --prop=FWD_D --cfg=f32 --tag=abc:any:abc --alg=VANILLA_LSTM --direction=left2right "
        "--with-peephole=true --trivial-strides=true l1t3mb4sic16slc16dhc16dic16",
    ),
    "a recurrent layer's gradient": (
        "cpu,rnn,brgemm:avx512_core,backward,src_layer:bf16::blocked:abc::f0 "
        "src_iter:bf16::blocked:abcd::f0 wei_layer:bf16:a:blocked:abdEc32e2c::f0 "
        "wei_iter:bf16:a:blocked:abdEc32e2c::f0 bias:f32:a:blocked:abcd::f0 "
        "dst_layer:bf16::blocked:abc::f0 dst_iter:bf16::blocked:abcd::f0,,"
        "alg:vanilla_rnn direction:bidirectional_sum activation:eltwise_tanh flags:O,"
        "l1t3mb4sic16slc16dhc16dic16",
        "rnn: --prop=BWD_DW --cfg=bf16f32 --tag=abc:any:abc --alg=VANILLA_RNN --direction=sum "
        "--activation=TANH --flags=O --trivial-strides=true l1t3mb4sic16slc16dhc16dic16",
    ),
}


@pytest.mark.parametrize("what", EXPECTED)
def test_a_problem_becomes_the_line_that_benchdnn_s_documentation_asks_for(what: str) -> None:
    line, expected = EXPECTED[what]
    assert words(line) == expected


OF_2 = {
    "types of a convolution": (
        "cpu,convolution,jit:avx512_core,forward_training,src_bf16::blocked:acdb:f0 "
        "wei_bf16::blocked:AcdB64a2b:f0 bia_f32::blocked:a:f0 dst_bf16::blocked:acdb:f0,,"
        "alg:convolution_direct,mb4_ic32oc64_ih24oh24kh1sh1dh0ph0_iw32ow32kw1sw1dw0pw0",
        "conv: --dir=FWD_B --cfg=bf16bf16bf16 --stag=acdb --wtag=AcdB64a2b --dtag=acdb "
        "--alg=DIRECT mb4_ic32oc64_ih24oh24kh1sh1dh0ph0_iw32ow32kw1sw1dw0pw0",
    ),
    "sizes of a product, of which the log has three": (
        "cpu,matmul,brg:avx512_core,undef,src_f32::blocked:ab:f0 wei_f32::blocked:ba:f0 "
        "dst_f32::blocked:ab:f0,attr-oscale:2 attr-post-ops:binary_add:f32:3:ab,,"
        "4x128:128x10:4x10",
        "matmul: --cfg=f32 --stag=ab --wtag=ba --dtag=ab --attr-oscale=per_oc:0.5 "
        "--attr-post-ops=add:f32:per_dim_01:ab 4x128:128x10",
    ),
    "one type and layout of softmax": (
        "cpu,softmax,jit:avx512_core,forward_training,data_f32::blocked:ab:f0,,axis:1,256x1000",
        "softmax: --dir=FWD_D --dt=f32 --tag=ab --alg=SOFTMAX --axis=1 256x1000",
    ),
    "a scale and shift in one tensor": (
        "cpu,batch_normalization,bnorm_jit:avx512_core,forward_training,data_f32::blocked:acdb:f0,"
        ",flags:S,mb2ic64ih100iw100",
        "bnorm: --dir=FWD_D --dt=f32 --tag=acdb --flags=S mb2ic64ih100iw100",
    ),
}


@pytest.mark.parametrize("what", OF_2)
def test_benchdnn_2_has_words_of_its_own(what: str) -> None:
    line, expected = OF_2[what]
    assert words(line, Dialect(2)) == expected


ELTWISE = "cpu,eltwise,jit:avx2,forward_training,data_f32::blocked:ab:f0,,{},64x1000"


@pytest.mark.parametrize(
    ("of_2", "of_3"),
    [
        ("alg:eltwise_bounded_relu alpha:6 beta:0", "--alg=clip --alpha=0 --beta=6"),
        ("alg:eltwise_logsigmoid alpha:0 beta:0", "--alg=soft_relu --alpha=-1 --beta=0"),
        ("alg:eltwise_soft_relu alpha:0 beta:0", "--alg=soft_relu --alpha=1 --beta=0"),
        ("alg:eltwise_hardswish alpha:0 beta:0", "--alg=hardswish --alpha=0.166667 --beta=0.5"),
    ],
)
def test_what_2_computed_is_told_to_3_in_its_own_words(of_2: str, of_3: str) -> None:
    assert of_3 in words(ELTWISE.format(of_2))


def test_flags_of_2_are_told_to_3_as_two() -> None:
    line, _ = OF_2["a scale and shift in one tensor"]
    assert "--flags=CH " in words(line)


def test_any_leaves_all_layouts_to_the_library_that_it_may_choose() -> None:
    line, _ = EXPECTED["a convolution whose weights' layout the library chose"]
    assert "--stag=any --wtag=any --dtag=any" in words(line, Dialect(3, "any"))
    line, _ = EXPECTED["a reorder into a layout with blocks"]
    assert "--stag=acdb --dtag=AcdB32a2b" in words(line, Dialect(3, "any"))


def test_any_takes_the_place_of_strides() -> None:
    line, _ = EXPECTED["a convolution with a source that is not dense"]
    told = words(line, Dialect(3, "any"))
    assert "--stag=any" in told
    assert "--strides" not in told


def test_what_benchdnn_does_otherwise_is_noted() -> None:
    line, _ = EXPECTED["a convolution and a depthwise one in one"]
    found = problem_line(read(line), THREE)
    assert found.notes == ("inference with a bias is run as training's forward pass",)


RELU = "alg:eltwise_relu alpha:0 beta:0"
REFUSED = {
    "it ran on gpu:0": f"gpu:0,eltwise,ocl:ref:any,forward_training,data:f32::blocked:ab::f0,,"
    f"{RELU},64x1000",
    "it ran on cpu2gpu": "cpu2gpu,reorder,ocl:any,undef,src:f32::blocked:ab::f0 "
    "dst:f32::blocked:ab::f0,,,8x8",
    "is no kind of primitive": "cpu,telepathy,ref:any,undef,src:f32::blocked:ab::f0,,,8x8",
    "takes no strides": f"cpu,eltwise,jit:avx2,forward_training,data:f32::blocked:ab:12x1:f0,,"
    f"{RELU},64x10",
    "a layout without a name": "cpu,reorder,wino:any,undef,src:f32::blocked:abcd::f0 "
    "dst:f32::wino:::f0,,,64x64x3x3",
    "known at run time only": "cpu,matmul,ref:any,undef,src:f32::blocked:ab::f0 "
    "wei:f32::blocked:ab::f0 dst:f32::blocked:ab::f0,,runtime_dims_masks:3:3,*x*:*x*",
    "takes one type, not bf16 and f32": "cpu,concat,ref:any,undef,src:f32::blocked:ab::f0 "
    "src:bf16::blocked:ab::f0 dst:f32::blocked:ab::f0,,axis:0,2x3:2x3",
    "knows no attribute 'attr-telepathy'": f"cpu,eltwise,jit:avx2,forward_training,"
    f"data:f32::blocked:ab::f0,attr-telepathy:on,{RELU},64x10",
    "knows no post-operation 'telepathy'": f"cpu,eltwise,jit:avx2,forward_training,"
    f"data:f32::blocked:ab::f0,attr-post-ops:telepathy:1,{RELU},64x10",
    "no name for the mask 1 of src0": "cpu,matmul,ref:any,undef,src:u8::blocked:ab::f0 "
    "wei:s8::blocked:ab::f0 dst:f32::blocked:ab::f0,attr-scales:src0:1:f32,,6x4:4x5",
    "output scales are oneDNN 2.x's": "cpu,matmul,ref:any,undef,src:u8::blocked:ab::f0 "
    "wei:s8::blocked:ab::f0 dst:f32::blocked:ab::f0,attr-oscale:2,,6x4:4x5",
    "this driver of benchdnn takes one layout": "cpu,pooling,ref:any,forward_inference,"
    "src:f32::blocked:acdb::f0 dst:f32::blocked:abcd::f0,,alg:pooling_max,"
    "mb1ic8_ih4oh2kh2sh2dh0ph0_iw4ow2kw2sw2dw0pw0",
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_benchdnn_has_no_words_for_is_refused_with_the_reason(why: str) -> None:
    with pytest.raises(NotExpressibleError, match=re.escape(why)):
        problem_line(read(REFUSED[why]), THREE)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("v1,graph,exec,cpu,100002,sdp,sdp,,in0_f32:0:strided:undef:2x3,fpm:strict,dnnl_backend,"
         "dnnl_backend", "ONEDNN_GRAPH_DUMP"),
        ("v1,ukernel,exec,cpu,brgemm,brgemm:avx512_core,undef,src:f32::blocked:ab::f0,,,8x8:8x8",
         "--brgemm"),
    ],
)  # fmt: skip
def test_graphs_and_micro_kernels_are_refused_with_the_reason(line: str, why: str) -> None:
    problem = meaning_of(head_of(f"{line},0.5")).problem
    assert problem is not None
    with pytest.raises(NotExpressibleError, match=re.escape(why)):
        problem_line(problem, THREE)
