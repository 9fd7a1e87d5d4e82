"""The table of problems, its sums, and the paper's parameters."""

import csv
import io
from operator import attrgetter

import pytest

from common.files import as_csv
from profiling import stats
from profiling.onednn_log.log import Calls, read_logs
from profiling.onednn_log.work import MemoryDescriptor, Problem
from tests.profiling.onednn_log.logs import plain_sum, shared_logs


def convolution(direction: str, *, auxiliary: str = "alg:convolution_direct") -> Problem:
    memories = tuple(
        MemoryDescriptor(role, "bf16", tag=tag)
        for role, tag in (("src", "acdb"), ("wei", "Acdb16a"), ("bia", "a"), ("dst", "acdb"))
    )
    shape = "g4mb2_ic8oc16_ih5oh3kh3sh2dh0ph1_iw7ow4kw3sw2dw0pw1"
    return Problem(
        "primitive", "cpu", "convolution", "jit:avx2", direction, memories,
        "attr-scratchpad:user attr-post-ops:sum+eltwise_relu", auxiliary, shape,
    )  # fmt: skip


def test_a_row_has_the_numbers_of_one_call_and_of_all() -> None:
    one = convolution("forward_training")
    other = convolution("backward_data")
    row, last = stats.rows_of({other: Calls(1, 1.0), one: Calls(4, 3.0)})
    assert (row.direction, last.direction) == ("forward_training", "backward_data")
    assert (row.calls, row.total_ms, row.mean_ms, row.share) == (4, 3.0, 0.75, 0.75)
    flop = 2 * 2 * 8 / 4 * 16 * 3 * 4 * 9
    size = 2 * (2 * 8 * 5 * 7 + 16 * 2 * 9 + 16 + 2 * 16 * 3 * 4)
    assert row.gflop == pytest.approx(flop / 1e9)
    assert row.gflop_per_s == pytest.approx(flop / 1e9 / 0.75e-3)
    assert row.flop_per_byte == pytest.approx(flop / size)


def test_problems_that_no_column_tells_apart_are_one_row() -> None:
    one = convolution("forward_training")
    padded = Problem(
        one.component, one.engine, one.kind, one.implementation, one.direction,
        tuple(MemoryDescriptor(m.role, m.type, "p", tag=m.tag) for m in one.memories),
        one.attributes, one.auxiliary, one.shape,
    )  # fmt: skip
    (row,) = stats.rows_of({one: Calls(1, 1.0), padded: Calls(2, 5.0)})
    assert (row.calls, row.total_ms) == (3, 6.0)


def test_tables_of_real_logs_add_up_to_their_lines() -> None:
    for file in shared_logs():
        table = stats.rows_of(read_logs([file]).calls())
        text = as_csv(stats.COLUMNS, map(attrgetter(*stats.COLUMNS), table))
        lines = list(csv.DictReader(io.StringIO(text)))
        assert ",".join(lines[0]) == (
            "kind,implementation,direction,types,layouts,attributes,algorithm,shape,"
            "calls,total_ms,mean_ms,share,gflop,gbyte,gflop_per_s,flop_per_byte"
        )
        assert sum(float(line["total_ms"]) for line in lines) == pytest.approx(plain_sum(file))
        assert sum(float(line["share"]) for line in lines) == pytest.approx(1)
        parts = stats.parts_of(table)
        assert sum(part.total_ms for part in parts) == pytest.approx(plain_sum(file))
        assert sum(part.calls for part in parts) == sum(int(line["calls"]) for line in lines)


def test_parameters_are_those_of_the_papers_second_table() -> None:
    (found,) = stats.parameters_of({convolution("backward_weights"): Calls(3, 1.0)})
    assert dict(zip(stats.PARAMETER_COLUMNS, found, strict=True)) == {
        "driver": "conv",
        "configuration": "bf16bf16bf16",
        "directory": "BWD_WB",
        "post_ops": "sum+eltwise_relu",
        "algorithm": "DIRECT",
        "problem_batchsize": "mb2",
        "problem_input": "ih5iw7",
        "problem_output": "oh3ow4",
        "problem_stride": "sh2sw2",
        "problem_kernel": "kh3kw3",
        "problem_padding": "ph1pw1",
        "problem_channel": "g4ic8oc16",
        "calls": 3,
    }


def test_post_operations_of_version_1_are_spelled_as_later() -> None:
    assert stats.post_ops("post_ops:'sum;eltwise_relu;';") == "sum+eltwise_relu"
    assert stats.post_ops("attr-scratchpad:user") == ""
