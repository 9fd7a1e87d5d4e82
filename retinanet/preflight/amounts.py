"""Amounts of bytes for a person."""

UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def amount(size: float) -> str:
    """Such as `1.2 GB`, `413 MB`, `64 kB`. [bytes]"""
    for unit, name in UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name}" if size < 10 * unit else f"{size / unit:.0f} {name}"
    return f"{size:.0f} bytes"
