"""C++ that is compiled on the machine where it runs, once, and stored.

A source file is one C++ file with a plain C interface (`extern "C"`), without torch's headers, so
that it compiles in a second or two; it may include headers of its own folder. It uses the OpenMP
that torch has loaded: there is one pool of threads. The caller hands the number of threads to the
function, as `torch.get_num_threads()`.

A library that is stored ends with the SHA-256 of all before it, which the loader ignores. It is
read before it is loaded: mapping a truncated one would end the process with SIGBUS. It is then
loaded by its path, in a folder that nobody else can write (`common.cache_folders.why_untrusted`).
By the number of its open file the loader would return an earlier library of the same number, and
debuggers would not find it.
"""

import ctypes
import errno
import functools
import hashlib
import importlib
import os
import platform
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from common.cache_folders import (
    make_folder,
    private_cache_folders,
    user_cache,
    who_else_writes,
    why_untrusted,
)
from common.errors import InputError, one_line
from common.locks import one_process_at_a_time
from common.machine import cpu_flags, mapped_files
from common.processes import start_process, stop_process
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
CODE = Path(__file__).resolve().parent
COMPILED_AHEAD = ((IS_INSTALLED and user_cache()) or CODE) / "compiled"
"""The folder of `retinanet compile`: beside the code of a checkout, for all its users.

In site-packages, pip would not know these files, so an installed wheel takes the user's cache.
"""

# No -ffast-math: infinities and NaN must come out as they went in.
COMPILE_FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-fopenmp"]
FORMAT = "ends with its SHA-256"
HASH_BYTES = hashlib.sha256().digest_size
SECONDS_TO_COMPILE = 300.0  # the longest call of a compiler; ours take some seconds on a slow core


class NativeLibraryError(RuntimeError):
    """A library could not be compiled, stored or loaded; the message has the reason."""


class NoCompilerError(NativeLibraryError):
    """There is no C++ compiler on this machine."""


@functools.cache
def tell_once(line: str) -> None:
    """Print a line on stderr, once a process."""
    print(one_line(line), file=sys.stderr)


@functools.cache
def load_library(
    source: Path,
    *,
    instruction_set: str | None = None,
    tell: Callable[[str], None] = tell_once,
) -> ctypes.CDLL:
    """Compile one C++ file, unless that was done before, and load it.

    A library that was compiled ahead needs no compiler. Else the result is stored below
    `${XDG_CACHE_HOME:-~/.cache}/retinanet-cpu/`, or in a folder of the user's own among the
    temporary files where that cannot be written, or where other users can write to it.
    `instruction_set` is one of `usable_instruction_sets()`; None takes the best. `tell` gets a line
    about a stored library or a folder that is not used, at each call.

    Raises:
        NoCompilerError: Neither `CXX` nor `g++` or `c++` on the path is a compiler.
        NativeLibraryError: Anything else, with the compiler's or the loader's message.
    """
    instruction_set = instruction_set or usable_instruction_sets()[0]
    if is_compiled_ahead(source, instruction_set, tell=tell):
        return open_library(library_ahead(source, instruction_set))
    compiler = compiler_for(tuple(find_compiler()))
    compile_flags = COMPILE_FLAGS + MACHINE_FLAGS[instruction_set]
    link_flags = link_with_loaded_openmp()
    # The name depends on the compiler's version and target. After an update, or on another machine
    # that shares the cache, the source is compiled again.
    name = library_name(source, instruction_set, compiler.version, *link_flags)
    untrusted, unusable = [], []
    try:
        for folder, reason in private_cache_folders():
            if reason:
                untrusted.append(f"{folder} is not trusted, since {reason}")
                continue
            if untrusted:
                tell(
                    f"kernels: {'; '.join(untrusted)}: using {folder} instead; set XDG_CACHE_HOME "
                    "to a folder that only you can write"
                )
            try:
                compile_in(folder / name, compiler, compile_flags, source, link_flags, tell=tell)
            except OSError as error:
                unusable.append(f"{folder}: {error.strerror}")
                continue
            except InputError as error:  # another process compiles for too long
                raise NativeLibraryError(str(error)) from error
            return open_library(folder / name)
    except OSError as error:  # no folder for temporary files
        unusable.append(str(error))
    reasons = "; ".join(untrusted + unusable)
    raise NativeLibraryError(f"no folder for compiled code ({reasons})")


