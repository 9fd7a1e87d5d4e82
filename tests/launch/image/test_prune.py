from pathlib import Path

from launch.image.prune import files_in_use, main, unneeded
from tests.support.commands import RunHere


def test_folder_that_is_not_an_environment_is_refused(run_here: RunHere, tmp_path: Path) -> None:
    (tmp_path / "triton").mkdir()
    done = run_here(main, tmp_path)
    assert done.returncode == 2
    assert f"{tmp_path}: not the environment" in done.stderr
    assert (tmp_path / "triton").is_dir()


def test_loaded_libraries_stay_and_unused_files_are_removed(tmp_path: Path) -> None:
    stays = [
        "torch/lib/libtorch_cuda.so",
        "nvidia/cublas/lib/libcublas.so.12",
        "torch/bin/torch_shm_manager",
        "numpy/core.py",
    ]
    goes = [
        "torch/lib/libtorch_cuda_linalg.so",
        "nvidia/cudnn/lib/libcudnn_engines.so.9",
        "nvidia/cublas/include/cublas.h",
        "torch/include/torch/all.h",
        "torch/bin/protoc-3.13.0.0",
        "torch/test/Dict_test",
        "numpy/lib/libnpymath.a",
        "triton/_C/libtriton.so",
        "pandas/tests/test_frame.py",
        "pip/__main__.py",
    ]
    for name in [*stays, *goes]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    removed = set(unneeded(tmp_path, {tmp_path / name for name in stays[:2]}))

    def is_removed(name: str) -> bool:
        return bool(removed & {tmp_path / name, *(tmp_path / name).parents})

    assert [name for name in stays if is_removed(name)] == []
    assert [name for name in goes if not is_removed(name)] == []


def test_library_of_torch_is_in_use() -> None:
    import torch

    packages = Path(torch.__file__).resolve().parents[1]
    assert packages / "torch/lib/libtorch_cpu.so" in files_in_use(packages)
