"""Sums of traces, compared with sums by hand."""

from pathlib import Path

import pytest

from common.errors import InputError
from profiling.trace.analysis import Analysis, analyze
from profiling.trace.operators import Category, Piece, find_category
from profiling.trace.trace import read_trace
from tests.profiling.trace.example_traces import (
    BACKWARD,
    OTHER,
    STEP,
    Event,
    annotation,
    module,
    operator,
    write,
)

CONV = "ConvolutionBackward0"
EVALUATE = "autograd::engine::evaluate_function: "


def analyze_events(folder: Path, *events: Event, chosen: tuple[int, ...] | None = None) -> Analysis:
    analysis = analyze(read_trace(write(folder / "trace.json", *events)), chosen=chosen)
    assert analysis.wall_ns == analysis.operator_ns + sum(analysis.gaps_ns.values())
    assert sum(analysis.pieces_ns.values()) == analysis.operator_ns
    return analysis


def self_times_us(analysis: Analysis) -> dict[tuple[str, str], float]:
    """Self time by operator and phase. [µs]"""
    self_us: dict[tuple[str, str], float] = {}
    for row in analysis.operators:
        key = row.name.removeprefix(EVALUATE), row.phase
        self_us[key] = self_us.get(key, 0) + row.own_ns / 1000
    return self_us


def modules(analysis: Analysis) -> dict[str, str]:
    return {row.name.removeprefix(EVALUATE): row.module for row in analysis.operators}


