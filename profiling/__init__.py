"""Measurements: profiles of training, benchmarks, and ablations."""

from pkgutil import extend_path

# From Python 3.15 on, the standard library has a package of this name too (PEP 799), which
# `cProfile` imports, and torch imports that: its `tracing` and `sampling` stay importable.
__path__ = extend_path(__path__, __name__)
