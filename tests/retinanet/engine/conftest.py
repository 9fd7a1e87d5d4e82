"""What the engine's tests share."""

import functools

import pytest

from retinanet.engine import convolution, tile_kernel


@pytest.fixture
def emulated_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `convolve` take AMX's kernels on any processor, with tile instructions in plain C++."""
    monkeypatch.setattr(convolution, "has_tiles", lambda: True)
    for module, names in (
        (tile_kernel, ["outputs_of", "input_gradients"]),
        (
            convolution,
            [
                "pointwise_output",
                "pointwise_input_gradient",
                "strided_input_gradient",
                "weight_gradient",
                "grouped_convolution",
                "grouped_input_gradient",
                "grouped_weight_gradient",
            ],
        ),
    ):
        for name in names:
            emulated = functools.partial(getattr(module, name), emulated=True)
            monkeypatch.setattr(module, name, emulated)
