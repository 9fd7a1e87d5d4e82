"""A trace that holds the bytes of a step: what is printed, written and advised of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import InputError
from profiling.__main__ import main
from profiling.report.advice import memory_traffic
from profiling.trace.trace import BytesMoved, bytes_moved_of
from tests.profiling.trace.traces_by_hand import STEP
from tests.support.commands import RunHere

ROWS = [
    ["forward", "aten::convolution", 3, 2_000_000_000, 1_000_000_000],
    ["forward", "aten::relu_", 2, 600_000_000, 600_000_000],
    ["backward", "aten::threshold_backward", 2, 1_200_000_000, 600_000_000],
    ["optimizer", "adam_step", 1, 4_000_000_000, 3_000_000_000],
    ["", "aten::mul", 1, 8, 8],
]
MOVED = {"step": 19, "operators": ROWS}


def trace_with(folder: Path, moved: Any) -> Path:
    file = folder / "trace.json"
    file.write_text(json.dumps({"bytes_moved": moved, "traceEvents": STEP}))
    return file


def moved() -> BytesMoved:
    found = bytes_moved_of(MOVED, Path("trace.json"))
    assert found is not None
    return found


def test_bytes_are_printed_by_phase_and_operator(tmp_path: Path, run_here: RunHere) -> None:
    out = tmp_path / "trace-out.json"
    done = run_here(main, "trace", str(trace_with(tmp_path, MOVED)), "--json", str(out))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "│" in line]
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]
    assert ["backward", "1.200", "0.600", "1.800"] in cells
    assert ["all", "7.800", "5.200", "13.000"] in cells
    assert ["adam_step", "optimizer", "1", "4.000", "3.000", "53.8%"] in cells
    content = json.loads(out.read_text())["bytes_moved"]
    assert content["step"] == 19 and content["bytes"] == 13_000_000_016
    assert content["phases"]["forward"] == 4_200_000_000
    assert content["phases"]["between phases"] == 16


@pytest.mark.parametrize(
    "damaged", [7, {"step": 1}, {"step": 1, "operators": [["forward", "x"]]}, {"operators": []}]
)
def test_damaged_bytes_are_one_line(tmp_path: Path, run_here: RunHere, damaged: Any) -> None:
    with pytest.raises(InputError, match="bytes_moved is not what"):
        bytes_moved_of(damaged, Path("trace.json"))
    done = run_here(main, "trace", str(trace_with(tmp_path, damaged)))
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def test_advice_gives_the_time_of_the_bytes_at_the_measured_bandwidth() -> None:
    [advice] = memory_traffic(moved(), bandwidth_gb_per_s=20.0, step_ms=1000.0)
    # 13 GB at 20 GB/s; ReLU and its backward pass move 3 of them.
    assert "13" in advice.evidence and "650 ms, 65% of the step" in advice.evidence
    assert advice.saves_ms == pytest.approx(150.0, abs=0.01)
    assert "aten::threshold_backward (backward)" in advice.evidence
    assert not list(memory_traffic(moved(), bandwidth_gb_per_s=20.0, step_ms=5000.0))
    assert not list(memory_traffic(moved(), bandwidth_gb_per_s=None, step_ms=1000.0))
    assert not list(memory_traffic(None, bandwidth_gb_per_s=20.0, step_ms=1000.0))
