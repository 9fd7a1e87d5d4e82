"""Pillow-SIMD beside Pillow, for a process that is to have it in Pillow's place."""

import sys
from pathlib import Path


def pillow_simd_folder() -> Path | None:
    """Where `./setup.sh simd-beside` has put it; None where it has not."""
    folder = Path(sys.prefix) / "simd-beside"
    return folder if (folder / "PIL").is_dir() else None
