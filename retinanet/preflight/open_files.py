"""Whether a process may open as many files as its loading processes hand over tensors."""

import resource

from retinanet.preflight.finding import Finding, ok, warning

SUBJECT = "open files"
OWN = 100
"""Files, sockets and pipes that a rank has open beside them."""


def check_open_files(tensors: int, *, limit: int | None = None) -> Finding:
    """Hold the open files of a rank against its limit.

    Args:
        tensors: That loading processes may have handed over, each a file.
        limit: Of a process; None: this one's.
    """
    if limit is None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return ok(SUBJECT, "no limit")
    wanted = OWN + tensors
    if wanted <= limit:
        return ok(SUBJECT, f"{limit} are allowed, a rank has up to {wanted}")
    found = f"{limit} are allowed, and a rank may have {wanted}: loaded tensors are files"
    return warning(SUBJECT, found, fix=f"ulimit -n {2 * wanted}, or lower data.workers")
