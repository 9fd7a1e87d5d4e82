import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import InputError
from launch.environment import ALLOCATORS, STARTED_AGAIN, find, preloading
from tests.launch.ranks import run_python
from tests.support.fast_precision import FAST_PRECISION

REPOSITORY = Path(__file__).resolve().parents[2]

FAULTS_OF_TEN_TENSORS = """
import sys
from launch.environment import set_allocator
from common.machine import page_faults
set_allocator(sys.argv[1])
import torch
torch.set_num_threads(1)
for _ in range(25):  # the heap takes four to eight rounds to grow as far as it has to
    torch.ones(25_000_000)
before = page_faults()
for _ in range(10):
    torch.ones(25_000_000)
print(page_faults() - before)
"""

PROCESS = """
import json, os, sys
from launch.environment import set_allocator
from common.cli import run_command
def main():
    set_allocator(sys.argv[1])
    maps = open("/proc/self/maps").read()
    print(json.dumps({
        "pid": os.getpid(),
        "arguments": sys.argv[1:],
        "flags": [sys.flags.utf8_mode, sys.warnoptions],
        "environment": dict(os.environ),
        "loaded": [name for name in ("tcmalloc", "jemalloc") if f"/lib{name}" in maps],
        "pipe": os.read(int(sys.argv[2]), 5).decode() if len(sys.argv) > 2 else None,
    }))
    return 0
sys.exit(run_command(main))
"""


def faults(policy: str) -> int:
    done = run_python(FAULTS_OF_TEN_TENSORS, policy)
    assert done.code == 0, done.errors
    return int(done.output)


@pytest.fixture(scope="module")
def faults_of_system() -> int:
    return faults("system")


def installed(name: str) -> bool:
    """Return whether the allocator is installed; if not, check the error of the command."""
    if find(ALLOCATORS[name]) is not None:
        return True
    done = run_python(PROCESS, name)
    assert done.code == 2 and done.errors.count("\n") == 1, done.errors
    assert f"error: engine.allocator: {name}: its library is not installed" in done.errors
    assert f"apt-get install {ALLOCATORS[name].package}" in done.errors
    return False


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the policy is glibc's")
def test_tuned_allocator_causes_few_page_faults(faults_of_system: int) -> None:
    assert faults("tuned") < faults_of_system / 20


@pytest.mark.slow
@pytest.mark.parametrize("name", ALLOCATORS)
def test_preloaded_allocator_causes_few_page_faults(name: str, faults_of_system: int) -> None:
    if installed(name):
        assert faults(name) < faults_of_system / 20


@pytest.mark.parametrize("name", ALLOCATORS)
def test_restarted_command_is_unchanged(name: str) -> None:
    if not installed(name):
        return
    read, write = os.pipe()
    os.write(write, b"hello")
    flags = ["-X", "utf8", "-W", "error::UserWarning"]
    process = subprocess.Popen(
        [sys.executable, *flags, "-c", PROCESS, name, str(read), "a b", "--c=ü"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        pass_fds=[read],
    )
    output, _ = process.communicate(timeout=60)
    result = json.loads(output)
    assert result["loaded"] == [name]
    assert result["pid"] == process.pid
    assert result["arguments"] == [name, str(read), "a b", "--c=ü"]
    assert result["flags"] == [1, ["error::UserWarning"]]
    assert result["pipe"] == "hello"  # as mpirun's processes have one
    for setting, value in ALLOCATORS[name].settings.items():
        assert result["environment"][setting] == value
    assert STARTED_AGAIN not in result["environment"]  # children would inherit it


@pytest.mark.parametrize("name", ALLOCATORS)
def test_library_preloaded_by_the_user_is_kept(name: str, tmp_path: Path) -> None:
    library = find(ALLOCATORS[name])
    if not installed(name) or library is None:
        return
    done = run_python(PROCESS, name, LD_PRELOAD=library)
    environment = json.loads(done.output)["environment"]
    assert environment["LD_PRELOAD"] == library
    assert not set(ALLOCATORS[name].settings) & set(environment)


def test_settings_of_the_user_have_priority() -> None:
    environment = {"LD_PRELOAD": "/lib/other.so", "MALLOC_CONF": "narenas:1", "HOME": "/root"}
    settings = {"MALLOC_CONF": "thp:always", "MORE": "1"}
    assert preloading(environment, "libjemalloc.so.2", settings) == {
        "LD_PRELOAD": "libjemalloc.so.2:/lib/other.so",
        "MALLOC_CONF": "narenas:1",
        "MORE": "1",
        "HOME": "/root",
    }


@pytest.mark.parametrize("name", ALLOCATORS)
def test_library_that_the_linker_refuses_is_an_error(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / f"lib{ALLOCATORS[name].libraries[0]}.so.9").write_text("no library")
    text = f"import sys; sys.prefix = {str(tmp_path)!r}\n{PROCESS}"
    done = run_python(text, name)
    assert done.code == 2, done.errors
    last = done.errors.splitlines()[-1]  # the linker complains first, in its own words
    assert last.startswith(f"error: engine.allocator: {name}: {folder}/lib")
    assert "cannot be preloaded; apt-get install" in last


def test_missing_library_is_an_error_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    from launch import environment as environment_module

    monkeypatch.setattr(environment_module, "find_library", lambda name: None)
    monkeypatch.setattr(environment_module, "is_loaded", lambda allocator: False)
    monkeypatch.setattr(sys, "prefix", "/nowhere")
    with pytest.raises(InputError, match="apt-get install libjemalloc2") as caught:
        environment_module.preload("jemalloc")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ALLOCATORS)
def test_training_and_signals_under_a_preloaded_allocator(name: str, tmp_path: Path) -> None:
    if not installed(name):
        return
    overrides = ["data.scenes.train=8", "data.scenes.validation=2", "data.image_size=64"]
    overrides += ["training.batch_size=2", "training.epochs=1000", "evaluation.every=1000"]
    overrides += [f"engine.precision={FAST_PRECISION}"]
    command = [sys.executable, "train.py", *overrides, f"run.root={tmp_path}"]
    process = subprocess.Popen(
        [*command, f"engine.allocator={name}"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("epoch"):  # the first step is done
            break
    assert f"/lib{name}" in Path(f"/proc/{process.pid}/maps").read_text()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (75, "")
    shutil.rmtree(tmp_path)


def test_environment_loads_no_torch() -> None:
    text = "import sys, launch.environment, launch.ranks; sys.exit('torch' in sys.modules)"
    assert run_python(text).code == 0
