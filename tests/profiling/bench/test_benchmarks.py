"""Every contestant's recipe, in this process and on tiny images."""

import os
import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from data.transforms import normalize
from profiling.bench import command
from profiling.bench.benchmarks import EVALUATE, LOSS, STEP, loss_findings, step_findings
from profiling.bench.command import BENCHMARKS
from profiling.bench.measured_steps import COMPILED, bytes_of_run, kernel_seconds, onednn_seconds
from profiling.bench.recipes import parts, step
from profiling.bench.recipes.parts import make_outputs
from profiling.bench.recipes.step import feature_sizes, make_batch
from profiling.bench.results import BytesMoved, Primitives, Results
from profiling.bench.variant import Prepared, Run, Variant, Workload
from retinanet.engine.kernel_calls import own_kernel
from retinanet.model.retinanet import RetinaNet

TINY = Workload(images=2, image_size=64, classes=3)


def run_of(seconds: float, **details: float) -> Run:
    return Run(seconds=seconds, page_faults=7, rss_mb=1.0, peak_rss_mb=4.0, details=details)


def results_of(**runs: list[Run]) -> Results:
    named = {name.replace("_", "-"): group for name, group in runs.items()}
    return Results(
        workload=TINY,
        variants=[Variant(name=name, about="", recipe="") for name in named],
        runs=named,
        facts={"ceiling": {"step_gflop": 100.0}, "kernel": {"least_bytes": 60.0}},
        primitives={
            "torch": Primitives(
                seconds=2.0,
                by_kind={"convolution forward": 0.5, "matmul": 0.5, "reorder": 0.3},
                winograd_seconds=0.3,
                kernel_seconds={"weight_gradient_sum": 0.2, "masked_sum": 0.1, "adam_step": 0.1},
            ),
            "torch-onednn": Primitives(seconds=4.0, by_kind={"convolution forward": 3.0}),
        },
    )


def test_names_are_given_once_and_every_benchmark_has_defaults() -> None:
    for benchmark in BENCHMARKS:
        names = [variant.name for variant in benchmark.variants]
        assert len(set(names)) == len(names)
        assert any(variant.by_default for variant in benchmark.variants)


def test_the_batch_is_the_same_every_time_and_its_boxes_lie_inside() -> None:
    one, other = make_batch(TINY), make_batch(TINY)
    assert torch.equal(one.images, other.images) and one.images.dtype == torch.uint8
    for target in one.targets:
        boxes = target["boxes"]
        assert (boxes[:, 2:] > boxes[:, :2]).all()
        assert boxes.min() >= 0 and boxes.max() <= 64


def test_levels_have_the_sizes_of_the_network() -> None:
    workload = Workload(images=1, image_size=96, classes=1)
    model = RetinaNet(num_classes=1).eval()
    with torch.no_grad():
        outputs = model(normalize(make_batch(workload).images))
    assert feature_sizes(workload) == outputs.feature_sizes


def test_all_forms_of_the_loss_agree_on_the_benchmarks_logits() -> None:
    losses = {}
    for variant in LOSS.variants:
        if variant.recipe.endswith("focal_loss"):
            options: dict[str, Any] = dict(variant.options)
            losses[variant.name] = parts.prepare_focal_loss(TINY, **options).run()["loss"]
    assert len(losses) == 9
    assert losses == pytest.approx(dict.fromkeys(losses, losses["reference-float32"]), rel=1e-2)


@pytest.mark.parametrize("name", ["adam", "sgd", "lamb"])
@pytest.mark.parametrize("fused", [True, False])
def test_every_optimizer_takes_steps(name: str, fused: bool) -> None:
    prepared = parts.prepare_optimizer_step(TINY, name=name, fused=fused)
    prepared.run()
    prepared.run()


@pytest.mark.parametrize("clips", [False, True])
def test_the_norm_is_taken_again_and_again(clips: bool) -> None:
    prepared = parts.prepare_gradient_norm(TINY, clips=clips)
    prepared.run()
    prepared.run()


