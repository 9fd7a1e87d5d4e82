"""Cores that something else keeps busy while a benchmark runs on them."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

LOOP = """
import os, sys
print(flush=True)
while os.getppid() == int(sys.argv[1]):
    sum(range(100_000))
"""
"""A busy loop that ends with the process that started it, however that ends."""


@contextmanager
def busy_cores(cpus: Sequence[int]) -> Iterator[None]:
    """Keep each of these CPUs busy while the context lasts, by a process bound to it."""
    with ExitStack() as loops:
        for cpu in cpus:
            loops.enter_context(busy_core(cpu))
        yield


@contextmanager
def busy_core(cpu: int) -> Iterator[None]:
    """One of them; it is busy when the context begins."""
    command = [sys.executable, "-I", "-c", LOOP, str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0) as process:
        try:
            os.sched_setaffinity(process.pid, {cpu})
            assert process.stdout is not None
            process.stdout.readline()
            yield
        finally:
            process.kill()
