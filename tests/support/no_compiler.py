"""Kernels as on a machine without a C++ compiler."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from common.native import load_library
from retinanet.engine.kernel_calls import Kernels


@contextmanager
def no_compiler(
    monkeypatch: pytest.MonkeyPatch, kernels: Kernels, forget: Callable[[], None]
) -> Iterator[None]:
    """Make kernels impossible to compile; `forget` clears the cache of their caller."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(kernels, "_loaded", {})
    load_library.cache_clear()
    forget()
    yield
    load_library.cache_clear()
    forget()
