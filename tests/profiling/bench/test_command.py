"""`retinanet profile bench`: with fake workers, and with real ones on tiny images."""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from profiling.__main__ import main
from profiling.bench import results
from profiling.bench.variant import Run, Variant, Workload
from profiling.bench.worker_pool import WorkerPool
from retinanet.engine.tile_convolution import Tiles, best_tiles
from retinanet.engine.winograd import choose_winograd
from tests.support.commands import RunHere
from tests.support.fast_precision import needs_bf16

REPOSITORY = Path(__file__).resolve().parents[3]
SECONDS = {"torch": 2.0, "torchvision-tuned": 6.0, "ceiling": 1.0}
SECONDS |= {"ours-float32": 2.0, "torchvision-float32": 5.0}


class FakeWorker:
    """Answers as the worker of a variant does, with fixed numbers."""

    rss_mb = 100.0

    def __init__(self, variant: Variant, workload: Workload) -> None:
        self.variant = variant
        self.facts: dict[str, Any] = {"step_gflop": 100.0} if variant.name == "ceiling" else {}
        if "folder" in variant.options:
            assert Path(str(variant.options["folder"])).is_dir()
            self.facts = {"images": workload.images, "agreement": 0.99}

    def run(self) -> Run:
        details = {"loss": 1.5}
        if self.variant.name == "ceiling":
            details = {"matrix product 4096³": 70.0, "large, forward": 80.0}
        seconds = SECONDS[self.variant.name]
        return Run(seconds=seconds, page_faults=7, rss_mb=100.0, peak_rss_mb=200.0, details=details)

    def ask(self, question: str) -> dict[str, Any]:
        if question == "primitives":
            kinds = {"convolution forward": 1.0, "reorder": 0.5}
            kernels = {"masked_sum": 0.25}
            times = {"seconds": 4.0, "winograd_seconds": 1.0}
            return {**times, "by_kind": kinds, "kernel_seconds": kernels}
        if question == "operators":
            return {"operators": {"aten::add_ x7": 1.0, "aten::mm x1": 3.0}}
        assert question == "bytes"
        rows = [("forward", "aten::mm", 1, 3 * 10**9, 10**9), ("", "aten::item", 1, 0, 4)]
        return {"bytes": rows}

    def close(self) -> None:
        pass


@pytest.fixture
def fake_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "WorkerPool", partial(WorkerPool, start=FakeWorker))


