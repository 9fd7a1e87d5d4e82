"""What the tests of kernels share."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

BF16_ROUNDING = 2.0**-8


@contextmanager
def nan_in_new_memory() -> Iterator[None]:
    """Let `torch.empty` return memory whose bits are all ones: NaN in BF16 and in float32."""
    empty = torch.empty

    def all_ones(*arguments: Any, **options: Any) -> Tensor:
        made = empty(*arguments, **options)
        made.as_strided((made.numel(),), (1,)).view(torch.uint8).fill_(0xFF)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", all_ones)
        yield
