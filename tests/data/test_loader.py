"""The order of samples, and real DataLoaders with and without worker processes."""

import ctypes
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Never, cast

import pytest
import torch

from common.errors import OUR_BUG, exit_code_for, format_error, killed_worker
from data.dataset import Batch, DetectionDataset, Sample, SampleKey
from data.loader import (
    DetectionLoader,
    EvaluationBatches,
    TrainingBatches,
    evaluation_loader,
    training_keys,
)
from tests.data.samples import one_box_dataset
from tests.support.commands import error_message, run_program
from tests.support.processes import is_running

NUM_IMAGES = 10


def assert_same(first: list[Batch], second: list[Batch]) -> None:
    assert len(first) == len(second)
    for batch, other in zip(first, second, strict=True):
        assert batch.image_ids == other.image_ids and batch.bad_images == other.bad_images
        assert torch.equal(batch.images, other.images)
        for target, other_target in zip(batch.targets, other.targets, strict=True):
            assert torch.equal(target["boxes"], other_target["boxes"])
            assert torch.equal(target["labels"], other_target["labels"])


@pytest.mark.slow
def test_batches_do_not_depend_on_workers(tmp_path: Path) -> None:
    dataset = one_box_dataset(tmp_path, train=True, bad_image_limit=9)
    (tmp_path / "7.png").write_bytes(b"")  # replacements do not depend on workers either
    epochs = []
    for workers in (0, 2):
        batches = TrainingBatches(NUM_IMAGES, batch_size=2, seed=3)
        loader = DetectionLoader(dataset, batches, workers=workers)
        read = []
        for epoch in range(2):
            batches.set_position(epoch, 0)
            read.append(list(loader))
        batches.set_position(1, 3 * 2)
        read.append(list(loader))
        epochs.append(read)
    alone, by_workers = epochs
    for batches_alone, batches_of_workers in zip(alone, by_workers, strict=True):
        assert_same(batches_alone, batches_of_workers)
    assert_same(alone[2], alone[1][3:])
    assert [batch.image_ids for batch in alone[0]] != [batch.image_ids for batch in alone[1]]
    flipped = [t["boxes"][0, 0].item() for batch in alone[0] for t in batch.targets]
    assert len(set(flipped)) == 2  # both are in the comparison


@pytest.fixture
def images(tmp_path: Path) -> DetectionDataset:
    return one_box_dataset(tmp_path, train=False)


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_reads_each_image_once(images: DetectionDataset, workers: int) -> None:
    loader = evaluation_loader(images, batch_size=4, workers=workers)
    loader.start_workers()  # does nothing without workers
    for _ in range(2):
        batches = list(loader)
        assert [len(batch.image_ids) for batch in batches] == [4, 4, 2]
        ids = [image_id for batch in batches for image_id in batch.image_ids]
        assert ids == list(range(100, 100 + NUM_IMAGES))
        for batch in batches:
            assert batch.images.is_contiguous(memory_format=torch.channels_last)
            assert batch.original_sizes[0] == (24, 32)


@pytest.mark.parametrize("workers", [0, 1])
def test_damaged_image_is_reported_in_one_line(tmp_path: Path, workers: int) -> None:
    dataset = one_box_dataset(tmp_path, train=False)
    (tmp_path / "5.png").write_bytes(b"no image")
    loader = evaluation_loader(dataset, batch_size=2, workers=workers)
    text = error_message(lambda: list(loader))
    assert text.startswith(f"{tmp_path / '5.png'}: not an image")
    if workers:  # The collector of garbage would end them, in five seconds
        loader._iterator._shutdown_workers()  # type: ignore[union-attr]


class ProcessDataset(DetectionDataset):
    """Reports the reading process and its number of torch's threads in place of the image's id."""

    def __getitem__(self, key: SampleKey) -> Sample:
        reader: Any = os.getpid(), torch.get_num_threads()
        return super().__getitem__(key)._replace(image_id=reader)


def start(loader: DetectionLoader) -> set[int]:
    """Start the workers; return their ids."""
    others = {child.pid for child in multiprocessing.active_children()}
    loader.start_workers()
    children = {child.pid for child in multiprocessing.active_children()} - others
    return {pid for pid in children if pid}


