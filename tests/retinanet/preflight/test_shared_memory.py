"""/dev/shm as containers have it: small, read-only, or not there at all."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from retinanet.config import Config
from retinanet.config_file import config_from_tree
from retinanet.preflight.host import (
    bytes_of_batch,
    check_shared_memory,
    docker_size,
    waiting_batches,
)
from tests.support.mounts import needs_root, tmpfs

REPOSITORY = Path(__file__).resolve().parents[3]


def config(**changes: object) -> Config:
    data = {"workers": 2, "image_size": 800, **changes}
    training, evaluation = {"batch_size": 2}, {"batch_size": 8}
    tree = {"run": {"name": "tried"}, "data": data, "training": training, "evaluation": evaluation}
    return config_from_tree(tree, "test")


def test_every_batch_that_may_wait_is_counted() -> None:
    image = 3 * 800 * 800 + 2 * 4096
    # Two processes are two batches ahead each; a step holds one more, and so does an evaluation.
    size = partial(bytes_of_batch, image_size=800)
    assert waiting_batches(config(), size) == (5 * 2 + 5 * 8) * image
    assert waiting_batches(config(workers=0), size) == 0


@needs_root
def test_dockers_64_mb_are_told_with_the_size_that_is_needed(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "shm", "size=64m") as folder:
        found = check_shared_memory(config(), ranks=2, folder=folder)
    assert found.level == "warning"
    assert found.found == (
        "67 MB of 67 MB are free, and loading processes of 2 ranks hand over up to 193 MB at a time"
    )
    assert found.fix == "docker run --shm-size=512m (or --ipc=host), or data.workers=0"


@needs_root
def test_room_for_not_one_batch_is_a_failure_where_processes_will_load(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "shm", "size=4m") as folder:
        certain = check_shared_memory(config(), ranks=1, folder=folder)
        likely = check_shared_memory(config(workers="auto"), ranks=1, folder=folder)
    assert (certain.level, likely.level) == ("failure", "warning")


def test_a_mount_that_is_missing_matters_only_to_loading_processes(tmp_path: Path) -> None:
    missing = tmp_path / "shm"
    found = check_shared_memory(config(workers="auto"), ranks=1, folder=missing)
    assert found.level == "failure" and "No such file or directory" in found.found
    alone = check_shared_memory(config(workers=0), ranks=1, folder=missing)
    assert alone.level == "ok"


@needs_root
@pytest.mark.parametrize(
    ("mount", "level"),
    [("-o size=1m", "warning"), ("-o ro", "failure"), ("-o size=1g", "ok")],
)
def test_the_real_mount_is_looked_at(mount: str, level: str) -> None:
    program = (
        "from retinanet.config_file import load_config;"
        "from retinanet.preflight.host import check_shared_memory;"
        "config = load_config('demo', ['data.image_size=800', 'training.batch_size=2']);"
        "print(check_shared_memory(config, ranks=1).level)"
    )
    words = f'mount -t tmpfs {mount} none /dev/shm && exec "$0" -c "$1"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", words, sys.executable, program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mount namespace of its own here: {done.stderr.strip()}")
    assert (done.stdout.strip(), done.stderr) == (level, "")


def test_docker_is_given_a_power_of_two() -> None:
    assert [docker_size(size) for size in (1, 65 << 20, 1 << 30, 3 << 30)] == [
        "64m",
        "128m",
        "1g",
        "4g",
    ]
