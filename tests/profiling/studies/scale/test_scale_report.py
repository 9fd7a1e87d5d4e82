import io

from rich.console import Console

from profiling.studies.scale import print_study
from profiling.studies.scale_study import Combination, Measured
from tests.profiling.studies.scale.measured_by_hand import measured, rank_steps

ONE, TWO_THREADS = measured(1, 1, 2.0), measured(1, 2, 1.25)
TWO_RANKS = measured(2, 1, 2.5, without=0.96)
TOO_MANY = Combination(ranks=2, threads=2, batch_size=2, misfit="too few cores")
FOUR = [
    Combination(ranks=4, threads=threads, batch_size=2, misfit="4 are too many")
    for threads in (1, 2)
]
COMBINATIONS = [
    ONE.combination,
    TWO_THREADS.combination,
    TWO_RANKS.combination,
    TOO_MANY,
    *FOUR,
]


def printed(*of: Measured, weak: bool = True) -> list[str]:
    text = io.StringIO()
    console = Console(file=text, width=120, highlight=False)
    print_study(console, COMBINATIONS, of, weak=weak)
    return [" ".join(line.replace("│", " ").split()) for line in text.getvalue().splitlines()]


def test_the_table_is_normalized_to_the_smallest_combination() -> None:
    lines = printed(ONE, TWO_THREADS, TWO_RANKS)
    assert lines[0] == "throughput relative to 1 rank × 1 thread, 1 images/s"
    assert "1 1.00 1.60 –" in lines
    assert "2 1.60 – –" in lines


def test_a_row_has_step_throughput_efficiency_and_shares() -> None:
    lines = printed(ONE, TWO_THREADS, TWO_RANKS)
    assert "1 2 2 1.25 s 1.6 0.0%" in lines
    assert "2 1 4 2.5 s 1.6 80.0% 0.0% 1.0% 4.0%" in lines


def test_without_weak_scaling_there_is_no_efficiency() -> None:
    lines = printed(ONE, TWO_RANKS, weak=False)
    assert "2 1 4 2.5 s 1.6 0.0% 1.0% 4.0%" in lines
    assert not any("efficiency" in line for line in lines)


def test_what_was_not_measured_is_not_said_not_to_fit() -> None:
    lines = printed(ONE)
    assert "1 1.00 ? –" in lines
    assert "2 ? – –" in lines


def test_each_reason_is_told_once() -> None:
    lines = printed(ONE)
    assert "– 2 × 2: too few cores" in lines
    assert "– 4 × 1, 4 × 2: 4 are too many" in lines


def test_notes_of_ranks_are_told_once_with_their_combinations() -> None:
    job = [rank_steps(rank, [1.0], held_back=[1.0], notes=["not bound"]) for rank in range(2)]
    of_both = [Measured(combination=one.combination, jobs=[job]) for one in (ONE, TWO_RANKS)]
    notes = [line for line in printed(*of_both) if line.startswith("note")]
    assert notes == ["note: 1 × 1, 2 × 1: not bound"]
