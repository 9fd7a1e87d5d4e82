"""Where the tests of logs get them."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[4] / "shared" / "logs"


def shared_logs() -> list[Path]:
    """Real logs beside the repository; a test without them is skipped, and says so."""
    found = sorted(SHARED.glob("*.log"))
    if not found:
        pytest.skip("no real oneDNN logs at ../shared/logs")
    return found


def plain_sum(file: Path) -> float:
    """The last field of every execution, added up without any of our code."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return sum(float(line.rsplit(",", 1)[1]) for line in lines if ",exec," in line)
