"""Seconds that something spends inside oneDNN's primitives, from its own verbose output."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from torch.backends import mkldnn

from profiling.bench.onednn_log import seconds_by_primitive


def onednn_seconds(run: Callable[[], object]) -> dict[str, float]:
    """Run once; see `seconds_by_primitive` for what comes back."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "onednn.log"
        standard_output = os.dup(1)
        # oneDNN prints from C to descriptor 1, below Python's sys.stdout.
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
        try:
            with verbose():
                run()
        finally:
            os.dup2(standard_output, 1)
            os.close(standard_output)
        with log.open(encoding="utf-8", errors="replace") as lines:
            return seconds_by_primitive(lines)


@contextmanager
def verbose() -> Iterator[None]:
    """Let oneDNN print every primitive: torch's, and the one that IPEX brings if it is loaded."""
    with ExitStack() as stack:
        stack.enter_context(mkldnn.verbose(mkldnn.VERBOSE_ON))
        ipex = sys.modules.get("intel_extension_for_pytorch")
        if ipex is not None:
            stack.enter_context(ipex.verbose(ipex.VERBOSE_ON))
        yield
