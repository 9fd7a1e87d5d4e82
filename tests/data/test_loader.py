"""Real DataLoaders, with and without worker processes."""

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from common.errors import InputError
from data.annotations import ClassMap
from data.coco_json import read_annotations
from data.dataset import Batch, DetectionDataset, Sample, SampleKey
from data.loader import DetectionLoader, TrainingBatches, evaluation_loader

NUM_IMAGES = 10
REPOSITORY = Path(__file__).resolve().parents[2]


def make(folder: Path, *, train: bool) -> DetectionDataset:
    random = np.random.default_rng(0)
    images, boxes = [], []
    for index in range(NUM_IMAGES):
        pixels = random.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
        images.append({"id": 100 + index, "file_name": f"{index}.png", "width": 32, "height": 24})
        box = {"id": index + 1, "image_id": 100 + index, "category_id": 1, "bbox": [2, 3, 8, 9]}
        boxes.append(box)
    content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "one"}]}
    (folder / "labels.json").write_text(json.dumps(content))
    annotations = read_annotations(folder / "labels.json")
    classes = ClassMap.contiguous(annotations.category_ids, annotations.category_names)
    return DetectionDataset(annotations, folder, classes, image_size=32, train=train)


def assert_same(first: list[Batch], second: list[Batch]) -> None:
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert one.image_ids == other.image_ids
        assert torch.equal(one.images, other.images)
        for target, other_target in zip(one.targets, other.targets, strict=True):
            assert torch.equal(target["boxes"], other_target["boxes"])
            assert torch.equal(target["labels"], other_target["labels"])


def test_order_and_augmentation_do_not_depend_on_workers(tmp_path: Path) -> None:
    dataset = make(tmp_path, train=True)
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
    for one, other in zip(alone, by_workers, strict=True):
        assert_same(one, other)
    assert_same(alone[2], alone[1][3:])
    assert [batch.image_ids for batch in alone[0]] != [batch.image_ids for batch in alone[1]]
    flipped = [t["boxes"][0, 0].item() for batch in alone[0] for t in batch.targets]
    assert len(set(flipped)) == 2  # both kinds occur, so the comparison means something


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_reads_each_image_exactly_once(tmp_path: Path, workers: int) -> None:
    loader = evaluation_loader(make(tmp_path, train=False), batch_size=4, workers=workers)
    for _ in range(2):
        batches = list(loader)
        assert [len(batch.image_ids) for batch in batches] == [4, 4, 2]
        ids = [image_id for batch in batches for image_id in batch.image_ids]
        assert ids == list(range(100, 100 + NUM_IMAGES))
        for batch in batches:
            assert batch.images.is_contiguous(memory_format=torch.channels_last)
            assert batch.original_sizes[0] == (24, 32)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_image_is_reported_in_one_line(tmp_path: Path, workers: int) -> None:
    dataset = make(tmp_path, train=False)
    (tmp_path / "5.png").write_bytes(b"no image")
    with pytest.raises(InputError) as caught:
        list(evaluation_loader(dataset, batch_size=2, workers=workers))
    text = str(caught.value)
    assert "\n" not in text and text.startswith(f"{tmp_path / '5.png'}: not an image")


class ThreadsDataset(DetectionDataset):
    """Reports the number of torch's threads in place of the image's id."""

    def __getitem__(self, key: SampleKey) -> Sample:
        return super().__getitem__(key)._replace(image_id=torch.get_num_threads())


def test_workers_run_on_one_thread(tmp_path: Path) -> None:
    plain = make(tmp_path, train=False)
    dataset = ThreadsDataset(
        plain.annotations, tmp_path, plain.class_map, image_size=32, train=False
    )
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        batches = list(evaluation_loader(dataset, batch_size=5, workers=1))
    finally:
        torch.set_num_threads(before)
    assert [batch.image_ids for batch in batches] == [[1] * 5, [1] * 5]


