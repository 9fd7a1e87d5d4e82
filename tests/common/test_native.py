"""C++ libraries: compiled once, loaded, and stored."""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from common.machine import mapped_files
from common.native import (
    NativeLibraryError,
    NoCompilerError,
    compile_ahead,
    known_instruction_sets,
    link_with_loaded_openmp,
    load_library,
    usable_instruction_sets,
)
from tests.support.commands import write_program

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).resolve().parents[2]

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
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    load_library.cache_clear()
    yield tmp_path / "cache" / "retinanet-cpu"
    load_library.cache_clear()


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
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    folder = tmp_path / "temporary" / f"retinanet-cpu-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(NativeLibraryError, match="no folder for compiled code"):
        load_library(source)


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
    return subprocess.Popen(
        [sys.executable, "-c", BUILD_WITHOUT_TORCH, str(source)],
        cwd=REPOSITORY,
        env={**os.environ, "CXX": compiler},
        stdout=subprocess.PIPE,
        text=True,
    )


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
