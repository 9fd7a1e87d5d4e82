"""oneDNN's log switched on for a while."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch.backends import mkldnn


@contextmanager
def verbose() -> Iterator[None]:
    """Let oneDNN print every primitive: torch's, and the one that IPEX brings if it is loaded."""
    with ExitStack() as stack:
        stack.enter_context(mkldnn.verbose(mkldnn.VERBOSE_ON))
        ipex = sys.modules.get("intel_extension_for_pytorch")
        if ipex is not None:
            stack.enter_context(ipex.verbose(ipex.VERBOSE_ON))
        yield
