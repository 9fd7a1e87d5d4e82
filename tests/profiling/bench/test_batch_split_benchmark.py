import json
from pathlib import Path

import pytest

from profiling.__main__ import main
from profiling.bench.job import RankSteps
from profiling.bench.jobs import Job, batch_split_findings
from tests.support.commands import RunHere
from tests.support.fast_precision import FAST_PRECISION

SMALL = [
    "data.scenes.train=8",
    "data.scenes.validation=1",
    "data.image_size=64",
    "training.batch_size=2",
    f"engine.precision={FAST_PRECISION}",
]


def job(images: tuple[int, int], alone: tuple[float, float], step: float) -> Job:
    """Ranks with so many images, which take so many seconds by themselves."""
    return [
        RankSteps(
            rank=rank,
            host="here",
            seconds=[step, step],
            data_seconds=[0.0, 0.0],
            forward_seconds=[0.0, 0.0],
            exchange_seconds=[0.0, 0.0],
            held_back_seconds=[alone[rank]] * 2,
            images=images[rank],
            way="shared memory",
            notes=[],
        )
        for rank in (0, 1)
    ]


def test_what_is_left_of_the_throughput_of_ranks_that_wait_for_nobody() -> None:
    of_round = {
        "undisturbed": job((8, 8), (4.0, 4.0), 4.1),
        "even": job((8, 8), (4.0, 8.0), 8.0),  # ideally 2 and 1 images a second
        "speed": job((11, 5), (5.5, 5.0), 6.0),
    }
    slow, even, by_speed, gain = batch_split_findings([of_round])
    assert slow.value == pytest.approx(0.5)
    assert even.value == pytest.approx(2 / 3)
    assert by_speed.value == pytest.approx(16 / 6 / 3) and by_speed.is_met
    assert by_speed.target == "at least 0.8" and even.target == ""
    assert gain.value == pytest.approx(8 / 6)


@pytest.mark.whole_machine
def test_three_real_jobs_of_two_ranks_in_turn(run_here: RunHere, tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.json"
    words = ["--rounds", "1", "--steps", "1", "--json", str(numbers), *SMALL]
    done = run_here(main, "bench", "batch-split", *words)
    assert done.returncode == 0, done.stderr
    content = json.loads(numbers.read_text())
    [of_round] = content["workload"]["rounds"]
    assert list(of_round) == ["undisturbed", "even", "speed"]
    for name, ranks in of_round.items():
        assert [one["rank"] for one in ranks] == [0, 1]
        assert sum(one["images"] for one in ranks) == 4
        assert name == "speed" or ranks[0]["images"] == 2
        assert all(len(one["seconds"]) == len(one["held_back_seconds"]) == 1 for one in ranks)
    assert len(content["findings"]) == 4 and "target" not in done.stdout


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("distributed.batch_split=speed", "distributed.batch_split: set by the benchmark"),
        ("data.nothing=1", "data.nothing: no such field"),
        ("launch.threads=4096", "core"),
    ],
)
def test_wrong_arguments_are_one_line(run_here: RunHere, word: str, expected: str) -> None:
    done = run_here(main, "bench", "batch-split", word)
    assert done.returncode == 2
    assert expected in done.stderr and done.stderr.count("\n") == 1
