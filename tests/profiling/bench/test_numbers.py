import pytest
import torch
from torch import nn

from profiling.bench.contestant import Contestant, choose
from profiling.bench.convolution_flop import convolution_flop
from profiling.bench.finding import Finding
from profiling.bench.onednn_log import is_computing, seconds_by_primitive
from profiling.bench.recipes.torchvision_model import step_gflop
from profiling.bench.run import Run, times_as_fast
from profiling.bench.workload import STANDARD
from retinanet.errors import InputError

CONTESTANTS = [
    Contestant(name="one", about="", recipe=""),
    Contestant(name="other", about="", recipe="", by_default=False),
]

LOG = """\
onednn_verbose,v1,info,oneDNN v3.7.1 (commit 8d263e693366ef8db40acc569cc7d8edf644556d)
onednn_verbose,v1,primitive,info,template:operation,engine,primitive,implementation,prop_kind,memory_descriptors,attributes,auxiliary,problem_desc,exec_time
onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:bf16::blocked:acdb::f0 dst:bf16::blocked:BcdA16b2a::f0,attr-scratchpad:user,,32x16x3x3,0.00488281
onednn_verbose,v1,primitive,create_nested:cache_miss,cpu,convolution,brg_conv_fwd:avx512_core_bf16,forward_training,src:bf16::blocked:acdb::f0 wei:bf16:a:blocked:AcdB16a2b::f0 bia:undef::undef::: dst:bf16::blocked:acdb::f0,attr-scratchpad:user,alg:convolution_direct,mb2_ic32oc16_ih40oh40kh3sh1dh0ph1_iw40ow40kw3sw1dw0pw1,0.27002
something else, that a program printed
onednn_verbose,v1,primitive,exec,cpu,convolution,brg_conv_bwd:avx512_core_bf16+brg_conv_fwd:avx512_core_bf16,backward_data,src:bf16::blocked:acdb::f0 wei:bf16:a:blocked:BcdA16b2a::f0 bia:undef::undef::: dst:bf16::blocked:acdb::f0,attr-scratchpad:user,alg:convolution_direct,mb2_ic16oc32_ih40oh40kh3sh1dh0ph1_iw40ow40kw3sw1dw0pw1,0.164062
onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_bf16,undef,src:bf16::blocked:ab::f0 wei:bf16::blocked:ab::f0 dst:bf16::blocked:ab::f0,attr-scratchpad:user,,512x512:512x512,1.29907
onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_bf16,undef,src:bf16::blocked:ab::f0 wei:bf16::blocked:ba::f0 dst:bf16::blocked:ab::f0,attr-scratchpad:user,,512x512:512x512,1.19702
"""  # noqa: E501


def run_of(seconds: float) -> Run:
    return Run(seconds=seconds, page_faults=0, rss_mb=1.0, peak_rss_mb=1.0, details={})


def test_executed_primitives_are_summed_by_kind() -> None:
    seconds = seconds_by_primitive(LOG.splitlines())
    assert seconds == pytest.approx(
        {
            "reorder": 4.88281e-6,
            "convolution backward_data": 1.64062e-4,
            "matmul": 2.49609e-3,
        }
    )
    assert [name for name in seconds if is_computing(name)] == [
        "convolution backward_data",
        "matmul",
    ]


def test_arithmetic_of_convolutions_by_hand() -> None:
    first = nn.Conv2d(3, 8, kernel_size=3, padding=1).requires_grad_(requires_grad=False)
    second = nn.Conv2d(8, 4, kernel_size=1, stride=2)
    third = nn.Conv2d(4, 6, kernel_size=3, padding=1, groups=2)
    network = nn.Sequential(first, nn.ReLU(), second, third)
    forward_first = 2 * (2 * 8 * 10 * 12) * 3 * 9  # the frozen prefix: forward alone
    forward_second = 2 * (2 * 4 * 5 * 6) * 8  # no gradient to a frozen layer's output
    forward_third = 2 * (2 * 6 * 5 * 6) * 2 * 9
    images = torch.zeros(2, 3, 10, 12)
    flop = convolution_flop(network, lambda: network(images))
    assert flop == forward_first + 2 * forward_second + 3 * forward_third
    assert not any(module._forward_hooks for module in network.modules())


def test_arithmetic_of_the_standard_step() -> None:
    assert step_gflop(STANDARD) == pytest.approx(2322.0, abs=0.1)


def test_ratios_are_taken_round_by_round() -> None:
    runs = [run_of(1.0), run_of(2.0), run_of(10.0)]
    others = [run_of(3.0), run_of(4.0), run_of(15.0)]
    assert times_as_fast(runs, others) == (2.0, 1.5, 3.0)


def test_contestants_are_chosen_by_name() -> None:
    one, other = CONTESTANTS
    assert choose(CONTESTANTS, None) == [one]
    assert choose(CONTESTANTS, "all") == [one, other]
    assert choose(CONTESTANTS, "other,one") == [other, one]


@pytest.mark.parametrize("names", ["third", "one,one", "", "one,"])
def test_a_wrong_choice_is_told_with_the_names(names: str) -> None:
    with pytest.raises(InputError, match=r"^--contestants: "):
        choose(CONTESTANTS, names)


def test_a_target_is_met_or_not() -> None:
    assert Finding(what="", value=4.5, shown="", at_least=4.5).is_met
    assert not Finding(what="", value=4.4, shown="", at_least=4.5).is_met
    assert not Finding(what="", value=0.41, shown="", at_most=0.4).is_met
    assert Finding(what="", value=9.0, shown="").is_met
