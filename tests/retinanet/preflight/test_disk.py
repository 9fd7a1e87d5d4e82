from pathlib import Path

import pytest

from retinanet.preflight.findings import Finding
from retinanet.preflight.run import DiskNeed, FreeSpace, check_disk, free_space, size_of
from tests.support.mounts import needs_root, tmpfs

MB = 1_000_000
NEED = DiskNeed(checkpoint=400 * MB, checkpoints=5, rest=50 * MB)


def checked(
    free: int, *, files: int | None = None, held: int = 0, freed: int = 0, need: DiskNeed = NEED
) -> Finding:
    space = FreeSpace(size=free, files=files)
    return check_disk(Path("/disk"), free=space, need=need, held=held, freed=freed)


@pytest.mark.parametrize(
    ("free", "level"),
    [(2050 * MB, "ok"), (2049 * MB, "warning"), (400 * MB, "warning"), (399 * MB, "failure")],
)
def test_all_checkpoints_should_fit_and_one_must(free: int, level: str) -> None:
    assert checked(free).level == level


def test_what_the_run_holds_already_is_not_needed_again() -> None:
    assert checked(450 * MB, held=1600 * MB).level == "ok"
    assert checked(399 * MB, held=800 * MB).level == "warning"  # the last good one stays


def test_what_overwrite_removes_becomes_free() -> None:
    found = checked(50 * MB, freed=2000 * MB)
    assert found.level == "ok" and "with the 2.0 GB that --overwrite removes" in found.found


def test_too_few_inodes_are_a_warning() -> None:
    found = checked(9000 * MB, files=12)
    assert found.level == "warning" and "only 12 more files (inodes)" in found.found
    assert checked(9000 * MB, files=25).level == "ok"


@needs_root
def test_a_small_file_system_is_measured(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", "size=8m", "nr_inodes=40") as folder:
        before = free_space(folder)
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints" / "model.safetensors").write_bytes(bytes(3 << 20))
        after = free_space(folder)
        assert (before.size, before.size - after.size) == (8 << 20, 3 << 20)
        assert before.files is not None and after.files == before.files - 2
        assert size_of(folder / "checkpoints") == 3 << 20
        need = DiskNeed(checkpoint=6 << 20, checkpoints=5, rest=0)
        found = check_disk(folder, free=after, need=need, held=0, freed=0)
        assert found.line == (
            f"disk space: a checkpoint takes 6.3 MB, and only 5.2 MB are free on the file system "
            f"of {folder}; free some, or set run.root to another file system"
        )
        freed = size_of(folder / "checkpoints")
        assert check_disk(folder, free=after, need=need, held=0, freed=freed).level == "warning"