def compile_in(
    library: Path,
    compiler: "Compiler",
    compile_flags: list[str],
    source: Path,
    link_flags: list[str],
    *,
    tell: Callable[[str], None],
) -> None:
    """Compile a library in a folder of this user alone, unless it is there."""
    if is_sound(library, tell=tell):
        return
    make_folder(library.parent, mode=0o700)
    if reason := why_untrusted(library.parent):  # another user was faster, in /tmp
        raise PermissionError(errno.EPERM, reason)
    with one_process_at_a_time(
        library.with_suffix(".lock"), what=f"compiling {source.name}", tell=tell
    ):
        # Other ranks start at the same time: one of them may have compiled while this one waited.
        if not is_sound(library, tell=tell):
            compile_to(library, compiler, compile_flags, source, link_flags, mode=0o600)


def is_sound(library: Path, *, code: Path | None = None, tell: Callable[[str], None]) -> bool:
    """Return whether a library is stored, complete, and for nobody else to write.

    The owner of `code` may write it too. `tell` gets the reason if it is there and not sound.
    """
    owners = {0, os.geteuid(), *([] if code is None else [code.stat().st_uid])}
    problem: str | None = None
    try:
        # O_NONBLOCK: a FIFO would wait for its writer.
        descriptor = os.open(library, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            problem = find_problem(library, descriptor, owners)
        finally:
            os.close(descriptor)
    except OSError as error:  # not there, as a rule
        if error.errno == errno.ELOOP:
            problem = f"{library} is a link"
    if problem:
        tell(f"kernels: {problem}: compiling it again")
    return problem == ""


def find_problem(library: Path, descriptor: int, owners: Collection[int]) -> str:
    """Return why the file must not be loaded; empty: it may be."""
    status = os.fstat(descriptor)
    if reason := who_else_writes(library, status, owners):
        return reason
    if not stat.S_ISREG(status.st_mode):
        return f"{library} is not a regular file"
    with open(descriptor, "rb", closefd=False) as file:
        content = file.read()
    end = len(content) - HASH_BYTES
    is_whole = end > 0 and hashlib.sha256(content[:end]).digest() == content[end:]
    return "" if is_whole else f"{library} is damaged"


def source_text(source: Path) -> str:
    """Return a source file's text, with that of the headers of its folder that it includes."""
    text = source.read_text(encoding="utf-8")
    headers = re.findall(r'^#include "(.+)"', text, re.MULTILINE)
    return "\0".join([text, *(source_text(source.parent / name) for name in headers)])


def library_ahead(source: Path, instruction_set: str) -> Path:
    """Return the path of a library compiled ahead: with any compiler, from this very source."""
    # Names only, so that the digest does not depend on the folder of the environment.
    flags = [Path(flag).name for flag in link_with_loaded_openmp()]
    return COMPILED_AHEAD / library_name(source, instruction_set, *flags)


def library_name(source: Path, instruction_set: str, *more: str) -> str:
    """Return a file name with a digest of the source, the flags and `more` that matters."""
    key = [FORMAT, source_text(source), *COMPILE_FLAGS, *MACHINE_FLAGS[instruction_set], *more]
    digest = hashlib.sha256("\0".join(key).encode()).hexdigest()
    return f"{source.stem}-{instruction_set}-{digest[:16]}.so"


def is_compiled_ahead(
    source: Path, instruction_set: str, *, tell: Callable[[str], None] = tell_once
) -> bool:
    """Return whether a library was compiled ahead; `tell` gets the reason not to use it."""
    library = library_ahead(source, instruction_set)
    try:
        library.lstat()
    except OSError:
        return False
    if reason := why_untrusted(library.parent, code=CODE):
        tell(
            f"kernels: those compiled ahead are not trusted, since {reason}: compiling them again "
            "for this user"
        )
        return False
    return is_sound(library, code=CODE, tell=tell)


def compile_ahead(source: Path, instruction_set: str) -> Path:
    """Compile for any instruction set; return the library, which `load_library` then finds.

    Raises:
        NoCompilerError: There is no compiler.
        NativeLibraryError: It fails, or the folder cannot be written, or others can write to it.
    """
    library = library_ahead(source, instruction_set)
    compiler = compiler_for(tuple(find_compiler()))
    flags = COMPILE_FLAGS + MACHINE_FLAGS[instruction_set]
    try:
        make_folder(library.parent, mode=0o755)
        if reason := why_untrusted(library.parent, code=CODE):
            raise NativeLibraryError(reason)
        compile_to(library, compiler, flags, source, link_with_loaded_openmp(), mode=0o644)
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
    if text := os.environ.get("CXX"):
        try:
            command = shlex.split(text)  # may carry arguments, such as "ccache g++"
        except ValueError as error:
            raise NoCompilerError(f"no C++ compiler: CXX is {text}: {error}") from error
        if not command:
            raise NoCompilerError("no C++ compiler: CXX is blank; unset it, or set CXX=g++")
        if shutil.which(command[0]) is None:
            raise NoCompilerError(f"no C++ compiler: CXX is {command[0]}, which is not a command")
        return command
    path = shutil.which("g++") or shutil.which("c++")
    if path is None:
        raise NoCompilerError("no C++ compiler: neither g++ nor c++ is on the path; install g++")
    return [path]


class Compiler:
    """A C++ compiler's command, which is not called again after it has hung."""

    def __init__(self, command: Sequence[str]) -> None:
        # In the flags anyway. At linking it would add the compiler's own libgomp to the one that
        # torch has loaded.
        self.command = [word for word in command if word != "-fopenmp"]
        self._hung = ""

    @functools.cached_property
    def version(self) -> str:
        """The version and the target, as the compiler prints them."""
        return self.run("--version") + self.run("-dumpmachine")

    def run(self, *arguments: str) -> str:
        """Return what the compiler prints; raise NativeLibraryError if it fails or hangs."""
        if self._hung:
            raise NativeLibraryError(self._hung)
        command = " ".join([*self.command, *arguments])
        try:
            process = start_process(
                [*self.command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise NativeLibraryError(f"{self.command[0]}: {error.strerror}") from error
        try:
            output, errors = process.communicate(timeout=SECONDS_TO_COMPILE)
        except subprocess.TimeoutExpired as error:
            # `stop_process` leaves a group alone whose first process has ended.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            self._hung = f"{command} had not ended after {SECONDS_TO_COMPILE:g} s; set CXX=g++"
            raise NativeLibraryError(self._hung) from error
        finally:
            stop_process(process)
        if process.returncode != 0:
            raise NativeLibraryError(f"{command} failed: {errors.strip() or process.returncode}")
        return output


@functools.cache
def compiler_for(command: tuple[str, ...]) -> Compiler:
    """Return the only `Compiler` of a command."""
    return Compiler(command)


def link_with_loaded_openmp() -> list[str]:
    """Return linker arguments for the OpenMP runtime that torch has loaded, else the compiler's.

    With a second copy each would have its own threads, and torch.set_num_threads would reach one.
    """
    # Loaded here: whoever only looks for a compiler may have no torch.
    folder = str(
        Path(str(importlib.import_module("torch").__file__)).parent
    )  # or the one beside it, torch.libs
    loaded = sorted(mapped_files("libgomp"), key=lambda path: not str(path).startswith(folder))
    if not loaded:
        return ["-fopenmp"]
    # By its path, as some builds of torch have it under a name that no linker looks for.
    return [str(loaded[0])]


def compile_to(
    library: Path,
    compiler: Compiler,
    compile_flags: list[str],
    source: Path,
    link_flags: list[str],
    *,
    mode: int,
) -> None:
    """Compile and link; the library appears complete, with this mode, or not at all."""
    # In the library's own folder, since a rename is atomic within one file system only.
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        part, linked, whole = (Path(folder, name) for name in ("part.o", "linked.so", "whole.so"))
        compiler.run(*compile_flags, "-c", str(source), "-o", str(part))
        without_openmp = [flag for flag in compile_flags if flag != "-fopenmp"]
        compiler.run(*without_openmp, "-shared", str(part), *link_flags, "-o", str(linked))
        if not linked.is_file():
            raise NativeLibraryError(
                f"{' '.join(compiler.command)} wrote no library: it is no C++ compiler; set CXX=g++"
            )
        content = linked.read_bytes()
        whole.write_bytes(content + hashlib.sha256(content).digest())
        whole.chmod(mode)
        whole.replace(library)


def open_library(path: Path) -> ctypes.CDLL:
    """Load a compiled library; raise NativeLibraryError with a fix if the loader refuses it."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeLibraryError(
            f"{error}; remove that file, set CXX=g++, or set XDG_CACHE_HOME to a folder on a "
            "file system that may hold programs"
        ) from error
