"""Search for bytes that break a reader, guided by code coverage (atheris)."""

import argparse
import hashlib
import sys
import tempfile
from pathlib import Path

from tests.fuzz.watched import WATCHED

SECONDS_OF_AN_INPUT = 20
MEGABYTES = 4096


def main() -> int:
    """Search until the first finding, whose bytes are stored; return the exit code."""
    arguments = parse_arguments()
    try:
        import atheris
    except ImportError:
        print("error: atheris is not installed; run ./setup.sh fuzz", file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=list(WATCHED[arguments.target])):
        from tests.fuzz.targets import TARGETS
    target = TARGETS[arguments.target]
    corpus = arguments.corpus / arguments.target
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds():
        (corpus / f"seed-{hashlib.sha256(seed).hexdigest()[:16]}").write_bytes(seed)
    findings = arguments.corpus / "found"
    findings.mkdir(exist_ok=True)
    options = [
        f"-max_total_time={arguments.seconds}",
        f"-max_len={target.longest}",
        f"-timeout={SECONDS_OF_AN_INPUT}",
        f"-rss_limit_mb={MEGABYTES}",
        f"-artifact_prefix={findings}/{arguments.target}-",
        "-print_final_stats=1",
        "-verbosity=0",
        "-close_fd_mask=0",
    ]
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        folder = Path(name)
        atheris.Setup([sys.argv[0], *options, str(corpus)], lambda data: target.check(data, folder))
        atheris.Fuzz()
    return 0


def parse_arguments() -> argparse.Namespace:
    """Return the arguments `target`, `seconds` and `corpus`."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=sorted(WATCHED), help="the reader to test")
    parser.add_argument("--seconds", type=int, default=60, help="duration [s] (default: 60)")
    parser.add_argument(
        "--corpus",
        type=Path,
        default=Path("runs/fuzz"),
        metavar="DIR",
        help="folder for inputs that reach new code; those that break a reader are in `found` "
        "(default: runs/fuzz)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
