"""`python -m retinanet compile`: the C++ kernels ahead of time, for an image or a shared folder."""

from pathlib import Path

from retinanet.errors import InputError
from retinanet.exit_codes import FINISHED
from retinanet.native_library import (
    COMPILED_AHEAD,
    NativeLibraryError,
    compile_ahead,
    known_instruction_sets,
)


def kernel_sources() -> list[Path]:
    """Every C++ file of this program."""
    return sorted(Path(__file__).parent.glob("*/csrc/*.cpp"))


def compile_kernels() -> int:
    """Compile every kernel for every instruction set, and print where they lie.

    Raises:
        InputError: There is no compiler, it fails, or the folder cannot be written.
    """
    instruction_sets = known_instruction_sets()
    print(f"into {COMPILED_AHEAD}")
    kept = set()
    for source in kernel_sources():
        try:
            libraries = [compile_ahead(source, one) for one in instruction_sets]
        except NativeLibraryError as error:
            raise InputError(f"{source}: {error}") from error
        kept |= set(libraries)
        sizes = [f"{library.stat().st_size / 1000:.0f} kB" for library in libraries]
        pairs = zip(instruction_sets, sizes, strict=True)
        print(f"  {source.stem:<17} {', '.join(f'{name} {size}' for name, size in pairs)}")
    for library in COMPILED_AHEAD.glob("*.so"):
        if library not in kept:
            library.unlink()  # of an earlier source
    return FINISHED
