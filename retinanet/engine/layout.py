"""Where a tensor's values lie in memory."""

import torch
from torch import Tensor

CACHE_LINE = 64


def laid_out_as(parameter: Tensor, tensor: Tensor) -> Tensor:
    """The tensor in the parameter's memory layout; itself if it is so already.

    A fused optimizer walks through a parameter, its gradient and its state place by place in
    memory: one in another layout would be taken for other weights', without an error.

    Args:
        parameter: Without gaps in memory, in any order of its dimensions.
        tensor: Of the parameter's shape, or a single number, which has no layout.
    """
    if tensor.dim() == 0 or have_same_layout(parameter, tensor):
        return tensor
    return torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)


def have_same_layout(one: Tensor, other: Tensor) -> bool:
    """Whether equal places of two tensors of one shape are equally far into their memory."""
    if one.stride() == other.stride():
        return True
    strides = zip(one.shape, one.stride(), other.stride(), strict=True)
    # Nobody walks along a dimension of size 1, and torch gives it any stride.
    return all(size == 1 or first == second for size, first, second in strides)


def is_one_block(tensor: Tensor) -> bool:
    """Whether the values fill a piece of memory without gaps, as all weights of a model do."""
    return tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)


def channels_last(tensor: Tensor) -> Tensor:
    """The tensor as [N, H, W, C] in memory, copied if it is laid out otherwise.

    Also where torch's own test cannot tell, as with one channel or maps of one pixel.
    """
    return tensor.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def aligned_bytes(size: int) -> Tensor:
    """Return `size` bytes of memory that begin with a cache line."""
    block = torch.empty(size + CACHE_LINE, dtype=torch.uint8)
    return block[-block.data_ptr() % CACHE_LINE :][:size]
