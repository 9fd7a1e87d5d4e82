"""What peaks allow, by hand."""

import pytest

from profiling.onednn_log.work import MemoryDescriptor, Problem
from profiling.peaks import Peaks, roofline_ms

PEAKS = Peaks({"bf16": 100.0, "s8": 400.0}, 10.0, threads=1, cpu="a CPU", versions={})


def problem(kind: str, shape: str, type_: str) -> Problem:
    roles = ("src", "wei", "dst") if kind == "matmul" else ("src", "dst")
    memories = tuple(MemoryDescriptor(role, type_) for role in roles)
    return Problem("primitive", "cpu", kind, "any", "undef", memories, "", "", shape)


def test_arithmetic_bounds_what_computes_much() -> None:
    one = problem("matmul", "1000x1000:1000x1000", "bf16")
    assert roofline_ms(one, PEAKS) == pytest.approx(2e9 / 100e9 * 1000)


def test_memory_bounds_what_computes_little() -> None:
    one = problem("matmul", "1x1000:1000x1000", "bf16")
    size = 2 * (1000 + 1000 * 1000 + 1000)
    assert roofline_ms(one, PEAKS) == pytest.approx(size / 10e9 * 1000)


def test_memory_bounds_what_only_moves_data() -> None:
    assert roofline_ms(problem("reorder", "1000x1000", "f32"), PEAKS) == pytest.approx(0.8)


def test_a_type_without_a_peak_has_no_roofline() -> None:
    assert roofline_ms(problem("matmul", "10x10:10x10", "f32"), PEAKS) is None


def test_unsigned_integers_take_the_peak_of_signed_ones() -> None:
    one = problem("matmul", "1000x1000:1000x1000", "u8")
    assert roofline_ms(one, PEAKS) == pytest.approx(2e9 / 400e9 * 1000)
