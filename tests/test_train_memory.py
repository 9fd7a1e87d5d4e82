"""Memory of a real run with loading processes and evaluations."""

import shutil
import sys
from pathlib import Path
from statistics import median

import pytest

from retinanet.config_file import load_config
from retinanet.memory import LOADED, memory_need, model_bytes
from retinanet.preflight.run import known_data
from tests.support.commands import run_program
from tests.support.fast_precision import FAST_PRECISION
from tests.support.training_runs import read_records

pytestmark = pytest.mark.slow


STEPS = 9
STEPS_PER_EPOCH = 3


def check_estimates(words: list[str], peak_resident_mb: float, checkpoint: Path) -> None:
    """Compare the estimates of `train.py --check` with the memory and disk that the run used."""
    config = load_config("demo.yaml", words)
    known = known_data(config)
    classes, images = known.classes, known.validation_images
    sizes = model_bytes(config.model, config.training, num_classes=classes)
    need = memory_need(config, sizes, num_classes=classes, engine="torch", validation_images=images)
    estimate = LOADED + need.all - need.loading + sizes.checkpoint
    assert peak_resident_mb == pytest.approx(estimate / 1e6, rel=0.25)
    written = sum(file.stat().st_size for file in checkpoint.iterdir())
    assert written == pytest.approx(sizes.checkpoint, rel=0.01)


def test_evaluations_and_loading_processes_cause_no_page_faults(tmp_path: Path) -> None:
    """Weights, gradients and Adam's averages alone are 140,000 pages that a step writes."""
    words = [
        f"data.scenes.train={3 * STEPS_PER_EPOCH}",
        "data.scenes.validation=4",
        "data.image_size=64",
        "data.workers=1",
        "data.images_without_boxes=train",
        "training.batch_size=3",
        f"training.max_steps={STEPS}",
        f"training.epochs={STEPS // STEPS_PER_EPOCH}",
        "evaluation.batch_size=4",
        "evaluation.pictures=1",
        f"engine.precision={FAST_PRECISION}",
        f"run.root={tmp_path}",
    ]
    done = run_program(sys.executable, "train.py", *words)
    assert (done.returncode, done.stderr) == (0, "")
    steps = read_records(tmp_path / "demo", kind="step")
    faults = [record["page_faults"] for record in steps]
    assert faults[0] > 100_000  # the first step takes what the others use again
    after_the_first_evaluation = faults[STEPS_PER_EPOCH:]
    assert max(after_the_first_evaluation) < 30_000, faults
    assert median(after_the_first_evaluation) < 2000, faults
    assert steps[-1]["resident_mb"] < 1.1 * steps[STEPS // 2]["resident_mb"]
    assert "page faults in the median step" in done.stdout
    check_estimates(
        words, steps[-1]["peak_resident_mb"], tmp_path / "demo" / "checkpoints" / "last"
    )
    shutil.rmtree(tmp_path / "demo" / "checkpoints")