def test_sums_of_a_step(tmp_path: Path) -> None:
    analysis = analyze_events(tmp_path, *STEP)
    assert analysis.steps.numbers == [20]
    assert analysis.steps.phases == ["forward", "loss", "backward", "between phases"]
    assert analysis.wall_ns == 1_000_000
    phases_us = [analysis.phase_ns(phase) // 1000 for phase in analysis.steps.phases]
    assert phases_us == [400, 100, 400, 100]
    assert analysis.gaps_ns == {
        "forward": 140_000, "loss": 30_000, "backward": 110_000, "between phases": 100_000
    }  # fmt: skip
    assert self_times_us(analysis) == {
        ("aten::conv2d", "forward"): 20,
        ("aten::mkldnn_convolution", "forward"): 230,
        ("aten::empty", "forward"): 10,
        ("aten::mul", "loss"): 40,
        ("aten::sum", "loss"): 30,
        (CONV, "backward"): 40,  # the node, and autograd's wrapper around it
        ("aten::convolution_backward", "backward"): 240,
        ("torch::autograd::AccumulateGrad", "backward"): 10,
    }
    assert analysis.category_ns(Category.ONEDNN) == 470_000
    assert analysis.category_ns(Category.ONEDNN, "backward") == 240_000
    assert sum(row.calls for row in analysis.operators) == analysis.spans == 9
    by_name = modules(analysis)
    assert by_name["aten::mkldnn_convolution"] == "body.conv"
    assert by_name["aten::convolution_backward"] == "body.conv"
    assert by_name["torch::autograd::AccumulateGrad"] == "body.conv"  # That of the node before
    assert by_name["aten::mul"] == ""


def test_last_operator_with_a_sequence_number_makes_the_node(tmp_path: Path) -> None:
    analysis = analyze_events(
        tmp_path,
        annotation("module: outer", 0, 100),
        operator("aten::add_", 0, 5, sequence=3),  # under no_grad: makes no node
        annotation("module: outer.norm", 10, 60),
        operator("aten::batch_norm", 20, 50, sequence=3),
        operator(f"{EVALUATE}NormBackward", 200, 300, sequence=3, forward=1),
        operator("aten::norm_backward", 210, 290),
    )
    assert modules(analysis)["aten::norm_backward"] == "outer.norm"


def test_module_of_forward_recomputed_in_backward(tmp_path: Path) -> None:
    analysis = analyze_events(
        tmp_path,
        annotation("module: whole", 0, 1000),  # the backward pass is started within a module
        annotation("module: block", 10, 60),
        operator("aten::relu", 20, 50, sequence=3),
        operator(f"{EVALUATE}ReluBackward", 200, 400, sequence=3, forward=1),
        annotation("module: block.inner", 210, 290),
        operator("aten::exp", 220, 280),
        operator("aten::threshold_backward", 300, 390),
    )
    by_name = modules(analysis)
    assert by_name["aten::exp"] == "block.inner"
    assert by_name["aten::threshold_backward"] == "block"


def test_modules_of_torch_without_marks(tmp_path: Path) -> None:
    analysis = analyze_events(
        tmp_path,
        module("Net_0", 0, 100),
        module("Linear_0", 10, 60),
        operator("aten::addmm", 20, 50, sequence=3),
        operator("aten::exp", 70, 90),
    )
    assert modules(analysis) == {"aten::addmm": "Net_0.Linear_0", "aten::exp": "Net_0"}


def test_overlapping_threads_count_once(tmp_path: Path) -> None:
    """By hand: main 100..200 and 500..600; autograd's thread 150..550, of which 200..500 count."""
    analysis = analyze_events(
        tmp_path,
        annotation("step 1", 0, 1000),
        operator("aten::mul", 100, 200, sequence=1),
        operator(f"{EVALUATE}MulBackward0", 150, 550, thread=BACKWARD, sequence=1, forward=1),
        operator("aten::neg", 300, 400, thread=BACKWARD),
        operator("aten::add", 500, 600),
        operator("aten::decode", 0, 900, thread=OTHER),
    )
    assert self_times_us(analysis) == {
        ("aten::mul", "forward"): 50,
        ("aten::mul", "backward"): 50,  # autograd's first node begins in its middle
        ("MulBackward0", "backward"): 200,
        ("aten::neg", "backward"): 100,
        ("aten::add", "backward"): 50,
        ("aten::add", "forward"): 50,
    }
    assert sum(analysis.gaps_ns.values()) == 500_000
    assert analysis.elsewhere_ns == 900_000


def test_phases_from_torchs_own_marks(tmp_path: Path) -> None:
    analysis = analyze_events(
        tmp_path,
        annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 100),
        operator("aten::stack", 10, 90),
        operator("aten::mul", 110, 200, sequence=1),
        operator(f"{EVALUATE}A", 300, 400, sequence=1, forward=1),
        operator(f"{EVALUATE}B", 450, 500, sequence=0, forward=1),
        annotation("Optimizer.step#SGD.step", 600, 700),
        operator("aten::add_", 610, 690),
        operator("aten::item", 700, 710),
    )
    assert not analysis.steps.are_marked and not analysis.steps.phases_are_marked
    phases = {phase: analysis.phase_ns(phase) for phase in analysis.steps.phases}
    # The trace begins with its first operator and ends with its last.
    assert phases == {
        "data": 90_000, "forward": 310_000, "backward": 200_000, "optimizer": 100_000
    }  # fmt: skip
    assert analysis.gaps_ns["backward"] == 50_000
    assert analysis.optimizer_steps == 1


def test_chosen_steps(tmp_path: Path) -> None:
    events = (
        annotation("step 3", 0, 100),
        operator("aten::mul", 10, 50),
        annotation("step 4", 200, 400),
        operator("aten::mul", 210, 310),
        operator("aten::mul", 500, 600),
    )
    both = analyze_events(tmp_path, *events)
    assert both.steps.durations == {3: 100_000, 4: 200_000}
    assert self_times_us(both) == {("aten::mul", "forward"): 140}
    second = analyze_events(tmp_path, *events, chosen=(4,))
    assert self_times_us(second) == {("aten::mul", "forward"): 100} and second.spans == 1
    with pytest.raises(InputError, match="has no step 5; it has 3, 4"):
        analyze_events(tmp_path, *events, chosen=(4, 5))
    with pytest.raises(InputError, match="no marks of steps"):
        analyze_events(tmp_path, operator("aten::mul", 0, 1), chosen=(4,))


