"""What an operator's own time is spent in, by its name."""

import re
from enum import StrEnum

CONVOLUTION_BACKWARD = "aten::convolution_backward"
"""Calls oneDNN without an operator of its own in between, in torch 2."""

ONEDNN = re.compile(
    r"""
    (aten::|mkldnn::|mkldnn_prepacked::)_*mkldnn_ |  # convolution, linear, pooling, reorders, rnn
    aten::to_mkldnn | mkldnn::_ |                    # and torch.compile's: _convolution_pointwise …
    onednn::q |                                      # quantized, torch.compile's
    aten::convolution_backward(_overrideable)?$ |
    torch_ipex::(convolution_(forward_impl|backward)|conv_transpose|ipex_linear|linear_backward)|
    torch_ipex::lstm | ipex::qlinear | ipex_prepack::(convolution|linear|deconv) |
    LlgaFusionGroup | llga::                         # oneDNN graph
    """,
    re.VERBOSE,
)
PRODUCTS = re.compile(
    r"""aten::(addmm_?|_addmm_activation|mm|bmm|baddbmm_?|addbmm_?|mv|addmv_?|dot|vdot|linear|
    matmul|_scaled_mm|_int_mm)$ | mkl::_ | torch_ipex::(ipex_MKLSGEMM|mkl_sgemm|bmm_|matmul)""",
    re.VERBOSE,
)
OURS = re.compile(
    r"""_(Winograd|Tile)?Convolution(Backward)?$ |        # of retinanet/engine: convolutions,
    _BatchNorm(Backward)?$ |                              # norms that train,
    _AddRelu$ | _BranchesBackward$ |                      # sums and masks
    (OnePassAdam|Lamb)\.step$ |                           # retinanet/engine/adam.py, lamb.py
    retinanet:: | GeneratedBackwardFor_retinanet_         # retinanet/loss/focal_kernel.py
    """,
    re.VERBOSE,
)
COMMUNICATION = re.compile(r"c10d::|gloo:|mpi:|ccl:|oneccl|nccl:|ucc:|record_param_comms")
ELSEWHERE = re.compile(
    r"aten::(_?slow_conv|slow_conv_dilated|thnn_conv|_conv_depthwise|_nnpack|xnnpack|cudnn_conv)"
)
"""Convolutions that oneDNN has no part in: float64, or where it is switched off."""


class Category(StrEnum):
    """Where time goes. In the order in which tables and pictures have them."""

    ONEDNN = "oneDNN"
    OURS = "our kernels"
    PRODUCTS = "matrix products"
    COMMUNICATION = "communication"
    OTHER = "other operators"


CATEGORIES = tuple(Category)


def category_of(name: str) -> Category:
    """The category of an operator's own time, by its name alone."""
    for pattern, category in (
        (ONEDNN, Category.ONEDNN),
        (OURS, Category.OURS),
        (PRODUCTS, Category.PRODUCTS),
        (COMMUNICATION, Category.COMMUNICATION),
    ):
        if pattern.match(name):
            return category
    return Category.OTHER
