import json
import math
from pathlib import Path

import numpy as np
import pytest

from profiling.__main__ import main
from profiling.bench.generated import generated_detections, generated_truth
from profiling.bench.single import largest_difference
from tests.support.commands import RunHere


def test_both_libraries_are_measured_and_compared(run_here: RunHere, tmp_path: Path) -> None:
    numbers = tmp_path / "metric.json"
    words = ("--images", "40", "--found", "30", "--json", numbers)
    done = run_here(main, "bench", "metric", *words)
    assert done.returncode == 0, done.stderr
    content = json.loads(numbers.read_text())
    assert content["workload"] == {"images": 40, "found": 30}
    seconds, memory, difference, *_ = content["findings"]
    assert seconds["value"] > 0 and 0.05 < memory["value"] < 4
    assert difference["what"].startswith("4 images: ") and difference["value"] < 1e-9
    assert all(one["target"] == "" for one in content["findings"])


def test_generated_boxes_are_like_openimages() -> None:
    random = np.random.default_rng(0)
    truth = generated_truth(images=500, random=random)
    assert len(truth.boxes) / len(truth) == pytest.approx(7.3, rel=0.1)
    assert (np.diff(truth.box_offsets) > 0).all() and truth.box_offsets[-1] == len(truth.boxes)
    assert len(set(truth.box_category_ids.tolist())) > 200
    assert 0.02 < truth.box_is_crowd.mean() < 0.08
    found = generated_detections(truth, per_image=60, random=random)
    assert len(found) == 500 * 60
    for image_id in truth.image_ids[:20].tolist():
        scores = found.of_image(image_id).scores
        assert len(scores) == 60 and (np.diff(scores) <= 0).all() and 0 < scores.min() < 1


@pytest.mark.parametrize(
    ("ours", "theirs", "difference"),
    [([0.5, math.nan], [0.25, math.nan], 0.25), ([0.5, math.nan], [0.5, 0.5], math.nan)],
)
def test_what_one_library_alone_could_not_measure_is_a_difference(
    ours: list[float], theirs: list[float], difference: float
) -> None:
    assert largest_difference(ours, theirs) == pytest.approx(difference, nan_ok=True)