@pytest.mark.usefixtures("fake_workers")
def test_step_is_printed_and_written(run_here: RunHere, tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    options = ("--where", "--beside-load", "--rounds=2", "--warm-up=1", f"--json={file}")
    names = "torch,torchvision-tuned,ceiling"
    done = run_here(main, "bench", "step", f"--contestants={names}", *options)
    assert done.returncode == 0, done.stderr
    for text in ("3.00 times as fast", "at least", "GFLOP/s", "time of torch by operator"):
        assert text in done.stdout
    for row in ("convolution forward", "winograd (ours)", "masked_sum (ours)", "aten::mm x1"):
        assert row in done.stdout
    content = json.loads(file.read_text())
    assert content["benchmark"] == "step" and list(content["contestants"]) == names.split(",")
    ours = content["contestants"]["torch"]
    assert ours["runs_s"] == ours["beside_load_s"] == [2.0, 2.0]
    assert ours["times_as_long_beside_load"] == 1.0 and ours["gflop_per_s"] == 50.0
    assert ours["onednn_share"] == 0.25 and ours["convolving_share"] == 0.5
    assert ours["gigabytes_moved"] == pytest.approx(4.000000004)
    assert list(ours["gigabytes_moved_by_phase"]) == ["forward", "between"]
    assert ours["operators_s"]["aten::mm x1"] == 3.0 and ours["details"] == {"loss": 1.5}
    ceiling = content["contestants"]["ceiling"]
    assert "gflop_per_s" not in ceiling and "onednn_s" not in ceiling
    assert content["ratios"]["torch/torchvision-tuned"] == 3.0
    assert content["ratio_ranges"]["torchvision-tuned/torch"] == [pytest.approx(1 / 3)] * 2
    whats = {finding["what"]: finding for finding in content["findings"]}
    passes = whats["torch: share of the step in ReLU, additions, masks, casts and reorders"]
    assert passes["value"] == pytest.approx(0.75 / 4 + 0.25) and not passes["met"]


@pytest.mark.usefixtures("fake_workers")
def test_targets_are_only_for_the_standard_batch(run_here: RunHere) -> None:
    options = ("--contestants=torch,torchvision-tuned", "--rounds=1", "--warm-up=1")
    standard = run_here(main, "bench", "step", *options).stdout
    assert "target" in standard and "met" in standard and "aten::" not in standard
    assert "target" not in run_here(main, "bench", "step", *options, "--classes=3").stdout


@pytest.mark.usefixtures("fake_workers")
def test_predictions_of_each_size_share_files(
    run_here: RunHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, object, Path]] = []

    def make_files(variant: Variant, workload: Workload, *, count: int) -> None:
        options, size = variant.options, workload.image_size
        made.append((size, options["onnx"], Path(str(options["folder"]))))
        assert count == 0

    monkeypatch.setattr(results, "runs_alone", make_files)
    several, one = tmp_path / "several.json", tmp_path / "one.json"
    names = "--contestants=ours-float32,torchvision-float32"
    options = ("bench", "predict", names, "--rounds=1", "--warm-up=1")
    done = run_here(main, *options, f"--json={several}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2.50 times as fast") == 4 and "99.0%" in done.stdout
    contents = json.loads(several.read_text())["workloads"]
    sizes = [(each["workload"]["image_size"], each["workload"]["images"]) for each in contents]
    assert sizes == [(320, 1), (320, 8), (800, 1), (800, 8)]
    assert [files[:2] for files in made] == [(320, False), (800, False)]
    assert not any(folder.exists() for _, _, folder in made)
    ours = contents[1]["contestants"]["ours-float32"]
    assert (ours["images_per_s"], ours["ms_per_image"]) == (4.0, 250.0)
    small = ("--images=1", "--image-size=64", f"--json={one}")
    assert run_here(main, *options, *small).returncode == 0
    assert json.loads(one.read_text())["workload"]["image_size"] == 64


