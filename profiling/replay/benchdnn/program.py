"""Which benchdnn, and what it is."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from profiling.onednn_log.log import OneDnnLog
from profiling.onednn_log.read import read_logs
from profiling.replay.benchdnn.process import run_benchdnn
from profiling.replay.replay import Conditions
from retinanet.errors import InputError

SMALLEST = ("--eltwise", "--alpha=0", "--beta=0", "--alg=relu", "1")
"""A problem that every version of benchdnn runs at once."""

PATIENCE = 120.0
HOW_TO_GET_ONE = "build oneDNN's target `benchdnn`, as docs/profiling.md describes"


@dataclass(frozen=True, slots=True)
class Benchdnn:
    """A benchdnn that runs here."""

    path: Path
    version: str
    """Of its oneDNN: `3.7.2`."""
    instruction_set: str
    """As the library calls it."""
    has_cold_cache: bool
    """Whether it can drive data out of the caches between runs."""

    @property
    def major(self) -> int:
        """Of its version, which says what language it speaks."""
        return int(self.version.partition(".")[0])


def find_benchdnn(path: Path | None) -> Path | None:
    """The program that was named, or that PATH has; None where there is none.

    Raises:
        InputError: The one that was named is not there, or is no program.
    """
    if path is None:
        found = shutil.which("benchdnn")
        return Path(found) if found else None
    named = path / "benchdnn" if path.is_dir() else path
    found = shutil.which(str(named.absolute()))
    if found is None:
        why = "is not there" if not named.exists() else "is not a program that can be run"
        raise InputError(f"--benchdnn: {named} {why}; {HOW_TO_GET_ONE}")
    return Path(found)


def ask_benchdnn(path: Path, conditions: Conditions) -> Benchdnn:
    """Let it run its smallest problem, and read what oneDNN's log says of it.

    Raises:
        InputError: It does not run, or its library writes no log.
    """
    with tempfile.TemporaryDirectory(prefix="benchdnn-") as folder:
        output = Path(folder, "output")
        log = first_log(path, output, conditions)
        listing = (*SMALLEST[:1], "--mode=L", "--cold-cache=all", *SMALLEST[1:])
        run_benchdnn(path, listing, output, conditions=conditions, patience=PATIENCE)
        has_cold_cache = "LISTED" in output.read_text(encoding="utf-8", errors="replace")
    return Benchdnn(
        path=path,
        version=log.versions[0],
        instruction_set=log.instruction_sets[0] if log.instruction_sets else "",
        has_cold_cache=has_cold_cache,
    )


def first_log(path: Path, output: Path, conditions: Conditions) -> OneDnnLog:
    """What oneDNN writes while benchdnn runs its smallest problem.

    Raises:
        InputError: It does not run, or its library writes no log.
    """
    try:
        ended = run_benchdnn(path, SMALLEST, output, conditions=conditions, patience=PATIENCE)
    except OSError as error:
        raise InputError(f"{path}: cannot be started: {error.strerror}") from error
    if ended.status != 0:
        raise InputError(f"{path}: does not run: {ended.why}")
    try:
        log = read_logs([output])
    except InputError:
        raise InputError(
            f"{path}: is no benchdnn, or one whose oneDNN writes no log (build it with "
            "ONEDNN_VERBOSE=ON, which is the default)"
        ) from None
    if not log.versions:
        raise InputError(f"{path}: its oneDNN does not tell its version")
    return log
