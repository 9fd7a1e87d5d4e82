from pathlib import Path

from retinanet.preflight.run import check_writing
from tests.support.mounts import needs_root, tmpfs


def test_a_folder_that_is_not_there_is_tried_in_the_nearest_one_above(tmp_path: Path) -> None:
    found = check_writing(tmp_path / "runs" / "demo")
    assert found.level == "ok" and str(tmp_path) in found.found
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    found = check_writing(tmp_path / "runs" / "demo")
    assert found.level == "failure"
    assert found.line == f"writing: {tmp_path / 'runs'}: is a file; set run.name or run.root"


@needs_root
def test_root_cannot_write_where_the_file_system_is_read_only(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "mounted", "ro") as folder:
        found = check_writing(folder / "runs" / "demo")
    assert found.level == "failure"
    assert found.found == f"{folder}: cannot be written: Read-only file system"


@needs_root
def test_a_folder_of_an_earlier_run_may_be_read_only_alone(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "checkpoints", "ro") as folder:
        found = check_writing(tmp_path)
    assert (found.level, found.found.partition(":")[0]) == ("failure", str(folder))