@pytest.mark.usefixtures("fake_workers")
def test_interrupted_predictions_keep_what_is_measured(
    run_here: RunHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_files(variant: Variant, workload: Workload, *, count: int) -> None:
        if workload.image_size == 800:
            raise KeyboardInterrupt

    monkeypatch.setattr(results, "runs_alone", make_files)
    file = tmp_path / "predict.json"
    options = ("--contestants=ours-float32", "--rounds=1", "--images=2", f"--json={file}")
    assert run_here(main, "bench", "predict", *options).returncode == 130
    [content] = json.loads(file.read_text())["workloads"]
    assert content["workload"]["image_size"] == 320


@pytest.mark.exhaustive
def test_real_predictions_of_ours_and_of_the_export(run_here: RunHere, tmp_path: Path) -> None:
    file = tmp_path / "predict.json"
    names = "--contestants=ours-float32,onnxruntime-float32"
    sizes = ("--images=2", "--image-size=64", "--classes=3", "--rounds=1")
    done = run_here(main, "bench", "predict", names, *sizes, f"--json={file}")
    assert done.returncode == 0, done.stderr
    ours, theirs = json.loads(file.read_text())["contestants"].values()
    assert ours["facts"] == theirs["facts"] == {"images": 2, "agreement": 1.0}
    assert ours["details"] == theirs["details"] and ours["details"]["boxes"] > 20
    assert "onnxruntime" in theirs["versions"] and ours["ms_per_image"] > 0


@pytest.mark.parametrize(("cores", "text"), [(0.1, ""), (0.5, "0.50 cores")])
def test_disturbance_is_reported_above_a_tenth_of_a_core(cores: float, text: str) -> None:
    assert text in results.disturbance(cores) and bool(results.disturbance(cores)) == bool(text)


@needs_bf16  # both train in it
@pytest.mark.slow
def test_real_steps_of_ours_and_of_torchvision(
    run_here: RunHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "PROFILED_RUNS", 1)
    file = tmp_path / "step.json"
    # Not 64 pixels: P6 is 1×1 there, and oneDNN leaves its weight gradient in BF16 to chance.
    sizes = ("--images=1", "--image-size=128", "--classes=3", "--rounds=1", "--warm-up=1")
    options = ("--contestants=torch,torchvision", *sizes, f"--json={file}")
    done = run_here(main, "bench", "step", *options)
    assert done.returncode == 0, done.stderr
    content = json.loads(file.read_text())
    ours, theirs = content["contestants"]["torch"], content["contestants"]["torchvision"]
    for variant in (ours, theirs):
        assert len(variant["runs_s"]) == len(variant["page_faults_of_runs"]) == 1
        assert variant["peak_rss_mb"] >= variant["rss_mb"] > 100
        assert 0 < variant["onednn_share"] <= variant["convolving_share"] < 1
        assert any(primitive.startswith("convolution") for primitive in variant["onednn_s"])
        by_phase = variant["gigabytes_moved_by_phase"]
        assert {"forward", "loss", "backward", "optimizer"} <= by_phase.keys()
        assert sum(by_phase.values()) == pytest.approx(variant["gigabytes_moved"])
        # For maps this small ours may leave only frozen layers to oneDNN.
        if variant is theirs or best_tiles() is not Tiles.VECTORS:
            operators = {row["operator"] for row in variant["bytes_moved"]}
            assert "convolution backward_weights" in variant["onednn_s"]
            assert "aten::convolution_backward" in operators
    assert ours["gigabytes_moved"] < theirs["gigabytes_moved"]
    has_own_kernels = choose_winograd("auto") or best_tiles() is Tiles.AMX
    assert (ours["convolving_share"] > ours["onednn_share"]) == has_own_kernels
    assert theirs["convolving_share"] == theirs["onednn_share"]
    assert (ours["allocator"], theirs["allocator"]) == ("tuned", "system")
    # The same weights, images and boxes, and as many steps on them.
    assert ours["details"]["loss"] == pytest.approx(theirs["details"]["loss"], rel=0.02)
    assert content["environment"]["cores"] == len(os.sched_getaffinity(0))
    assert content["environment"]["torch"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("step --contestants=torch,tensorflow", "--contestants: unknown name 'tensorflow'"),
        *((f"step --image-size={size}", "argument --image-size: expected pixels")
          for size in ("8", "100", "large")),
        ("step --threads=1,4096", "--threads 4096: more than the "),
        ("step --threads=1 --beside-load", "--threads, --beside-load: "),
        ("step --threads=1 --against=python", "--threads, --against: "),
        ("step --threads=1 --contestants=ceiling", "--contestants: ceiling takes no step"),
        ("loss --threads=1", "--threads: `bench loss` is not measured so"),
        ("loss --share=new.json", "--share: `bench loss` is not measured so"),
        ("step --share=new.json --beside-load", "--share, --beside-load: "),
        ("step --share=new.json --contestants=all", "--share, --contestants: only torch "),
        ("step --share=docs/leaderboard.md", "docs/leaderboard.md: exists"),
        *((f"{name} --json=README.md", "README.md: exists")
          for name in ("step", "checkpoint", "index", "log", "metric", "waiting")),
        ("checkpoint --folder nowhere", "--folder: nowhere"),
        ("sizes training.batch_size=0", "training.batch_size: "),
        ("waiting --ranks 4096", "--ranks: 4096"),
        ("waiting --workers x", "--workers: expected numbers such as 0,1, found 'x'"),
        ("waiting data.nothing=1", "data.nothing: no such field"),
        ("batch-split distributed.batch_split=speed", "distributed.batch_split: set by"),
        ("batch-split launch.threads=4096", "core"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_one_line(arguments: str, error: str, run_here: RunHere) -> None:
    done = run_here(main, "bench", *arguments.split())
    assert done.returncode == 2
    usage, line = done.stderr.splitlines()[:-1], done.stderr.splitlines()[-1]
    assert error in line.partition("error: ")[2]
    assert not usage or usage[0].startswith("usage: ")
