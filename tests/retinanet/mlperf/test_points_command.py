import json
from pathlib import Path

import pytest
from PIL import Image

from retinanet.__main__ import main
from tests.support.commands import RunHere

POINTS = ("mlperf", "points")


def test_the_points_are_a_table_and_a_batch_size_gets_settings(
    run_here: RunHere, tmp_path: Path
) -> None:
    chart, numbers = tmp_path / "points.png", tmp_path / "points.json"
    words = ("--batch-size", "448", "5000", "--chart", chart, "--json", numbers)
    done = run_here(main, *POINTS, *words)
    assert done.returncode == 0 and done.stderr == ""
    assert "4096 │  15.15 │       3.79" in done.stdout
    assert "batch size 448 (between 320 and 512): 4.70 epochs" in done.stdout
    assert "batch size 5000 (nobody measured more than 4096" in done.stdout
    settings = "training.learning_rate=0.0001 training.warmup_epochs=1 training.warmup_factor=0.001"
    assert done.stdout.count(settings) == 2
    content = json.loads(numbers.read_text())
    assert (content["rules"], content["benchmark"]) == ("5.1.0", "retinanet")
    assert [one["batch_size"] for one in content["asked"]] == [448, 5000]
    with Image.open(chart) as picture:
        assert picture.format == "PNG" and picture.width > 800


def test_older_rules_have_fewer_points(run_here: RunHere) -> None:
    newest, oldest = (
        run_here(main, *POINTS, "--rules", rules).stdout for rules in ("5.1.0", "2.1.0")
    )
    assert "1024 │" in newest and "1024 │" not in oldest and "1280 │" in oldest


def test_files_that_exist_are_left_as_they_are(run_here: RunHere, tmp_path: Path) -> None:
    chart = tmp_path / "points.png"
    chart.write_text("mine")
    done = run_here(main, *POINTS, "--chart", chart)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {chart}: exists; give another name\n"
    assert chart.read_text() == "mine"


@pytest.mark.parametrize("words", [("--batch-size", "0"), ("--rules", "6.1.0"), ("--chart",)])
def test_a_wrong_option_is_told(words: tuple[str, ...], run_here: RunHere) -> None:
    done = run_here(main, *POINTS, *words)
    assert done.returncode == 2 and words[0] in done.stderr