@pytest.mark.slow
def test_started_workers_read_each_pass_on_one_thread(tmp_path: Path) -> None:
    dataset = one_box_dataset(tmp_path, cls=ProcessDataset, train=False)
    loader = evaluation_loader(dataset, batch_size=4, workers=2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    started = start(loader)
    torch.set_num_threads(before)
    for _ in range(2):
        readers: set[Any] = {reader for batch in loader for reader in batch.image_ids}
        assert readers == {(process, 1) for process in started}
    assert len(started) == 2


def test_unfinished_pass_leaves_nothing_for_the_next(images: DetectionDataset) -> None:
    loader = evaluation_loader(images, batch_size=2, workers=1)
    loader.start_workers()
    next(iter(loader))
    [first, *_] = list(loader)
    assert first.image_ids == [100, 101]


@pytest.mark.slow
def test_workers_ignore_signals_of_other_processes(images: DetectionDataset) -> None:
    loader = evaluation_loader(images, batch_size=2, workers=2)
    workers = start(loader)
    stream = iter(loader)
    batches = [next(stream), next(stream)]  # one of each: both are ready
    for name in ("INT", "TERM", "USR1"):  # from another process: workers obey this one
        subprocess.run(["bash", "-c", f"kill -{name} {' '.join(map(str, workers))}"], check=True)
    batches += list(stream)
    assert [len(batch.images) for batch in batches] == [2] * 5
    assert len(workers) == 2


LEAVES_WORKERS_BEHIND = """
import sys
from pathlib import Path
from data.loader import evaluation_loader
from tests.data.samples import one_box_dataset
loader = evaluation_loader(
    one_box_dataset(Path(sys.argv[1]), train=False), batch_size=2, workers=2
)
loader.start_workers()
sys.modules["loader"] = loader  # alive until the interpreter's end
print("done", flush=True)
"""


@pytest.mark.slow
def test_process_with_live_workers_can_end(tmp_path: Path) -> None:
    done = run_program(sys.executable, "-c", LEAVES_WORKERS_BEHIND, tmp_path, timeout=60)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def start_workers_and_wait(folder: Path, started: Connection) -> None:
    loader = evaluation_loader(one_box_dataset(folder, train=False), batch_size=2, workers=2)
    started.send(start(loader))
    time.sleep(60)


@pytest.mark.slow
def test_workers_end_with_a_killed_process(tmp_path: Path) -> None:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    # A copy of this process, which need not import torch again.
    process = multiprocessing.get_context("fork").Process(
        target=start_workers_and_wait, args=(tmp_path, sender)
    )
    process.start()
    workers = receiver.recv()
    process.kill()
    process.join()
    assert len(workers) == 2
    end = time.monotonic() + 4.5  # torch's own check of the parent runs every five seconds
    while any(map(is_running, workers)):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_workers_run_on_the_reserved_cores(images: DetectionDataset) -> None:
    core = max(os.sched_getaffinity(0))
    loader = evaluation_loader(images, batch_size=5, workers=2, cores=[core])
    workers = start(loader)
    assert len(list(loader)) == len(workers) == 2
    assert all(os.sched_getaffinity(child) == {core} for child in workers)


@pytest.mark.slow
def test_workers_are_copies_of_this_process_whatever_python_starts_otherwise(
    images: DetectionDataset,
) -> None:
    # As in Python 3.14, whose own choice this is.
    default = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("forkserver", force=True)
    try:
        loader = evaluation_loader(images, batch_size=2, workers=1)
        assert loader.multiprocessing_context.get_start_method() == "fork"
    finally:
        multiprocessing.set_start_method(default, force=True)


def test_batches_do_not_depend_on_the_loading_process(tmp_path: Path) -> None:
    dataset = one_box_dataset(tmp_path, train=True)
    batches = TrainingBatches(NUM_IMAGES, batch_size=2, seed=4)
    expected = list(DetectionLoader(dataset, batches))
    loader = DetectionLoader(dataset, batches, workers=1)
    loader.start_workers()
    read: list[Batch] = []
    for in_this_process in (True, False, True, False):
        loader.in_this_process = in_this_process
        batches.set_position(0, 2 * len(read))
        for batch in loader:
            read.append(batch)
            if len(read) in (1, 3, 4):
                break
    assert_same(read, expected)


def indices(batches: list[list[SampleKey]]) -> list[int]:
    return [key.index for batch in batches for key in batch]


def epoch_keys(epoch: int, *, seed: int = 5, first: int = 0) -> list[list[SampleKey]]:
    return list(training_keys(23, seed=seed, epoch=epoch, batch_size=4, first=first))


def test_order_depends_on_seed_and_epoch() -> None:
    batches = epoch_keys(0)
    assert [len(batch) for batch in batches] == [4] * 5
    assert len(set(indices(batches))) == 20 and set(indices(batches)) <= set(range(23))
    assert epoch_keys(3) == epoch_keys(3)
    orders = [indices(epoch_keys(e, seed=s)) for e, s in itertools.product(range(3), range(3))]
    assert len({tuple(order) for order in orders}) == 9
    seeds = [key.seed for epoch in range(4) for batch in epoch_keys(epoch) for key in batch]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("step", [0, 1, 4, 5])
def test_resuming_yields_the_remaining_batches(step: int) -> None:
    assert epoch_keys(2, first=4 * step) == epoch_keys(2)[step:]
    batches = TrainingBatches(23, batch_size=4, seed=5)
    batches.set_position(2, 4 * step)
    assert list(batches) == epoch_keys(2)[step:]
    assert len(batches) == 5


def test_fewer_images_than_a_batch_are_repeated() -> None:
    batches = TrainingBatches(3, batch_size=8, seed=0)
    (batch,) = list(batches)
    assert len(batches) == 1 and len(batch) == 8
    counts = [indices([batch]).count(index) for index in range(3)]
    assert sorted(counts) == [2, 3, 3]
    assert len({key.seed for key in batch}) == 8


def of_ranks(num_images: int, *, ranks: int) -> list[TrainingBatches]:
    options: dict[str, Any] = {"batch_size": 4, "seed": 9, "ranks": ranks}
    return [TrainingBatches(num_images, rank=n, **options) for n in range(ranks)]


@pytest.mark.parametrize(("num_images", "ranks"), [(23, 2), (23, 3), (5, 4), (64, 4)])
def test_ranks_share_one_order(num_images: int, ranks: int) -> None:
    parts = [list(batches) for batches in of_ranks(num_images, ranks=ranks)]
    whole = list(TrainingBatches(num_images, batch_size=4 * ranks, seed=9))
    assert {len(part) for part in parts} == {len(whole)}
    for step, batch in enumerate(whole):
        assert list(itertools.chain(*(part[step] for part in parts))) == batch


@pytest.mark.parametrize("first", [0, 8, 24, 60])
def test_samples_do_not_depend_on_the_number_of_ranks(first: int) -> None:
    """The remaining images and their augmentations are in the same order."""
    [alone], three = of_ranks(64, ranks=1), of_ranks(64, ranks=3)
    for batches in (alone, *three):
        batches.set_position(1, first)
    remaining = list(itertools.chain(*alone))
    steps = list(zip(*three, strict=True))
    assert len(steps) == (64 - first) // 12
    read = list(itertools.chain(*itertools.chain(*steps)))
    assert read == remaining[: len(read)]


@pytest.mark.parametrize(
    ("num_images", "ranks", "remaining"),
    [(10, 3, 3), (24781, 8, 8), (2, 4, 4), (16, 4, 4), (10, 4, 3), (4, 4, 1)],
)
def test_evaluation_of_ranks_has_no_padding(num_images: int, ranks: int, remaining: int) -> None:
    parts = [
        EvaluationBatches(num_images, batch_size=4, rank=rank, ranks=ranks) for rank in range(ranks)
    ]
    if remaining < ranks:
        del parts[1]  # its rank ended: the others share its images
        parts = parts[:remaining]
        for rank, part in enumerate(parts):
            part.share(rank=rank, ranks=remaining)
    read = [indices(list(part)) for part in parts]
    assert list(itertools.chain(*read)) == list(range(num_images))
    assert max(map(len, read)) - min(map(len, read)) <= 1
    assert [len(part) for part in parts] == [len(list(part)) for part in parts]


SPLITS = [(3, 1, 2), (1, 1, 4), (2, 2, 2)]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("num_images", [23, 64, 4])
def test_samples_do_not_depend_on_the_split_of_a_batch(
    num_images: int, split: tuple[int, ...]
) -> None:
    shared = {"batch_size": 2, "seed": 9, "ranks": 3}
    even, parts = (
        [list(TrainingBatches(num_images, rank=rank, split=sizes, **shared)) for rank in range(3)]
        for sizes in ((), split)
    )
    assert [{len(batch) for batch in part} for part in parts] == [{count} for count in split]
    for batches, uneven in zip(zip(*even, strict=True), zip(*parts, strict=True), strict=True):
        assert list(itertools.chain(*uneven)) == list(itertools.chain(*batches))
    if split == (2, 2, 2):
        assert parts == even


@pytest.mark.parametrize("split", SPLITS)
def test_split_applies_from_the_next_iteration(split: tuple[int, ...]) -> None:
    batches = TrainingBatches(24, batch_size=2, seed=9, rank=2, ranks=3)
    begun = iter(batches)
    batches.split = split
    batches.set_position(1, 12)
    expected = TrainingBatches(24, batch_size=2, seed=9, rank=2, ranks=3, split=split)
    expected.set_position(1, 12)
    assert list(batches) == list(expected) and len(batches) == 4
    assert {len(batch) for batch in begun} == {2}


@pytest.mark.parametrize("first", [0, 16])
@pytest.mark.parametrize("rank", [0, 1])
def test_chosen_batches(rank: int, first: int) -> None:
    batches = TrainingBatches(67, batch_size=4, seed=9, rank=rank, ranks=2)
    batches.set_position(3, first)
    keys = training_keys(67, seed=9, epoch=3, batch_size=4, first=first, rank=rank, ranks=2)
    expected = list(keys)
    batches.chosen = iter([4, 0, 5])
    assert list(batches) == [expected[number] for number in (4, 0, 5)]
    for chosen in (range(len(expected)), None):
        batches.chosen = chosen
        assert list(batches) == expected


def test_batches_are_chosen_lazily() -> None:
    batches, numbers = TrainingBatches(67, batch_size=4, seed=9), iter(range(9))
    batches.chosen = numbers
    next(iter(batches))
    assert list(numbers) == list(range(1, 9))


KILLED = "DataLoader worker (pid 123) is killed by signal: Killed. "
FULL = (
    "DataLoader worker (pid 123) is killed by signal: Bus error. It is possible that dataloader's "
    "workers are out of shared memory. Please try to raise your shared memory limit."
)


@pytest.mark.parametrize(
    ("message", "cause", "fix"),
    [
        (KILLED, "SIGKILL", "data.workers"),
        (FULL, "SIGBUS", "/dev/shm"),
        ("DataLoader worker (pid(s) 123, 124) exited unexpectedly", "unexpectedly", "data.workers"),
    ],
)
def test_killed_worker_is_reported_with_cause_and_fix(message: str, cause: str, fix: str) -> None:
    error = RuntimeError(message)
    line = format_error(error)
    assert line is not None and line.startswith("error: ") and "\n" not in line
    assert "process 123 " in line and cause in line and fix in line
    assert exit_code_for(error) == OUR_BUG


def test_only_errors_of_killed_workers_are_reported() -> None:
    error = RuntimeError("DataLoader worker (pid(s) 123) exited unexpectedly")
    error.__cause__ = RuntimeError(KILLED)
    assert "SIGKILL" in (killed_worker(error) or "")
    for other in (RuntimeError("CUDA"), ValueError(KILLED)):
        assert killed_worker(other) is None and format_error(other) is None


def test_killed_worker_is_recognized_while_arguments_of_a_kernel_are_converted() -> None:
    class Interrupted:
        @classmethod
        def from_param(cls, value: object) -> Never:
            raise RuntimeError(KILLED)

    function = ctypes.CDLL(None).getpid
    function.argtypes = [cast(Any, Interrupted)]
    with pytest.raises(ctypes.ArgumentError) as raised:
        function(0)
    assert "process 123 " in (killed_worker(raised.value) or "")


def killed_while_read(process: int) -> Never:
    os.kill(process, signal.SIGKILL)
    raise ConnectionResetError


class SampleOfProcess:
    """Kills its loading process while it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[int], Never], tuple[int]]:
        return killed_while_read, (os.getpid(),)


class UnreadableSamples:
    def __getitem__(self, key: int) -> SampleOfProcess:
        return SampleOfProcess()


def test_worker_killed_while_its_batch_is_read() -> None:
    loader = DetectionLoader(UnreadableSamples(), [[0]], workers=1)  # type: ignore[arg-type]
    loader.collate_fn = list
    with pytest.raises(RuntimeError) as raised:
        next(iter(loader))
    assert "SIGKILL" in (killed_worker(raised.value) or "")
