"""C++ that is compiled on the machine where it runs, once, and stored.

A source file is one C++ file with a plain C interface (`extern "C"`), without torch's headers, so
that it compiles in a second or two; it may include headers of its own folder. It uses the OpenMP
that torch has loaded: there is one pool of threads. The caller hands the number of threads to the
function, as `torch.get_num_threads()`.
"""

import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch

from common.locks import (
    first_writable,
    one_process_at_a_time,
    private_cache_folders,
    user_cache,
)
from common.machine import cpu_flags, mapped_files
from common.program import IS_INSTALLED

CPU_FLAGS_NEEDED = {
    # Linux calls LZCNT `abm`.
    "x86-64-v3": {"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"},
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}
"""Instruction sets beyond plain x86-64, with /proc/cpuinfo's names of what each adds to the one
before."""
MACHINE_FLAGS = {
    "x86-64-v4": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
    "x86-64-v3": ["-march=x86-64-v3"],
    "x86-64": ["-march=x86-64"],
    "generic": [],
}
COMPILED_AHEAD = ((IS_INSTALLED and user_cache()) or Path(__file__).parent) / "compiled"
"""The folder of `python -m retinanet compile`: beside the code of a checkout, for all its users.

In site-packages, pip would not know these files, so an installed wheel takes the user's cache.
"""

# No -ffast-math: infinities and NaN must come out as they went in.
COMPILE_FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-fopenmp"]


class NativeLibraryError(RuntimeError):
    """A library could not be compiled, stored or loaded; the message has the reason."""


class NoCompilerError(NativeLibraryError):
    """There is no C++ compiler on this machine."""


@functools.cache
def load_library(source: Path, *, instruction_set: str | None = None) -> ctypes.CDLL:
    """Compile one C++ file, unless that was done before, and load it.

    A library that was compiled ahead needs no compiler. Else the result is stored below
    `${XDG_CACHE_HOME:-~/.cache}/retinanet-cpu/`, or in a folder of the user's own among the
    temporary files where that cannot be written. `instruction_set` is one of
    `usable_instruction_sets()`; None takes the best.

    Raises:
        NoCompilerError: Neither `CXX` nor `g++` or `c++` on the path is a compiler.
        NativeLibraryError: Anything else, with the compiler's or the loader's message.
    """
    instruction_set = instruction_set or usable_instruction_sets()[0]
    ahead = library_ahead(source, instruction_set)
    if ahead.exists():
        return open_library(ahead)
    compiler = find_compiler()
    compile_flags = COMPILE_FLAGS + MACHINE_FLAGS[instruction_set]
    link_flags = link_with_loaded_openmp()
    # The name depends on the compiler's version and target. After an update, or on another machine
    # that shares the cache, the source is compiled again.
    version = run_tool([*compiler, "--version"]) + run_tool([*compiler, "-dumpmachine"])
    key = [source_text(source), version]
    digest = hashlib.sha256("\0".join(key + compile_flags + link_flags).encode()).hexdigest()
    name = f"{source.stem}-{instruction_set}-{digest[:16]}.so"
    folders = private_cache_folders()
    for folder in folders:
        if (folder / name).exists():
            return open_library(folder / name)
    try:
        library = first_writable(folders, mode=0o700) / name
    except OSError as error:
        raise NativeLibraryError(f"no folder for compiled code ({error})") from error
    with one_process_at_a_time(
        library.with_suffix(".lock"),
        what=f"compiling {source.name}",
        tell=partial(print, file=sys.stderr, flush=True),
    ):
        # Other ranks start at the same time: one of them may have compiled while this one waited.
        if not library.exists():
            compile_to(library, [*compiler, *compile_flags], source, link_flags)
    return open_library(library)


def source_text(source: Path) -> str:
    """Return a source file's text, with that of the headers of its folder that it includes."""
    text = source.read_text(encoding="utf-8")
    headers = re.findall(r'^#include "(.+)"', text, re.MULTILINE)
    return "\0".join([text, *(source_text(source.parent / name) for name in headers)])