def processes() -> set[int]:
    return {child.pid for child in multiprocessing.active_children() if child.pid}


class ProcessDataset(DetectionDataset):
    """Reports the id of the reading process in place of the image's id."""

    def __getitem__(self, key: SampleKey) -> Sample:
        return super().__getitem__(key)._replace(image_id=os.getpid())


def test_workers_start_when_told_and_then_read_everything_in_each_pass(tmp_path: Path) -> None:
    plain = make(tmp_path, train=False)
    dataset = ProcessDataset(
        plain.annotations, tmp_path, plain.class_map, image_size=32, train=False
    )
    loader = evaluation_loader(dataset, batch_size=4, workers=2)
    others = processes()
    loader.start_workers()
    started = processes() - others
    for _ in range(2):
        batches = list(loader)
        assert [len(batch.images) for batch in batches] == [4, 4, 2]
        assert {pid for batch in batches for pid in batch.image_ids} == started
    assert len(started) == 2


def test_a_pass_that_was_not_finished_leaves_nothing_for_the_next(tmp_path: Path) -> None:
    loader = evaluation_loader(make(tmp_path, train=False), batch_size=2, workers=1)
    loader.start_workers()
    next(iter(loader))
    [first, *_] = list(loader)
    assert first.image_ids == [100, 101]


def test_starting_workers_is_nothing_where_there_are_none(tmp_path: Path) -> None:
    loader = evaluation_loader(make(tmp_path, train=False), batch_size=5)
    loader.start_workers()
    assert [len(batch.images) for batch in loader] == [5, 5]


def test_workers_leave_signals_to_the_training_process(tmp_path: Path) -> None:
    loader = evaluation_loader(make(tmp_path, train=False), batch_size=2, workers=2)
    others = processes()
    stream = iter(loader)
    batches = [next(stream), next(stream)]  # one of each: both are ready
    workers = processes() - others
    for name in ("INT", "TERM", "USR1"):  # from another process: workers obey this one
        subprocess.run(["bash", "-c", f"kill -{name} {' '.join(map(str, workers))}"], check=True)
    batches += list(stream)
    assert [len(batch.images) for batch in batches] == [2] * 5
    assert len(workers) == 2


LEAVES_WORKERS_BEHIND = """
import sys
from pathlib import Path
sys.path.insert(0, str(Path("tests/data").resolve()))
from test_loader import evaluation_loader, make
loader = evaluation_loader(make(Path(sys.argv[1]), train=False), batch_size=2, workers=2)
loader.start_workers()
kept = sys.modules["kept"] = loader  # alive until the interpreter's end
print("done", flush=True)
"""


def test_a_process_ends_though_its_workers_live(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LEAVES_WORKERS_BEHIND, str(tmp_path)]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_workers_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    program = LEAVES_WORKERS_BEHIND + "import time; time.sleep(60)"
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.kill()
    assert len(children) >= 2
    end = time.monotonic() + 3  # torch's own look at the parent comes after five seconds
    while any(Path(f"/proc/{child}/cmdline").exists() for child in children):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_loaders_know_their_length(tmp_path: Path) -> None:
    batches = TrainingBatches(NUM_IMAGES, batch_size=3, seed=0)
    assert len(DetectionLoader(make(tmp_path, train=True), batches)) == 3
    assert len(evaluation_loader(make(tmp_path, train=False), batch_size=3)) == 4


def test_workers_run_on_the_cores_that_are_kept_for_them(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    dataset = make(tmp_path, train=False)
    loader = evaluation_loader(dataset, batch_size=5, workers=2, cores=[core])
    others = processes()  # of tests before, in this process
    loader.start_workers()
    own = processes() - others
    assert len(list(loader)) == 2
    assert len(own) == 2
    assert all(os.sched_getaffinity(child) == {core} for child in own)


def test_loading_moves_between_this_process_and_another_without_a_difference(
    tmp_path: Path,
) -> None:
    dataset = make(tmp_path, train=True)
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
