"""`match_log`: a trace and oneDNN's log of the same steps."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from common.errors import InputError
from common.machine import fastest_precision
from profiling.capture.backends import OneDnnHook, TraceHook
from profiling.capture.hooks import Capture
from profiling.onednn_log.log import Calls, LogPosition, OneDnnLog, read_logs
from profiling.onednn_log.work import Problem
from profiling.trace.analysis import Analysis, analyze, match_log
from profiling.trace.operators import Category
from profiling.trace.trace import read_trace
from retinanet.engine.engines import PreparedTraining
from tests.profiling.trace.example_traces import STEP, operator, write

CONVOLUTION = Problem("primitive", "cpu", "convolution", "brgconv", "backward_data", (), "", "", "")
REORDER = Problem("primitive", "cpu", "reorder", "jit:uni", "undef", (), "", "", "")


@pytest.mark.slow
def test_log_and_trace_of_the_installed_torch(tmp_path: Path) -> None:
    trace_file, log_file = tmp_path / "trace.json", tmp_path / "onednn.log"
    dtype = torch.bfloat16 if fastest_precision() == "bf16" else torch.float32
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Flatten(), nn.Linear(64 * 62 * 62, 32)).to(dtype)
    image = torch.randn(2, 3, 64, 64, dtype=dtype)
    prepared = PreparedTraining(model, torch.optim.SGD(model.parameters(), lr=0.1), model)  # type: ignore[arg-type]
    steps = range(20, 22)
    capture = Capture(
        [TraceHook(trace_file, steps), OneDnnHook(log_file, steps, facts=lambda _: {"rank": 0})]
    )
    for number in range(19, 22):
        with capture.step(number, prepared):
            with capture.phase("forward"):
                loss = model(image).sum()
            with capture.phase("backward"):
                loss.backward()
    capture.close()
    analysis = analyze(read_trace(trace_file))
    beside = match_log(analysis, read_logs([log_file]))
    assert beside.has_steps and beside.other_ms == 0
    assert sum(beside.kinds_ms.values()) == pytest.approx(beside.total_ms)
    assert beside.kinds_ms["convolution backward_weights"] > 0
    for phase in ("forward", "backward"):
        callers = analysis.category_ns(Category.ONEDNN, phase)
        products = analysis.category_ns(Category.PRODUCTS, phase)
        # oneDNN's own time is inside the operators that call it, on average.
        assert 0 < beside.log_ms[phase] < (callers + products) / 1e6 / analysis.count
        assert callers > 0 and products > 0
    one_step = analyze(read_trace(trace_file), chosen=(21,))
    single = match_log(one_step, read_logs([log_file]))
    assert single.log_ms["forward"] < 2 * beside.log_ms["forward"]
    assert single.log_ms["forward"] != beside.log_ms["forward"]


def analyze_events(folder: Path, *, marked: bool = True) -> Analysis:
    events = STEP if marked else (operator("aten::mul", 0, 10),)
    return analyze(read_trace(write(folder / "trace.json", *events)))


def make_log(
    *executions: tuple[LogPosition, Problem, float], files: Sequence[str] = ("a.log",)
) -> OneDnnLog:
    log = OneDnnLog(files=list(files))
    for where, problem, ms in executions:
        log.executions.setdefault(where, {})[problem] = Calls(1, ms)
    return log


def test_steps_match_by_number_and_phases_by_name(tmp_path: Path) -> None:
    log = make_log(
        (LogPosition(0, 20, "backward"), CONVOLUTION, 0.25),
        (LogPosition(0, 20, "backward"), REORDER, 0.05),
        (LogPosition(0, 20, "evaluation"), REORDER, 0.03),
        (LogPosition(0, 20, None), REORDER, 0.01),
        (LogPosition(0, 21, "backward"), CONVOLUTION, 100.0),
    )
    beside = match_log(analyze_events(tmp_path), log)
    assert beside.log_ms == pytest.approx(
        {"forward": 0, "loss": 0, "backward": 0.3, "between phases": 0}
    )
    assert beside.other_ms == pytest.approx(0.04)
    assert beside.kinds_ms == pytest.approx({"convolution backward_data": 0.25, "reorder": 0.09})


def test_log_and_trace_without_marks(tmp_path: Path) -> None:
    beside = match_log(
        analyze_events(tmp_path, marked=False), make_log((LogPosition(), REORDER, 0.004))
    )
    assert beside.total_ms == pytest.approx(0.004)
    assert not beside.has_steps


@pytest.mark.parametrize(
    ("places", "marked", "expected"),
    [
        ([LogPosition(0, 21, "loss")], True, "a.log has steps 21, not 20"),
        ([LogPosition()], True, "a.log has no marks of steps"),
        ([LogPosition(0, 20, "loss")], False, "the trace has none"),
        ([LogPosition(0, 20), LogPosition(1, 20)], True, "has several ranks"),
    ],
)
def test_log_that_does_not_match(
    tmp_path: Path, places: list[LogPosition], marked: bool, expected: str
) -> None:
    log = make_log(*((place, REORDER, 1.0) for place in places))
    with pytest.raises(InputError, match="--onednn-log: ") as raised:
        match_log(analyze_events(tmp_path, marked=marked), log)
    assert expected in str(raised.value)
