from pathlib import Path

from common.machine import commit_of_image


def test_an_image_says_from_which_commit_it_was_made(tmp_path: Path) -> None:
    file = tmp_path / "COMMIT"
    assert commit_of_image(file) is None
    file.write_text("unknown\n")
    assert commit_of_image(file) is None
    file.write_text("0123456789abcdef0123456789abcdef01234567\n")
    assert commit_of_image(file) == "0123456789abcdef0123456789abcdef01234567"
