"""Whether there is an NVIDIA GPU, asked of its driver: torch takes seconds to load."""

import ctypes

from retinanet.errors import InputError

SUCCESS = 0
"""CUDA_SUCCESS of the driver's interface.
https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html"""


def require_gpu() -> None:
    """Look for one.

    Raises:
        InputError: There is no driver, or it knows no GPU.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise InputError(
            "--device: cuda: this machine has no NVIDIA driver (libcuda.so.1); leave it out"
        ) from None
    count = ctypes.c_int(0)
    if driver.cuInit(0) != SUCCESS or driver.cuDeviceGetCount(ctypes.byref(count)) != SUCCESS:
        raise InputError("--device: cuda: the NVIDIA driver finds no GPU here; leave it out")
    if count.value == 0:
        raise InputError("--device: cuda: the NVIDIA driver shows no GPU here; leave it out")
