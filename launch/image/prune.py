"""Remove the files of an environment that training on CPUs does not use, for a smaller image.

Run `python -m launch.image.prune .venv` with the Python of that environment. The registry's build
of torch loads some CUDA libraries even without a GPU; only those are kept. Headers, static
libraries (the project's C++ is compiled before) and the packages' own tests are removed too.
"""

import argparse
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from common.machine import mapped_files
from common.walk import real_path

COMPILING = ("torch/include", "torch/share", "mpich/include", "numpy/*/include")
"""Below site-packages: only a compiler reads them."""
TESTS_OF_TORCH = ("torch/test", "torch/bin/*")  # 138 MB of CPU-only wheels
USED_OF_TORCH = ("torch_shm_manager",)  # In torch/bin: hands memory over between processes
INSTALLING = ("pip", "pip-*.dist-info")
CUDA_OF_TORCH = ("libtorch_cuda*", "libtorch_nvshmem*", "libcaffe2_nvrtc*")


def main() -> int:
    """Remove unneeded files and print their size; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m launch.image.prune", description=__doc__)
    parser.add_argument("environment", type=Path, help="the virtual environment of this Python")
    environment = parser.parse_args().environment
    packages = Path(sysconfig.get_path("purelib"))
    if not packages.is_relative_to(real_path(environment)):
        parser.error(f"{environment}: not the environment of this Python; give the path of .venv")
    before = disk_usage(packages)
    used = files_in_use(packages)
    for path in unneeded(packages, used):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # it may have been in a folder before it
    print(f"{packages}: {before / 1e6:,.0f} MB, {disk_usage(packages) / 1e6:,.0f} MB after pruning")
    return 0


def files_in_use(packages: Path) -> set[Path]:
    """Return the libraries below `packages` that training has loaded into this process."""
    import torch  # noqa: PLC0415
    import torchvision  # noqa: F401, PLC0415

    # Libraries may be loaded as late as the first forward and backward pass.
    images = torch.zeros(1, 3, 8, 8, requires_grad=True)
    torch.nn.functional.conv2d(images, torch.zeros(4, 3, 3, 3)).sum().backward()
    mapped = {real_path(path) for path in mapped_files("")}
    return {path for path in mapped if path.is_relative_to(packages)}


def unneeded(packages: Path, used: set[Path]) -> Iterator[Path]:
    """Yield the files and folders that can be removed."""
    for pattern in (*COMPILING, *TESTS_OF_TORCH, *INSTALLING, "triton"):
        yield from (path for path in packages.glob(pattern) if path.name not in USED_OF_TORCH)
    yield from packages.rglob("*.a")
    yield from [path for path in packages.glob("**/tests") if path.is_dir()]
    cuda = [path for pattern in CUDA_OF_TORCH for path in (packages / "torch/lib").glob(pattern)]
    cuda += [path for path in packages.glob("nvidia/**/*") if path.is_file()]
    for path in cuda:
        if real_path(path) not in used and path.suffix != ".py":
            yield path


def disk_usage(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    raise SystemExit(main())
