"""Real logs for tests."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[4] / "shared" / "logs"
FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "onednn"


def shared_logs() -> list[Path]:
    """Return real logs beside the repository; without them the test is skipped."""
    logs = sorted(SHARED.glob("*.log"))
    if not logs:
        pytest.skip("no real oneDNN logs at ../shared/logs")
    return logs


def write_log(file: Path, *lines: str) -> Path:
    """Write a log of these lines; return its path."""
    file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return file


def plain_sum(file: Path) -> float:
    """Return the sum of the last fields of all executions, without the parser."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return sum(float(line.rsplit(",", 1)[1]) for line in lines if ",exec," in line)
