"""Two ranks under the real mpirun, whose outputs are pipes: each writes a log and a trace."""

from pathlib import Path

import pytest

from profiling.onednn_log.log import read_logs
from tests.launch.ranks import run_ranks
from tests.profiling.capture.small_runs import events_of, marks_of, marks_of_step, settings_in

pytestmark = pytest.mark.whole_machine


def test_every_rank_writes_its_own_files(tmp_path: Path) -> None:
    hooks = ("profile.onednn.steps=1-2", "profile.trace.steps=2", "training.batch_size=1")
    job = run_ranks(2, "train.py", *settings_in(tmp_path, "two", *hooks, "training.max_steps=2"))
    assert (job.code, job.errors) == (0, "")
    assert "_verbose" not in job.output
    logs = [tmp_path / "two" / "onednn" / f"rank{rank}.log" for rank in (0, 1)]
    assert sorted(logs[0].parent.iterdir()) == logs
    for rank, log in enumerate(logs):
        # Forward and losses are apart, though both run within the exchange's module.
        assert marks_of(log) == [*marks_of_step(1), *marks_of_step(2)]
        [facts] = read_logs([log]).facts
        assert (facts["rank"], facts["ranks"], facts["local_rank"]) == (rank, 2, rank)
        assert facts["threads"] == 1 and facts["images_a_step"] == 1
        names = [one["name"] for one in events_of(log.parents[1] / "trace" / f"rank{rank}.json.gz")]
        assert {"step 2", "phase: loss", "module: head.regression_head.bbox_reg"} <= set(names)
    both = read_logs(logs)
    assert both.ranks == [0, 1]
    assert both.facts[0]["cpus"] != both.facts[1]["cpus"]
    assert f"{logs[0]}, steps 1-2, one for each of 2 ranks\n" in job.output
