"""Problems from lines of real logs."""

from profiling.onednn_log.parse import head_of, meaning_of
from profiling.onednn_log.work import Problem


def problem(line: str) -> Problem:
    """A problem from what follows `onednn_verbose,` and `exec,` without its time."""
    found = meaning_of(head_of(f"{line},0.5")).problem
    assert found is not None
    return found


def v3(line: str) -> Problem:
    """A problem as oneDNN 3 writes it, from `cpu,` on."""
    return problem(f"v1,primitive,exec,{line}")
