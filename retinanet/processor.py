"""What the processor computes in."""

from collections.abc import Collection
from pathlib import Path

BF16_FLAGS = ("amx_bf16", "avx512_bf16", "avx_ne_convert", "bf16")
"""What /proc/cpuinfo calls instructions for BF16: Intel's, AMD's, and ARM's."""


def cpu_flags() -> set[str]:
    """What the processor can do, in /proc/cpuinfo's names, such as `avx512_bf16`; Linux only."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    named = (line.partition(":") for line in lines)
    return next((set(flags.split()) for name, _, flags in named if name.strip() in NAMES), set())


NAMES = ("flags", "Features")
"""Of the line: on x86, on ARM."""


def bf16_flag(flags: Collection[str]) -> str | None:
    """The processor's instructions for BF16; None where it has none."""
    return next((flag for flag in BF16_FLAGS if flag in flags), None)


def fastest_precision(flags: Collection[str] | None = None) -> str:
    """`bf16` where the processor has instructions for it; without, a step takes many times as long.

    `flags`: the processor's; None: this one's.
    """
    return "bf16" if bf16_flag(cpu_flags() if flags is None else flags) else "float32"
