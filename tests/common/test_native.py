"""C++ libraries: compiled once, loaded, and stored."""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from common.cache_folders import make_folder
from common.machine import mapped_files
from common.native import (
    NativeLibraryError,
    NoCompilerError,
    compile_ahead,
    compiler_for,
    is_compiled_ahead,
    known_instruction_sets,
    link_with_loaded_openmp,
    load_library,
    tell_once,
    usable_instruction_sets,
)
from tests.support.commands import run_program, start_program, write_program
from tests.support.processes import wait_until_ended

pytestmark = pytest.mark.slow

SQUARES = """
extern "C" int threads_used(int threads) {
    int used = 0;
    #pragma omp parallel num_threads(threads) reduction(+ : used)
    used += 1;
    return used;
}
extern "C" void scale(float* values, long count, float factor) {
    for (long i = 0; i < count; ++i) values[i] = values[i] * factor + factor;
}
extern "C" double sum_of_squares(const float* values, long count, int threads) {
    double sum = 0;
    #pragma omp parallel for num_threads(threads) reduction(+ : sum)
    for (long i = 0; i < count; ++i) sum += double(values[i]) * values[i];
    return sum;
}
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "temporary").mkdir()
    forget()
    yield tmp_path / "cache" / "retinanet-cpu"
    forget()


def forget() -> None:
    """Load, run compilers and print as at the start of a process."""
    for function in (load_library, compiler_for, tell_once):
        function.cache_clear()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "squares.cpp"
    path.write_text(SQUARES)
    return path


def sum_of_squares(library: ctypes.CDLL, values: torch.Tensor, threads: int) -> float:
    library.sum_of_squares.restype = ctypes.c_double
    pointer = ctypes.c_void_p(values.data_ptr())
    return library.sum_of_squares(pointer, ctypes.c_long(values.numel()), threads)


def test_instruction_sets_of_this_processor_run_and_differ(source: Path, cache: Path) -> None:
    values = torch.arange(1000.0)
    expected = pytest.approx(values.double().square().sum().item())
    names = usable_instruction_sets()
    for name in names:
        library = load_library(source, instruction_set=name)
        assert sum_of_squares(library, values, 1) == sum_of_squares(library, values, 2) == expected
    libraries = [path.read_bytes() for path in cache.glob("*.so")]
    assert len(libraries) == len(set(libraries)) == len(names)


def test_openmp_runtime_is_that_of_torch(source: Path) -> None:
    before = mapped_files("libgomp")
    assert link_with_loaded_openmp() == [str(path) for path in before]
    library = load_library(source)
    assert library.threads_used(2) == 2
    assert mapped_files("libgomp") == before
    assert len(before) == 1


def test_library_is_compiled_once_for_each_source(source: Path, cache: Path) -> None:
    assert load_library(source).threads_used(2) == 2
    (library,) = cache.glob("*.so")
    written = library.stat().st_mtime_ns
    load_library.cache_clear()
    load_library(source)
    assert [library] == list(cache.glob("*.so")) and library.stat().st_mtime_ns == written
    source.write_text(SQUARES.replace("used += 1", "used += 10"))
    load_library.cache_clear()
    assert load_library(source).threads_used(2) == 20
    assert len(list(cache.glob("*.so"))) == 2


def test_missing_compiler_is_reported(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoCompilerError, match=r"install g\+\+"):
        load_library(source)


@pytest.fixture
def ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "compiled"
    monkeypatch.setattr("common.native.COMPILED_AHEAD", folder)
    return folder


def test_library_compiled_ahead_needs_neither_compiler_nor_cache(
    source: Path, ahead: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = [compile_ahead(source, name) for name in known_instruction_sets()]
    assert set(usable_instruction_sets()) <= set(known_instruction_sets())
    assert sorted(ahead.iterdir()) == sorted(libraries)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    for instruction_set in usable_instruction_sets():
        assert load_library(source, instruction_set=instruction_set).threads_used(2) == 2
    assert usable_instruction_sets()[0] in Path(load_library(source)._name).name
    assert not cache.exists()
    source.write_text(SQUARES.replace("used += 1", "used += 10"))  # not what was compiled
    load_library.cache_clear()
    with pytest.raises(NoCompilerError):
        load_library(source)


def write_compiler(folder: Path, script: str) -> str:
    """Write a compiler that runs a line of shell, then g++; return its path."""
    text = f'{script}\nexec {shutil.which("g++")} "$@"'
    return str(write_program(folder / "compiler", text))


def test_cxx_selects_the_compiler(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", write_compiler(tmp_path, f'touch "{tmp_path}/called"'))
    assert load_library(source).threads_used(1) == 1
    assert (tmp_path / "called").exists()
    monkeypatch.setenv("CXX", str(tmp_path / "missing"))
    load_library.cache_clear()
    with pytest.raises(NoCompilerError, match="missing"):
        load_library(source)


def test_compile_error_has_the_compilers_message(source: Path, cache: Path) -> None:
    source.write_text("int wrong() { return undeclared; }")
    with pytest.raises(NativeLibraryError, match="undeclared"):
        load_library(source)
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


def test_temporary_folder_replaces_a_read_only_cache(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # for root too
    assert load_library(source).threads_used(1) == 1
    (folder,) = (tmp_path / "temporary").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(list(folder.glob("*.so"))) == 1


def test_temporary_folder_writable_by_others_is_not_used(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    folder = tmp_path / "temporary" / f"retinanet-cpu-{os.geteuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    assert load_library(source).threads_used(1) == 1
    (random,) = (tmp_path / "temporary").glob(f"{folder.name}-*")
    assert random.stat().st_mode & 0o777 == 0o700 and not list(folder.iterdir())
    assert f"{folder} is not trusted" in one_line_of(capsys)
    (tmp_path / "temporary").chmod(0o777)  # there another user can replace any folder
    forget()
    with pytest.raises(NativeLibraryError, match="no folder for compiled code"):
        load_library(source)


def one_line_of(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what was printed on stderr, which is one line."""
    line = capsys.readouterr().err
    assert line.startswith("kernels: ") and line.count("\n") == 1
    return line


