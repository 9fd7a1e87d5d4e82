"""Whether the allocator that is asked for is installed."""

from launch.pinning.preload import ALLOCATORS, is_loaded, library_of
from retinanet.errors import InputError
from retinanet.preflight.finding import Finding, failure, ok

SUBJECT = "allocator"


def check_allocator(name: str) -> Finding:
    """Look for the library of `tcmalloc` or `jemalloc`; the C library is always there."""
    if name not in ALLOCATORS:
        return ok(SUBJECT, f"{name}: the C library's")
    if is_loaded(ALLOCATORS[name]):
        return ok(SUBJECT, f"{name} is loaded")
    try:
        return ok(SUBJECT, f"{name}: {library_of(name, started_again=False)}")
    except InputError as error:
        what, _, fix = str(error).partition("; ")
        return failure(SUBJECT, what, fix=fix)