def test_both_post_processings_find_as_many_boxes() -> None:
    counts = [
        parts.prepare_postprocessing(TINY, whose=whose).run() for whose in ("ours", "torchvision")
    ]
    assert counts[0]["boxes"] > 100
    # torchvision's boxes and scores are BF16 here.
    assert counts[0]["boxes"] == pytest.approx(counts[1]["boxes"], rel=0.05)


def test_outputs_are_background_but_for_the_objects() -> None:
    outputs = make_outputs(Workload(images=1, image_size=128, classes=20))
    shares = [float((level > -2.95).float().mean()) for level in outputs.cls_logits]
    assert 0 < shares[0] < 0.02
    assert float(outputs.cls_logits[0].float().mean()) == pytest.approx(-5, abs=0.1)


def test_whole_evaluations_find_as_many_boxes() -> None:
    counts = [
        parts.prepare_evaluation(TINY, whose=whose).run() for whose in ("ours", "torchvision")
    ]
    assert counts[0]["boxes"] > 10
    assert counts[0]["boxes"] == pytest.approx(counts[1]["boxes"], rel=0.1)


def test_evaluation_compares_what_is_alike() -> None:
    results = results_of(postprocess=[run_of(1.0)], torch=[run_of(2.0)], torchvision=[run_of(5.0)])
    assert [(found.what, found.value) for found in EVALUATE.findings(results)] == [
        ("torch against torchvision", 2.5)
    ]


def test_findings_of_a_step_by_hand() -> None:
    limits = {"matrix product 4096³": 70.0, "large, forward": 80.0, "large, backward": 50.0}
    results = results_of(
        torch=[run_of(2.0), run_of(2.0)],
        torchvision_tuned=[run_of(3.0), run_of(5.0)],
        ceiling=[run_of(1.0, **limits), run_of(1.0, **limits)],
    )
    values = {finding.what: finding.value for finding in step_findings(results)}
    assert values == {
        "torch against torchvision-tuned": 2.0,
        "best large convolution: large, forward": 80.0,
        "matrix product 4096³": 70.0,
        "torch: GFLOP/s of the step relative to the best large convolution": 50 / 80,
        "torch: share of the step in convolutions and matrix products, oneDNN's and ours": 0.75,
        "torch-onednn: share of the step in oneDNN's convolutions and matrix products": 0.75,
        "torch: page faults per step": 7,
        "torch: peak memory against torchvision-tuned": 1.0,
    }


def test_passes_over_memory_are_added_up_where_operators_were_timed() -> None:
    results = results_of(torch=[run_of(2.0)])
    assert results.passes_share("torch") is None
    operators = {
        "aten::add_ x7": 0.2,
        "aten::add_relu x1": 0.5,
        "aten::mul x2": 0.3,
        "Adam x1": 3.0,
    }
    results = replace(results, operators={"torch": operators})
    # Reorders 0.3 and masked sums 0.1 of 2 s; a sum and a product, 0.5 of 4 s.
    assert results.passes_share("torch") == pytest.approx(0.2 + 0.125)
    [finding] = [one for one in step_findings(results) if "ReLU" in one.what]
    assert finding.value == results.passes_share("torch") and not finding.is_met


def test_the_loss_is_held_against_a_copy() -> None:
    results = results_of(
        kernel=[run_of(2.0)], bandwidth=[run_of(9.0, copy=40.0, **{"scale in place": 80.0})]
    )
    [share] = [finding for finding in loss_findings(results) if finding.at_least]
    assert share.value == 60 / 2 / 40 and share.is_met