NOT_OURS = """
#include <cstdio>
extern "C" int threads_used(int) { return 666; }
__attribute__((constructor)) static void run() { puts("ran"); fflush(stdout); }
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of `SQUARES`, as a process has compiled it."""
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "squares.cpp").write_text(SQUARES)
    assert finished_build(folder / "squares.cpp", XDG_CACHE_HOME=str(folder)) == (0, "1\n", "")
    (library,) = folder.glob("retinanet-cpu/*.so")
    return library


@pytest.fixture
def library(compiled: Path, cache: Path) -> Path:
    """The same library in the cache of a test."""
    make_folder(cache)
    return Path(shutil.copy(compiled, cache))


@pytest.fixture
def planted(library: Path) -> Path:
    """A library in the cache under the name that this program looks for, whole, of other code."""
    other = library.with_name("other.cpp")
    other.write_text(NOT_OURS)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, other], check=True)
    content = library.read_bytes()
    library.write_bytes(content + hashlib.sha256(content).digest())
    library.chmod(0o644)
    return library


def test_library_of_this_user_is_taken(source: Path, planted: Path) -> None:
    assert planted.exists()
    assert finished_build(source) == (0, "ran\n666\n", "")


def test_library_in_a_folder_that_others_can_write_is_not_loaded(
    source: Path, planted: Path, tmp_path: Path
) -> None:
    folder = planted.parents[1]
    folder.chmod(0o707)
    status, output, errors = finished_build(source)
    temporary = tmp_path / "temporary" / f"retinanet-cpu-{os.geteuid()}"
    assert (status, output) == (0, "1\n")
    assert errors == (
        f"kernels: {planted.parent} is not trusted, since all users may write to {folder} "
        f"(chmod go-w {folder}): using {temporary} instead; set XDG_CACHE_HOME to a folder that "
        "only you can write\n"
    )
    # The next process takes it from there, and prints the line too.
    (library,) = temporary.glob("*.so")
    written = library.stat().st_mtime_ns
    assert finished_build(source) == (status, output, errors)
    assert library.stat().st_mtime_ns == written


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")
OTHER_USER = 54_321


