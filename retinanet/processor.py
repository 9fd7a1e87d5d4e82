"""What the processor is called, and what it computes in."""

import platform
from collections.abc import Collection
from functools import cache
from pathlib import Path

BF16_FLAGS = ("amx_bf16", "avx512_bf16", "avx_ne_convert", "bf16")
"""What /proc/cpuinfo calls instructions for BF16: Intel's, AMD's, and ARM's."""


FLAGS = ("flags", "Features")
"""Of their line: on x86, on ARM."""


def cpu_flags() -> set[str]:
    """What the processor can do, in /proc/cpuinfo's names, such as `avx512_bf16`; Linux only."""
    return set(cpu_field(FLAGS).split())


def processor_name() -> str:
    """The processor's name as Linux gives it, else as Python does."""
    return cpu_field(("model name",)) or platform.processor()


@cache
def cpu_field(names: tuple[str, ...]) -> str:
    """Of /proc/cpuinfo the first line with one of the names; empty where there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    named = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in named if name.strip() in names), "")


def bf16_flag(flags: Collection[str]) -> str | None:
    """The processor's instructions for BF16; None where it has none."""
    return next((flag for flag in BF16_FLAGS if flag in flags), None)


def fastest_precision(flags: Collection[str] | None = None) -> str:
    """`bf16` where the processor has instructions for it; without, a step takes many times as long.

    `flags`: the processor's; None: this one's.
    """
    return "bf16" if bf16_flag(cpu_flags() if flags is None else flags) else "float32"
