"""Requirements of tests on the processor."""

import pytest

from common.machine import fastest_precision

FAST_PRECISION = fastest_precision()
"""The precision in which a test trains whose subject is another."""

needs_bf16 = pytest.mark.skipif(
    FAST_PRECISION != "bf16", reason="the processor has no instructions for BF16"
)
