import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retinanet.training.agreement import merge_results
from tests.launch.ranks import run_ranks
from tests.support.step_results import step_result


@pytest.mark.slow
def test_two_ranks_share_weights_statistics_files_and_errors() -> None:
    job = run_ranks(2, str(Path(__file__).with_name("agreement_ranks.py")))
    assert job.code == 0, job.errors
    ranks: list[dict[str, Any]] = [json.loads(line) for line in job.output.splitlines() if line]
    assert len(ranks) == 2
    for results in ranks:
        assert results["weights"] == [1.0] and results["optimizer steps"] == [1.0] * 4  # rank 0's
        assert results["equal"] and results["equal again"]
        assert not results["equal after a flipped bit"]
        assert results["mean"] == [1.5] * 4
        assert results["first before second"] and results["returned after both"]
        assert (results["batches"], results["error"]) == ([1], "second.jpg: damaged")
        assert results["own settings"] == results["same data"] == ""
        assert re.fullmatch(
            r"training\.learning_rate: is 0\.002 for rank 1 on (.+), but 0\.001 for rank 0 on \1; "
            "give all ranks the same configuration",
            results["settings"],
        )
        for name in ("data", "crowd", "renamed"):
            assert re.fullmatch(
                r"data: rank 1 on (.+) has other validation annotations than rank 0 on \1 "
                r"\(1 and 1 images\); copy the same data set to all hosts",
                results[name],
            )


STEP = step_result(7, exchange_seconds=0.25, bad_images=("a.jpg: damaged",))


def test_merged_step_has_mean_losses_and_the_slowest_times() -> None:
    other = replace(
        STEP,
        losses={"classification": 2.0, "bbox_regression": 0.0},
        seconds=2.5,
        data_seconds=0.75,
        page_faults=5,
        resident_mb=150.0,
        peak_resident_mb=150.0,
        exchange_seconds=0.5,
        bad_images=("b.jpg: damaged",),
    )
    assert merge_results([STEP, other]) == replace(
        STEP,
        losses={"classification": 1.5, "bbox_regression": 0.25},
        images=4,
        data_seconds=0.75,
        resident_mb=150.0,
        bad_images=("a.jpg: damaged", "b.jpg: damaged"),
    )
    assert merge_results([STEP]) == STEP


def test_merged_losses_are_weighted_by_images() -> None:
    other = replace(STEP, losses={"classification": 5.0, "bbox_regression": 0.0}, images=1)
    merged = merge_results([replace(STEP, images=3), other])
    assert merged.losses == {"classification": 2.0, "bbox_regression": 0.375}
    assert merged.images == 4
