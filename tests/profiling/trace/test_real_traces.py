"""Traces of the installed torch, compared with torch's own sums."""

from pathlib import Path

import pytest
import torch
from torch.profiler import profile

from profiling.trace.analysis import Analysis, analyze
from profiling.trace.operators import Category
from profiling.trace.trace import read_trace
from retinanet.engine.optimizers import Lamb
from retinanet.engine.winograd import choose_winograd, winograd_convolve
from retinanet.loss.focal_kernel import focal_loss_operator
from tests.profiling.trace.traced_model import CPU, Traced, traced, traced_on_schedule

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    return traced(tmp_path_factory.mktemp("marked") / "trace.json.gz", marks=True)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    return traced(tmp_path_factory.mktemp("plain") / "trace.json", modules=True)


def find_modules(analysis: Analysis, name: str, phase: str) -> set[str]:
    return {row.module for row in analysis.operators if (row.name, row.phase) == (name, phase)}


@pytest.mark.parametrize("which", ["marked", "plain"])
def test_self_times_and_calls_equal_torchs_sums(which: str, request: pytest.FixtureRequest) -> None:
    run: Traced = request.getfixturevalue(which)
    analysis = analyze(read_trace(run.file))
    self_us: dict[str, float] = {}
    calls: dict[str, int] = {}
    for row in analysis.operators:
        self_us[row.name] = self_us.get(row.name, 0) + row.own_ns / 1000
        calls[row.name] = calls.get(row.name, 0) + row.calls
    assert calls == run.calls
    assert self_us == pytest.approx(run.self_us, rel=0.01, abs=5)
    assert min(analysis.gaps_ns.values()) >= 0
    for phase in analysis.steps.phases:
        inside = sum(analysis.category_ns(category, phase) for category in Category)
        assert inside + analysis.gaps_ns[phase] == analysis.phase_ns(phase)


def test_marks_give_steps_phases_and_modules(marked: Traced) -> None:
    analysis = analyze(read_trace(marked.file))
    assert analysis.steps.numbers == [20, 21]
    phases = ["forward", "loss", "backward", "optimizer", "between phases"]
    assert analysis.steps.phases == phases
    assert find_modules(analysis, "aten::mkldnn_convolution", "forward") == {"0", "3"}
    assert find_modules(analysis, "aten::convolution_backward", "backward") == {"0", "3"}
    assert find_modules(analysis, "aten::native_batch_norm_backward", "backward") == {"1"}
    assert find_modules(analysis, "aten::threshold_backward", "backward") == {"2"}
    assert find_modules(analysis, "aten::mm", "backward") == {"5"}
    assert find_modules(analysis, "aten::_log_softmax", "loss") == {""}
    # Gradients are stored right after the node that made them.
    stored = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    assert find_modules(analysis, stored, "backward") == {"0", "1", "3", "5"}
    assert analysis.category_ns(Category.ONEDNN, "backward") > 0
    assert analysis.category_ns(Category.ONEDNN, "loss") == 0


def test_phases_and_modules_of_torch_without_marks(plain: Traced) -> None:
    analysis = analyze(read_trace(plain.file))
    assert not analysis.steps.are_marked
    assert set(analysis.steps.phases) == {"forward", "backward", "optimizer"}
    assert find_modules(analysis, "aten::convolution_backward", "backward") == {
        "Sequential_0.Conv2d_0", "Sequential_0.Conv2d_1"
    }  # fmt: skip
    assert find_modules(analysis, "aten::mm", "backward") == {"Sequential_0.Linear_0"}
    assert {row.phase for row in analysis.operators if row.name == "aten::sqrt"} == {"optimizer"}
    assert {row.phase for row in analysis.operators if "Backward" in row.name} == {"backward"}
    assert analysis.optimizer_steps == 2


def test_steps_of_torchs_schedule(tmp_path: Path) -> None:
    traced_on_schedule(tmp_path / "trace.json")
    analysis = analyze(read_trace(tmp_path / "trace.json"))
    assert analysis.steps.numbers == [2, 3]
    assert not analysis.modules_are_known


@pytest.mark.filterwarnings("ignore:TF32 acceleration:UserWarning")
def test_convolutions_without_onednn_are_not_in_its_category(tmp_path: Path) -> None:
    with torch.backends.mkldnn.flags(enabled=False):
        run = traced(tmp_path / "trace.json", steps=1)
    analysis = analyze(read_trace(run.file))
    assert "aten::convolution_backward" in run.calls
    assert analysis.category_ns(Category.ONEDNN) == 0


def test_our_kernels_are_recognized_in_traces(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.randn(16, 16, 3, 3))
    optimizer = Lamb([weight], lr=1e-3)
    image = torch.randn(1, 16, 32, 32, dtype=torch.bfloat16, requires_grad=True)
    logits = torch.randn(1, 4, 3, requires_grad=True)
    with profile(activities=CPU) as profiler:
        loss, _ = focal_loss_operator(
            logits, torch.tensor([[0, -1, 2, -2]]), torch.ones(1), alpha=0.25, gamma=2.0,
            reduce=True, with_gradient=True,
        )  # fmt: skip
        loss.backward()
        if choose_winograd("auto"):
            (output,) = winograd_convolve([image], weight, torch.zeros(16), relu=True)
            output.float().sum().backward()
        else:
            weight.grad = torch.ones_like(weight)
        optimizer.step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    analysis = analyze(read_trace(tmp_path / "trace.json"))
    ours = {(row.name, row.phase) for row in analysis.operators if row.category == Category.OURS}
    assert ("Lamb.step", "optimizer") in ours
    assert ("retinanet::focal_loss", "forward") in ours
    kernel = ("GeneratedBackwardFor_retinanet_focal_loss_default", "forward")
    assert kernel in ours  # The C++ kernel runs in it
    if choose_winograd("auto"):
        assert ("_WinogradConvolution", "forward") in ours
        assert ("_WinogradConvolutionBackward", "backward") in ours