def library_ahead(source: Path, instruction_set: str) -> Path:
    """Return the path of a library compiled ahead: with any compiler, from this very source."""
    key = [source_text(source), *COMPILE_FLAGS, *MACHINE_FLAGS[instruction_set]]
    # Names only, so that the digest does not depend on the folder of the environment.
    key += [Path(flag).name for flag in link_with_loaded_openmp()]
    digest = hashlib.sha256("\0".join(key).encode()).hexdigest()
    return COMPILED_AHEAD / f"{source.stem}-{instruction_set}-{digest[:16]}.so"


def compile_ahead(source: Path, instruction_set: str) -> Path:
    """Compile for any instruction set; return the library, which `load_library` then finds.

    Raises:
        NoCompilerError: There is no compiler.
        NativeLibraryError: It fails, or the folder cannot be written.
    """
    library = library_ahead(source, instruction_set)
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        compiler = [*find_compiler(), *COMPILE_FLAGS, *MACHINE_FLAGS[instruction_set]]
        compile_to(library, compiler, source, link_with_loaded_openmp())
    except OSError as error:
        raise NativeLibraryError(f"{library}: cannot be written: {error.strerror}") from error
    return library


def known_instruction_sets() -> list[str]:
    """Return all instruction sets of this architecture, best first."""
    generic = platform.machine() not in ("x86_64", "AMD64")
    return ["generic"] if generic else [name for name in MACHINE_FLAGS if name != "generic"]


def usable_instruction_sets() -> list[str]:
    """Return the instruction sets that this processor can run, best first."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return ["generic"]
    usable = ["x86-64"]
    for name, needed in CPU_FLAGS_NEEDED.items():
        if not cpu_flags() >= needed:
            break
        usable.insert(0, name)
    return usable


def find_compiler() -> list[str]:
    """Return the C++ compiler's command (`CXX`, g++ or c++), or raise NoCompilerError."""
    if os.environ.get("CXX"):
        command = os.environ["CXX"].split()  # may carry arguments, such as "ccache g++"
        if shutil.which(command[0]) is None:
            raise NoCompilerError(f"no C++ compiler: CXX is {command[0]}, which is not a command")
        return command
    path = shutil.which("g++") or shutil.which("c++")
    if path is None:
        raise NoCompilerError("no C++ compiler: neither g++ nor c++ is on the path; install g++")
    return [path]


def link_with_loaded_openmp() -> list[str]:
    """Return linker arguments for the OpenMP runtime that torch has loaded, else the compiler's.

    With a second copy each would have its own threads, and torch.set_num_threads would reach one.
    """
    folder = str(Path(torch.__file__).parent)  # or the one beside it, torch.libs
    loaded = sorted(mapped_files("libgomp"), key=lambda path: not str(path).startswith(folder))
    if not loaded:
        return ["-fopenmp"]
    # By its path, as some builds of torch have it under a name that no linker looks for.
    return [str(loaded[0])]


def compile_to(library: Path, compiler: list[str], source: Path, link_flags: list[str]) -> None:
    """Compile and link; the library appears complete or not at all."""
    # In the library's own folder, since a rename is atomic within one file system only.
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        part, whole = Path(folder, "part.o"), Path(folder, "whole.so")
        run_tool([*compiler, "-c", str(source), "-o", str(part)])
        # At linking, -fopenmp would add the compiler's own libgomp to the one that torch has
        # loaded.
        without_openmp = [flag for flag in compiler if flag != "-fopenmp"]
        run_tool([*without_openmp, "-shared", str(part), *link_flags, "-o", str(whole)])
        whole.replace(library)


def run_tool(command: list[str]) -> str:
    """Run a compiler and return its output; raise NativeLibraryError if it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise NativeLibraryError(f"{command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        raise NativeLibraryError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
    return done.stdout


def open_library(path: Path) -> ctypes.CDLL:
    """Load a compiled library; raise NativeLibraryError with a fix if the loader refuses it."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeLibraryError(
            f"{error}; remove that file, set CXX=g++, or set XDG_CACHE_HOME to a folder on a "
            "file system that may hold programs"
        ) from error
