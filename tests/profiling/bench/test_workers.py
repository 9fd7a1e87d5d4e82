from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import WorkerDiedError
from profiling.bench.variant import Variant, Workload
from profiling.bench.worker_pool import (
    Worker,
    WorkerPool,
    run_interleaved,
    runs_by_name,
    variant_worker,
)

WORKLOAD = Workload(images=3)


def variant(name: str, *, behaviour: str = "works") -> Variant:
    recipe = "tests.profiling.bench.behaving_recipe"
    return Variant(name=name, about="", recipe=recipe, options={"behaviour": behaviour})


def no_advance(done: int, note: str) -> None:
    pass


def make_pool(available: Callable[[], float], said: list[str]) -> WorkerPool:
    return WorkerPool(WORKLOAD, warm_up=2, print_line=said.append, available=available)


def is_alive(process: float) -> bool:
    return Path(f"/proc/{int(process)}").exists()


def test_a_worker_measures_its_runs_and_lives_between_them() -> None:
    worker = variant_worker(variant("one"), WORKLOAD)
    first, second = worker.run(), worker.run()
    assert first.details == {"runs": 1, "images": 3} and second.details["runs"] == 2
    assert first.seconds >= 0.001
    assert 0 < first.rss_mb <= first.peak_rss_mb
    worker.close()
    assert not is_alive(worker.facts["process"])


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ("is killed", "one: its process was ended by SIGKILL (out of memory?)"),
        ("exits", "one: its process ended with status 7: library: cannot go on"),
        ("raises", "one: ArithmeticError: loss nan"),
    ],
)
def test_a_worker_that_dies_is_named_with_the_cause(behaviour: str, why: str) -> None:
    worker = variant_worker(variant("one", behaviour=behaviour), WORKLOAD)
    with pytest.raises(WorkerDiedError) as caught:
        worker.run()
    assert str(caught.value) == why
    worker.close()
    assert not is_alive(worker.facts["process"])


def test_a_worker_that_is_not_prepared_is_named_with_the_cause() -> None:
    with pytest.raises(WorkerDiedError, match=r"^one: ValueError: no such thing$"):
        variant_worker(variant("one", behaviour="is not prepared"), WORKLOAD)


def test_contestants_run_in_turn_after_their_warm_up() -> None:
    notes: list[tuple[int, str]] = []
    variants = [variant("one"), variant("other")]
    with make_pool(lambda: 1e6, []) as pool:
        runs = runs_by_name(
            run_interleaved(
                pool, variants, rounds=2, advance=lambda done, note: notes.append((done, note))
            )
        )
        processes = [facts["process"] for facts in pool.facts.values()]
        assert all(map(is_alive, processes))
    assert not any(map(is_alive, processes))
    order = [(done, note.split()[-3 if done > 2 else -1]) for done, note in notes]
    assert order == [(0, "one"), (2, "other"), (5, "one"), (6, "other"), (7, "one"), (8, "other")]
    for name in ("one", "other"):
        assert [run.details["runs"] for run in runs[name]] == [3, 4]


def test_without_memory_for_all_only_the_running_one_is_alive() -> None:
    said: list[str] = []
    variants = [variant(name) for name in ("one", "other", "third")]
    with make_pool(lambda: 0.0, said) as pool:
        runs = runs_by_name(run_interleaved(pool, variants, rounds=2, advance=no_advance))
        assert list(pool.workers) == ["third"]
    assert {run.details["runs"] for group in runs.values() for run in group} == {3}
    assert len(said) == 3 and "one is restarted in every round" in said[0]


def test_the_worker_whose_turn_is_farthest_is_ended_first() -> None:
    memory = [1e6]
    with make_pool(lambda: memory[0], []) as pool:
        for name in ("one", "other", "third"):
            pool.worker(variant(name))
        spare = 1000.0
        memory[0] = spare + 1  # too little for a fourth beside the three
        closing = pool.workers["third"].close

        def close_and_free() -> None:
            closing()
            memory[0] = 1e6

        pool.workers["third"].close = close_and_free  # type: ignore[method-assign]
        pool.worker(variant("fourth"))
        assert list(pool.workers) == ["one", "other", "fourth"]


def test_a_death_ends_the_other_workers() -> None:
    with pytest.raises(WorkerDiedError, match=r"^other:"), make_pool(lambda: 1e6, []) as pool:
        variants = [variant("one"), variant("other", behaviour="is killed")]
        list(run_interleaved(pool, variants, rounds=1, advance=no_advance))
    processes = [facts["process"] for facts in pool.facts.values()]
    assert len(processes) == 2 and not any(map(is_alive, processes))


def test_a_folder_for_files_of_a_worker_ends_with_it() -> None:
    worker = Worker(
        "one",
        module="profiling.bench.worker",
        specification={
            "recipe": "tests.profiling.bench.behaving_recipe",
            "allocator": "system",
            "memory": None,
            "pinned": False,
            "options": {"behaviour": "works"},
            "workload": {},
        },
        cache_variable="CACHE_OF_TESTS",
    )
    environment = Path(f"/proc/{worker.pid}/environ").read_text().split("\0")
    [folder] = [one[len("CACHE_OF_TESTS=") :] for one in environment if "CACHE_OF_TESTS" in one]
    assert Path(folder).is_dir()
    worker.close()
    assert not Path(folder).exists()
