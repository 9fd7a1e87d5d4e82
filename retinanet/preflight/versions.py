"""Whether the packages that are installed are those that requirements.txt pins."""

from collections.abc import Mapping
from pathlib import Path

from retinanet.preflight.finding import Finding, ok, warning
from retinanet.versions import installed_versions

SUBJECT = "versions"
PINS = Path(__file__).resolve().parents[2] / "requirements.txt"
NOT_NEEDED = ("nvidia-", "triton")
"""CUDA's, which CPU-only builds of torch come without."""
NAMED = 4
FIX = "run `make setup`, or go on where you know that they work together"


def check_versions(pins: Path = PINS) -> Finding:
    """Hold every pinned package against what is installed."""
    if not pins.is_file():
        return ok(SUBJECT, f"{pins} is not there to compare with")
    wanted = read_pins(pins.read_text(encoding="utf-8"))
    found = installed_versions(wanted)
    others = differences(wanted, found)
    if not others:
        return ok(SUBJECT, f"{len(found)} packages, all as {pins.name} pins them")
    named = ", ".join(others[:NAMED])
    more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
    return warning(SUBJECT, f"not as {pins.name} pins them: {named}{more}", fix=FIX)


def read_pins(text: str) -> dict[str, str]:
    """Versions by name, of lines such as `numpy==2.4.6   # why`."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    pairs = (line.partition("==") for line in lines if "==" in line)
    return {name.strip(): version.strip() for name, _, version in pairs}


def differences(wanted: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """What is missing or of another version, in words; a build's own mark (`+cpu`) is none."""
    words = []
    for name, version in wanted.items():
        if name not in found:
            if not name.startswith(NOT_NEEDED):
                words.append(f"{name} {version} is missing")
        elif found[name].partition("+")[0] != version.partition("+")[0]:
            words.append(f"{name} is {found[name]}, pinned {version}")
    return words
