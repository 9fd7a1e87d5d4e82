from pathlib import Path

from common.machine import image_commit


def test_an_image_says_from_which_commit_it_was_made(tmp_path: Path) -> None:
    file = tmp_path / "COMMIT"
    assert image_commit(file) is None
    file.write_text("unknown\n")
    assert image_commit(file) is None
    file.write_text("0123456789abcdef0123456789abcdef01234567\n")
    assert image_commit(file) == "0123456789abcdef0123456789abcdef01234567"
