from importlib.metadata import version
from pathlib import Path

from retinanet.preflight.host import check_versions, differences


def test_another_version_and_a_missing_package_are_named() -> None:
    wanted = {"torch": "2.8.0", "numpy": "2.4.6", "rich": "15.0.0", "triton": "3.4.0"}
    found = {"torch": "2.8.0+cpu", "numpy": "1.26.4"}
    assert differences(wanted, found) == ["numpy is 1.26.4, pinned 2.4.6", "rich 15.0.0 is missing"]


def test_a_package_of_this_environment_is_compared(tmp_path: Path) -> None:
    pins = tmp_path / "requirements.txt"
    pins.write_text(f"# all\nnumpy=={version('numpy')}   # arrays\n\nrich==0.1\n")
    found = check_versions(pins)
    assert found.level == "warning"
    assert found.found == (
        f"not as requirements.txt pins them: rich is {version('rich')}, pinned 0.1"
    )
    pins.write_text(f"numpy=={version('numpy')}\n")
    assert check_versions(pins).level == "ok"
