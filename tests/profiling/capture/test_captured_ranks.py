"""Two ranks under the real mpirun: each writes a log and a trace."""

from pathlib import Path

import pytest

from profiling.onednn_log.log import read_logs
from retinanet.engine.gradient_sync import SHARED
from tests.launch.ranks import run_ranks
from tests.profiling.capture.training_runs import (
    marks_of_step,
    read_events,
    read_marks,
    run_settings,
)

pytestmark = pytest.mark.slow


def test_every_rank_writes_a_log_and_a_trace(tmp_path: Path) -> None:
    hooks = ("profile.onednn.steps=1", "profile.trace.steps=1", "training.batch_size=1")
    short = ("training.max_steps=1", "evaluation.every=99", "launch.pin=false", "launch.threads=1")
    SHARED.library()  # compiled now, or one of two ranks would say that it waits for the other
    job = run_ranks(2, "train.py", *run_settings(tmp_path, "two", *hooks, *short))
    assert (job.code, job.errors) == (0, "")
    assert "_verbose" not in job.output
    logs = [tmp_path / "two" / "onednn" / f"rank{rank}.log" for rank in (0, 1)]
    assert sorted(logs[0].parent.iterdir()) == logs
    for rank, log in enumerate(logs):
        # Forward and loss are separate phases, though both run within the exchange's module.
        assert read_marks(log) == marks_of_step(1)
        [facts] = read_logs([log]).facts
        assert (facts["rank"], facts["ranks"], facts["local_rank"]) == (rank, 2, rank)
        assert facts["threads"] == 1 and facts["images_a_step"] == 1
        events = read_events(log.parents[1] / "trace" / f"rank{rank}.json.gz")
        names = {event["name"] for event in events}
        assert {"step 1", "phase: loss", "module: head.regression_head.bbox_reg"} <= names
    both = read_logs(logs)
    assert both.ranks == [0, 1]
    assert f"{logs[0]}, step 1, one for each of 2 ranks\n" in job.output