def test_marks_of_train_py_precede_the_profilers_schedule(tmp_path: Path) -> None:
    schedule = (annotation("ProfilerStep#7", 0, 100), operator("aten::mul", 0, 10))
    assert analyze_events(tmp_path, *schedule).steps.numbers == [7]
    assert analyze_events(tmp_path, *schedule, annotation("step 2", 0, 50)).steps.numbers == [2]


def test_fragmentation(tmp_path: Path) -> None:
    """Working spans: a convolution of 300 µs with its allocation, two muls of 20, an add of 40.

    conv2d only calls: 4 µs before and 6 after. So does linear, whose 120 µs between two calls are
    not a short piece.
    """
    analysis = analyze_events(
        tmp_path,
        annotation("step 1", 0, 1000),
        operator("aten::conv2d", 0, 310),
        operator("aten::mkldnn_convolution", 4, 304),
        operator("aten::empty", 10, 20),
        operator("aten::mul", 400, 420),
        operator("aten::mul", 430, 450),
        operator("aten::linear", 500, 820),
        operator("aten::addmm", 500, 600),
        operator("aten::add", 720, 820),
        operator("aten::add", 900, 940),
    )
    operators = read_trace(tmp_path / "trace.json").operators
    assert [operators.span_name(span) for span in analysis.working] == [
        "aten::mkldnn_convolution", "aten::mul", "aten::mul", "aten::addmm", "aten::add",
        "aten::add",
    ]  # fmt: skip
    assert analysis.switches == 3
    assert analysis.median_working_ns == 70_000
    assert analysis.pieces_ns == {
        Piece.CALLING: 10_000,
        Piece.SHORT: 80_000,
        Piece.LONG: 300_000 + 100_000 + 120_000 + 100_000,
    }
    assert analysis.spans == 9


def test_partly_overlapping_spans_count_once(tmp_path: Path) -> None:
    analysis = analyze_events(tmp_path, operator("aten::a", 0, 100), operator("aten::b", 60, 150))
    assert self_times_us(analysis) == {("aten::a", "forward"): 60, ("aten::b", "forward"): 90}


def test_backward_of_another_librarys_convolution_is_not_onednn(tmp_path: Path) -> None:
    analysis = analyze_events(
        tmp_path,
        operator("aten::convolution", 0, 100, sequence=1),
        operator("aten::_slow_conv2d_forward", 10, 90),
        operator("aten::convolution", 100, 200, sequence=2),
        operator("aten::mkldnn_convolution", 110, 190),
        operator(f"{EVALUATE}{CONV}", 300, 400, sequence=2, forward=1),
        operator("aten::convolution_backward", 310, 390),
        operator(f"{EVALUATE}{CONV}", 400, 500, sequence=1, forward=1),
        operator("aten::convolution_backward", 410, 480),
    )
    assert analysis.category_ns(Category.ONEDNN, "backward") == 80_000


NAMES = {
    Category.ONEDNN: "aten::mkldnn_convolution aten::_mkldnn_reshape aten::to_mkldnn "
    "mkldnn::_linear_pointwise torch_ipex::convolution_forward_impl "
    "torch_ipex::convolution_backward onednn::qlinear_pointwise",
    Category.PRODUCTS: "aten::mm aten::addmm mkl::_mkl_linear",
    Category.COMMUNICATION: "c10d::allreduce_ gloo:all_reduce",
    Category.OURS: "_WinogradConvolutionBackward _TileConvolution _ConvolutionBackward "
    "_BatchNormBackward _BranchesBackward",
    Category.OTHER: "torch_ipex::batch_norm_forward aten::convolution aten::addmm_grad_of_mine "
    "my_WinogradConvolution aten::copy_",
}


@pytest.mark.parametrize("category", NAMES)
def test_category_of_a_name(category: Category) -> None:
    assert {find_category(name) for name in NAMES[category].split()} == {category}
