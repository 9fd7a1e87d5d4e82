"""Arithmetic and bytes of problems, computed by hand, and compared with the step benchmark."""

import pytest
import torch
from torch import nn

from profiling.bench.recipes.step import convolution_flop
from profiling.onednn_log.work import Problem, gbyte, gflop
from tests.profiling.replay.problems import problem

BF16 = ("src:bf16", "wei:bf16", "bia:undef", "dst:bf16")


@pytest.mark.parametrize(
    ("case", "flop", "size"),
    [
        # 2 images, 8→16 channels in 4 groups, 5x7 → 3x5 outputs, 3x3 window
        (
            problem("convolution", "g4mb2_ic8oc16_ih5oh3kh3sh1dh0ph0_iw7ow5kw3sw1dw0pw0", *BF16),
            2 * 2 * (8 / 4) * 16 * 3 * 5 * 9,
            2 * (2 * 8 * 5 * 7 + 16 * 2 * 9 + 2 * 16 * 3 * 5),
        ),
        # each of 3x5 inputs meets the window
        (
            problem("deconvolution", "mb2_ic8oc16_ih3oh5kh3sh1dh0ph0_iw5ow7kw3sw1dw0pw0", *BF16),
            2 * 2 * 8 * 16 * 3 * 5 * 9,
            2 * (2 * 8 * 3 * 5 + 16 * 8 * 9 + 2 * 16 * 5 * 7),
        ),
        (problem("matmul", "3x5:5x7", *BF16), 2 * 3 * 5 * 7, 2 * (15 + 35 + 21)),
        (problem("matmul", "4x3x5:1x5x7", *BF16), 2 * 4 * 3 * 5 * 7, 2 * (60 + 35 + 84)),
        (problem("matmul", "b4m3n7k5", *BF16), 2 * 4 * 3 * 5 * 7, 2 * (60 + 140 + 84)),
        (
            problem("inner_product", "mb3ic5ih2iw2oc7", "src:f32", "wei:f32", "bia:f32", "dst:f32"),
            2 * 3 * 20 * 7,
            4 * (60 + 140 + 7 + 21),
        ),
        (problem("brgemm", "8x64:64x32", "src:f32", auxiliary="bs:4 beta:0"),
         2 * 4 * 8 * 64 * 32, 4 * 8 * 64),
        (problem("sdpa", "1x2x3x5:1x2x5x7:1x2x7x11", *BF16), 2 * 2 * 3 * 5 * 7 + 2 * 2 * 3 * 7 * 11,
         None),
        (
            problem("rnn", "l1t3mb2sic5slc7dhc5dic5", auxiliary="alg:vanilla_lstm direction:left"),
            3 * 2 * 2 * 4 * 5 * (7 + 5),
            None,
        ),
        (problem("reorder", "2x3x4", "src:f32", "dst:bf16"), None, 24 * 6),
        (problem("eltwise", "2x3x4", "data:f32"), None, 24 * 8),
        (problem("eltwise", "2x3x4", "data:f32", "diff:f32", direction="backward_data"), None,
         24 * 12),
        (problem("batch_normalization", "mb2ic3ih4iw5", "data:bf16"), None, 120 * 4),
        (problem("pooling", "mb2ic3_ih4oh2kh2sh2dh0ph0_iw4ow2kw2sw2dw0pw0", "src:f32", "dst:f32",
                 "ws:u8"), None, 4 * 96 + 5 * 24),
        (problem("binary", "2x3x4:1x3x1", "src:f32", "src:f32", "dst:f32"), None, 4 * 51),
        (problem("concat", "2x3:2x5", "src:f32", "src:f32", "dst:f32"), None, 4 * (6 + 10 + 16)),
        (problem("reduction", "2x3:2x1", "src:f32", "dst:f32"), None, 4 * (6 + 2)),
        (problem("reorder", "x128", "src:f32", "dst:f32"), None, 8 * 128),
        (problem("group_normalization", "g2mb3ic4ih5iw5", "src:f32", "dst:f32"), None, 8 * 300),
        (problem("reorder", "*x3", "src:f32", "dst:f32"), None, None),
        (problem("convolution", "something else", *BF16), None, None),
    ],
)  # fmt: skip
def test_arithmetic_and_bytes(case: Problem, flop: float | None, size: float | None) -> None:
    assert gflop(case) == (None if flop is None else pytest.approx(flop / 1e9))
    assert gbyte(case) == (None if size is None else pytest.approx(size / 1e9))


def test_convolution_arithmetic_equals_step_benchmark() -> None:
    network = nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=4, device="meta")
    images = torch.empty(2, 8, 9, 11, device="meta")
    counted = convolution_flop(network, lambda: network(images)) / 2  # forward and weights
    case = problem("convolution", "g4mb2_ic8oc16_ih9oh5kh3sh2dh0ph1_iw11ow6kw3sw2dw0pw1", *BF16)
    assert gflop(case) == pytest.approx(counted / 1e9)