@needs_root
@pytest.mark.parametrize("part", ["library", "folder"])
def test_library_of_another_user_is_not_loaded(part: str, source: Path, planted: Path) -> None:
    os.chown(planted if part == "library" else planted.parent, OTHER_USER, OTHER_USER)
    status, output, errors = finished_build(source)
    assert (status, output) == (0, "1\n")
    assert f"belongs to user {OTHER_USER}" in errors and errors.count("\n") == 1


def replace(library: Path, kind: str) -> None:
    """Put something else in a library's place."""
    content = library.read_bytes()
    library.unlink()
    if kind == "FIFO":
        os.mkfifo(library)
    elif kind == "link":
        library.with_suffix(".other").write_bytes(content)
        library.symlink_to(library.with_suffix(".other"))
    else:
        texts = {"empty": b"", "truncated": content[: len(content) // 2], "open": content}
        texts["changed"] = content[:-5000] + bytes([content[-5000] ^ 1]) + content[-4999:]
        library.write_bytes(texts[kind])
        library.chmod(0o666 if kind == "open" else 0o600)


KINDS = ("empty", "truncated", "changed", "open", "FIFO", "link")


@pytest.mark.parametrize("kind", KINDS)
def test_library_that_is_not_as_it_was_written_is_compiled_again(
    kind: str, source: Path, library: Path
) -> None:
    replace(library, kind)
    status, output, errors = finished_build(source)
    assert (status, output) == (0, "1\n")
    assert errors.startswith("kernels: ") and errors.endswith(": compiling it again\n")
    assert str(library) in errors and errors.count("\n") == 1
    assert library.stat(follow_symlinks=False).st_mode == 0o100600
    assert finished_build(source) == (0, "1\n", "")


@pytest.mark.parametrize("kind", ["truncated", "open"])
def test_library_compiled_ahead_is_checked_too(
    kind: str,
    source: Path,
    ahead: Path,
    cache: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    best = usable_instruction_sets()[0]
    library = compile_ahead(source, best)
    assert is_compiled_ahead(source, best)
    replace(library, kind)
    assert not is_compiled_ahead(source, best)
    assert load_library(source).threads_used(1) == 1
    assert str(library) in one_line_of(capsys)
    assert len(list(cache.glob("*.so"))) == 1
    assert is_compiled_ahead(source, best) is False
    assert compile_ahead(source, best) == library and is_compiled_ahead(source, best)
    ahead.chmod(0o777)
    forget()
    assert load_library(source).threads_used(1) == 1
    assert f"all users may write to {ahead}" in one_line_of(capsys)
    with pytest.raises(NativeLibraryError, match="all users may write"):
        compile_ahead(source, best)


@needs_root
def test_unprivileged_user_loads_what_root_compiled_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    # Other users cannot reach pytest's own folders.
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        shared, source = Path(name), Path(name, "squares.cpp")
        shared.chmod(0o755)
        source.write_text(SQUARES)
        monkeypatch.setattr("common.native.COMPILED_AHEAD", shared / "compiled")
        before = os.umask(0o077)
        library = compile_ahead(source, usable_instruction_sets()[0])
        os.umask(before)
        assert library.parent.stat().st_mode == 0o40755 and library.stat().st_mode == 0o100644
        child = os.fork()
        if child == 0:
            os.environ["PATH"] = ""
            with suppress(BaseException):
                os.setgid(OTHER_USER)
                os.setuid(OTHER_USER)
                os._exit(load_library(source).threads_used(1))
            os._exit(99)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_mode_of_what_is_stored_does_not_depend_on_the_umask(source: Path, cache: Path) -> None:
    before = os.umask(0o777)
    try:
        load_library(source)
    finally:
        os.umask(before)
    (library,) = cache.glob("*.so")
    assert library.stat().st_mode == 0o100600
    assert {folder.stat().st_mode for folder in (cache, cache.parent)} == {0o40700}


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (" ", "CXX is blank"),
        ("/bin/true", "/bin/true wrote no library"),
        ("/bin/false", "/bin/false --version failed: 1"),
        ("/" + 300 * "x", "which is not a command"),
        ("/" + 20 * (250 * "x" + "/"), "which is not a command"),
        ("g++ '", "No closing quotation"),
        ("/etc", "CXX is /etc, which is not a command"),
        ("/etc/passwd", "CXX is /etc/passwd, which is not a command"),
    ],
)
def test_compiler_that_is_none_is_one_line(
    command: str, reason: str, source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", command)
    with pytest.raises(NativeLibraryError, match=re.escape(reason)) as raised:
        load_library(source)
    assert "\n" not in str(raised.value)
    assert not list(cache.glob("*.so"))


def test_compiler_that_hangs_ends_with_its_children_and_is_not_called_again(
    source: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.native.SECONDS_TO_COMPILE", 1.0)
    # The first process ends and leaves a child that holds its output.
    hang = f"""case "$*" in *-shared*)
        echo call >> "{tmp_path}/calls"; sleep 1000 & echo $! > "{tmp_path}/child"; exit 0
    esac"""
    monkeypatch.setenv("CXX", write_compiler(tmp_path, hang))
    began = time.monotonic()
    for _ in range(3):
        with pytest.raises(NativeLibraryError, match=r"had not ended after 1 s; set CXX=g\+\+"):
            load_library(source)
    assert time.monotonic() - began < 20
    assert (tmp_path / "calls").read_text() == "call\n"
    child = int((tmp_path / "child").read_text())
    wait_until_ended([child])
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


BUILD_WITHOUT_TORCH = """
import ctypes, sys, types
from pathlib import Path
torch = types.ModuleType("torch")
torch.__file__ = "torch/__init__.py"
sys.modules["torch"] = torch  # importing the real one takes long
from common.native import load_library
print(load_library(Path(sys.argv[1])).threads_used(1))
"""


def start_build(source: Path, compiler: str) -> "subprocess.Popen[str]":
    command = (sys.executable, "-c", BUILD_WITHOUT_TORCH, source)
    return start_program(*command, env={**os.environ, "CXX": compiler})


def finished_build(source: Path, **environment: str) -> tuple[int, str, str]:
    """Load in a process of its own; return its status, output and errors."""
    command = (sys.executable, "-c", BUILD_WITHOUT_TORCH, source)
    done = run_program(*command, timeout=60, env={**os.environ, **environment})
    return done.returncode, done.stdout, done.stderr


def test_killed_build_does_not_affect_the_next_one(
    source: Path, cache: Path, tmp_path: Path
) -> None:
    # The compiler writes a part of the library, and kills its parent once.
    write_half = f"""case "$*" in *-shared*)
        for last; do :; done
        echo half > "$last"
        if mkdir "{tmp_path}/killed"; then kill -9 $PPID; exit 1; fi
    esac"""
    compiler = write_compiler(tmp_path, write_half)
    killed = start_build(source, compiler)
    killed.communicate()
    assert killed.returncode == -9 and not list(cache.glob("*.so"))
    assert start_build(source, compiler).communicate()[0] == "1\n"


def test_processes_that_start_at_once_compile_once(
    source: Path, cache: Path, tmp_path: Path
) -> None:
    count_links = f'case "$*" in *-shared*) echo >> "{tmp_path}/links";; esac'
    compiler = write_compiler(tmp_path, count_links)
    processes = [start_build(source, compiler) for _ in range(4)]
    assert [process.communicate()[0] for process in processes] == ["1\n"] * 4
    assert (tmp_path / "links").read_text() == "\n"
    assert len(list(cache.glob("*.so"))) == 1


def test_changed_header_compiles_the_source_again(tmp_path: Path) -> None:
    header, including = tmp_path / "answer.h", tmp_path / "including.cpp"
    including.write_text('#include "answer.h"\nextern "C" int answer() { return ANSWER; }\n')
    for expected in (41, 42):
        header.write_text(f"#define ANSWER {expected}\n")
        load_library.cache_clear()
        assert load_library(including).answer() == expected