def test_onednns_output_is_caught_and_standard_output_given_back(
    capfd: pytest.CaptureFixture[str],
) -> None:
    layer = torch.nn.Conv2d(16, 32, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(2, 16, 64, 64).to(memory_format=torch.channels_last)
    seconds = onednn_seconds(lambda: layer(images))
    os.write(1, b"after\n")
    assert sum(s for name, s in seconds.items() if name.startswith("convolution forward")) > 0
    assert capfd.readouterr().out == "after\n"


def test_runs_beside_a_busy_core_are_compared_with_those_of_the_same_round() -> None:
    results = replace(
        results_of(torch=[run_of(1.0), run_of(2.0), run_of(4.0)]),
        loaded_runs={"torch": [run_of(2.0), run_of(5.0), run_of(8.0)]},
    )
    assert results.slowdown("torch") == (2.0, 2.0, 2.5)
    [finding] = [one for one in step_findings(results) if "keeps one core busy" in one.what]
    assert finding.value == 2.0 and finding.is_met
    assert not any("busy" in one.what for one in step_findings(results_of(torch=[run_of(1.0)])))


def test_traffic_is_added_up_by_phase_and_held_against_torchvisions() -> None:
    moved = {
        "torch": [
            BytesMoved("optimizer", "adam_step", 1, 4_000, 3_000),
            BytesMoved("forward", "aten::convolution", 3, 2_000, 1_000),
            BytesMoved("", "aten::item", 1, 4, 0),
        ],
        "torchvision-tuned": [BytesMoved("backward", "aten::mul", 9, 20_000, 10_000)],
    }
    results = replace(
        results_of(torch=[run_of(1.0)], torchvision_tuned=[run_of(2.0)]), bytes_moved=moved
    )
    by_phase = results.gigabytes_by_phase("torch")
    assert list(by_phase) == ["forward", "optimizer", "between"]
    assert by_phase == pytest.approx({"forward": 3e-6, "optimizer": 7e-6, "between": 4e-9})
    [finding] = [one for one in step_findings(results) if "bytes" in one.what]
    assert finding.value == pytest.approx(10_004 / 30_000)
    assert finding.is_met and finding.target == "at most 0.4"


def test_operators_that_compiled_graphs_call_are_in_inductors_count() -> None:
    def run() -> dict[str, float]:
        torch.mm(torch.zeros(2, 2), torch.zeros(2, 2))
        torch.zeros(3).exp()
        return {}

    rows = bytes_of_run(Prepared(run, compiled_bytes=lambda: 500))
    assert rows[0] == (COMPILED, COMPILED, 1, 500, 0)
    assert {row[1] for row in rows[1:]} == {"aten::zeros", "aten::exp"}


def test_a_contestant_that_needs_intels_openmp_is_left_out_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = {one.name: one for one in STEP.variants}
    assert {"torch-compiled", "torchvision-compiled", "torch-fused-adam"} <= named.keys()
    submission = replace(named["ipex-submission"], package=None, allocator="system")
    monkeypatch.setattr(command, "installed_openmp", lambda: "gnu")
    said: list[str] = []
    assert command.skip_missing([submission], said.append) == []
    assert said == [
        "ipex-submission is skipped: Intel's OpenMP is not installed (pip install intel-openmp)"
    ]
    monkeypatch.setattr(command, "installed_openmp", lambda: "intel")
    assert command.skip_missing([submission], said.append) == [submission]


def test_torchs_fused_adam_takes_the_same_step_as_ours() -> None:
    workload = Workload(images=1, image_size=128, classes=3)
    runs = [step.prepare_step_torch(workload, torch_adam=other) for other in (False, True)]
    losses = [[one.run()["loss"] for _ in range(2)] for one in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


def test_counting_leaves_the_step_as_it_is() -> None:
    workload = Workload(images=1, image_size=128, classes=3)
    counted, plain = (step.prepare_step_torch(workload) for _ in range(2))
    rows = bytes_of_run(counted)
    plain.run()
    assert {"forward", "loss", "backward", "optimizer"} <= {row[0] for row in rows}
    assert counted.run()["loss"] == pytest.approx(plain.run()["loss"], rel=1e-5)


def test_seconds_of_own_kernels_are_added_up() -> None:
    with kernel_seconds() as found:
        for name in ("weight_gradient_sum", "weight_gradient_sum", "adam_step", "grouped_forward"):
            with own_kernel(name, (), ()):
                time.sleep(0.01)
    assert found.keys() == {"weight_gradient_sum", "adam_step", "grouped_forward"}
    assert found["weight_gradient_sum"] > found["grouped_forward"] >= 0.01
