"""Workers, the pool that keeps them within memory, and busy cores."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import InputError, WorkerDiedError
from profiling.bench.variant import Run, Variant, Workload
from profiling.bench.worker_pool import (
    WorkerPool,
    busy_cores,
    run_interleaved,
    runs_alone,
    variant_worker,
)
from tests.support.processes import child_processes, wait_until_ended

REPOSITORY = Path(__file__).resolve().parents[3]
WORKLOAD = Workload(images=3)


def variant(name: str, *, behaviour: str = "works") -> Variant:
    recipe = "tests.profiling.bench.example_recipe"
    return Variant(name=name, about="", recipe=recipe, options={"behaviour": behaviour})


class FakeWorker:
    """Counts its runs; needs 500 MB at its peak and 100 MB between runs."""

    rss_mb = 100.0

    def __init__(self, variant: Variant, workload: Workload) -> None:
        self.facts: dict[str, Any] = {"images": workload.images}
        self.count = 0
        self.is_closed = False

    def run(self) -> Run:
        self.count += 1
        details = {"runs": float(self.count)}
        return Run(seconds=1.0, page_faults=0, rss_mb=100.0, peak_rss_mb=500.0, details=details)

    def ask(self, question: str) -> dict[str, Any]:
        raise NotImplementedError(question)

    def close(self) -> None:
        self.is_closed = True


def fake_pool(available: Callable[[], float], lines: list[str]) -> WorkerPool:
    return WorkerPool(
        WORKLOAD, warm_up=2, print_line=lines.append, available=available, start=FakeWorker
    )


def is_alive(process: float) -> bool:
    return Path(f"/proc/{int(process)}").exists()


@pytest.mark.slow
def test_worker_measures_its_runs_and_lives_between_them() -> None:
    first, second = runs_alone(variant("one"), WORKLOAD, count=2)
    assert first.details == {"runs": 1, "images": 3} and second.details["runs"] == 2
    assert first.seconds >= 0.001
    assert 0 < first.rss_mb <= first.peak_rss_mb


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behaviour", "kind", "message"),
    [
        ("is killed", WorkerDiedError, "one: .*SIGKILL"),
        ("exits", WorkerDiedError, "one: .*status 7: library: cannot go on"),
        ("raises", WorkerDiedError, "one: .*ArithmeticError: loss nan"),
        ("is not prepared", WorkerDiedError, "one: .*ValueError: no such thing"),
        ("refuses", InputError, r"0\.jpg: damaged image$"),  # which no worker is to blame for
    ],
)
def test_error_names_the_worker_and_the_cause(
    behaviour: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=f"^{message}") as caught:
        worker = variant_worker(variant("one", behaviour=behaviour), WORKLOAD)
        try:
            worker.run()
        finally:
            worker.close()
            assert not is_alive(worker.facts["process"])
    assert "\n" not in str(caught.value)


def test_variants_run_in_turn_after_the_warm_up() -> None:
    notes: list[tuple[int, str]] = []
    variants = [variant("one"), variant("other")]
    with fake_pool(lambda: 1e6, []) as pool:
        rounds = run_interleaved(
            pool, variants, rounds=2, advance=lambda done, note: notes.append((done, note))
        )
        first, second = rounds
        workers = list(pool.workers.values())
        assert pool.facts == {"one": {"images": 3}, "other": {"images": 3}}
    assert all(isinstance(worker, FakeWorker) and worker.is_closed for worker in workers)
    order = [(done, note.split()[-3 if done > 2 else -1]) for done, note in notes]
    assert order == [(0, "one"), (2, "other"), (5, "one"), (6, "other"), (7, "one"), (8, "other")]
    counts = [{name: run.details["runs"] for name, run in runs.items()} for runs in (first, second)]
    assert counts == [{"one": 3, "other": 3}, {"one": 4, "other": 4}]
    with fake_pool(lambda: 1e6, []) as pool:
        [settled] = run_interleaved(pool, variants[:1], rounds=1, advance=print, settling=2)
    assert settled["one"].details["runs"] == 5


def test_without_memory_only_the_running_worker_is_alive() -> None:
    lines: list[str] = []
    variants = [variant(name) for name in ("one", "other", "third")]
    with fake_pool(lambda: 0.0, lines) as pool:
        rounds = list(run_interleaved(pool, variants, rounds=2, advance=print))
        assert list(pool.workers) == ["third"]
    assert {run.details["runs"] for runs in rounds for run in runs.values()} == {3}
    assert len(lines) == 3 and "one is restarted" in lines[0]


def test_worker_whose_turn_is_farthest_is_ended_first() -> None:
    memory = [1e6]
    with fake_pool(lambda: memory[0], []) as pool:
        for name in ("one", "other", "third"):
            pool.worker(variant(name))
        memory[0] = 1001  # too little for a fourth beside the three
        close = pool.workers["third"].close

        def close_and_free() -> None:
            close()
            memory[0] = 1e6

        pool.workers["third"].close = close_and_free  # type: ignore[method-assign]
        pool.worker(variant("fourth"))
        assert list(pool.workers) == ["one", "other", "fourth"]


@pytest.mark.slow
def test_death_of_a_worker_ends_the_others() -> None:
    pool = WorkerPool(WORKLOAD, warm_up=2, print_line=print)
    with pytest.raises(WorkerDiedError, match=r"^other:"), pool:
        variants = [variant("one"), variant("other", behaviour="is killed")]
        list(run_interleaved(pool, variants, rounds=1, advance=print))
    processes = [facts["process"] for facts in pool.facts.values()]
    assert len(processes) == 2 and not any(map(is_alive, processes))


@pytest.mark.slow
def test_cache_folder_is_removed_with_its_worker() -> None:
    worker = variant_worker(replace(variant("one"), cache_variable="CACHE_OF_TESTS"), WORKLOAD)
    environment = Path(f"/proc/{worker.pid}/environ").read_text().split("\0")
    [folder] = [entry[15:] for entry in environment if entry.startswith("CACHE_OF_TESTS=")]
    assert Path(folder).is_dir()
    worker.close()
    assert not Path(folder).exists()


def seconds_used(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_core_is_kept_busy_until_the_context_ends() -> None:
    cpu = max(os.sched_getaffinity(0))
    before = set(child_processes(os.getpid()))
    with busy_cores([cpu]):
        [loop] = set(child_processes(os.getpid())) - before
        assert os.sched_getaffinity(loop) == {cpu}
        used, end = seconds_used(loop), time.monotonic() + 10
        while seconds_used(loop) - used <= 0.05:
            assert time.monotonic() < end
            time.sleep(0.02)
    assert set(child_processes(os.getpid())) == before


@pytest.mark.slow
def test_busy_loop_ends_with_a_killed_benchmark() -> None:
    program = f"""
import time
from profiling.bench.worker_pool import busy_cores
with busy_cores([{min(os.sched_getaffinity(0))}]):
    print("busy", flush=True)
    time.sleep(60)
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE) as benchmark:
        assert benchmark.stdout is not None and benchmark.stdout.readline() == b"busy\n"
        [loop] = child_processes(benchmark.pid)
        benchmark.send_signal(signal.SIGKILL)
    wait_until_ended([loop])
