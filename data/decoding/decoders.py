"""Which decoders there are, which are installed, and which one a run takes."""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from PIL import features

from data.decoding.jpeg_decoders import JPEG_DECODERS
from retinanet.errors import InputError

DECODERS = ("simplejpeg", "torchvision", "accimage", "pillow")
"""The fastest first, as measured on photos on one core; `auto` takes the first installed."""

HOW_TO_INSTALL = {
    "simplejpeg": "`.venv/bin/pip install simplejpeg`",
    "torchvision": "`.venv/bin/pip install torchvision`, the release made for this torch",
    "accimage": "no package registry has it, and its source needs Intel's IPP to compile",
}


def installed_decoders() -> list[str]:
    """Names of the decoders that can be taken here, the fastest first."""
    return [name for name in DECODERS if name == "pillow" or is_installed(name)]


def is_installed(name: str) -> bool:
    """Whether a decoder's library is there."""
    return name in JPEG_DECODERS and find_spec(name) is not None


def resolve_decoder(name: str) -> str:
    """The decoder that `data.decoder` means: itself, or for `auto` the fastest installed.

    Raises:
        InputError: It is not installed, or not known.
    """
    if name == "auto":
        return installed_decoders()[0]
    if name not in DECODERS:
        raise InputError(
            f"data.decoder: {name} is not known; known are auto, {', '.join(DECODERS)}"
        )
    if name not in installed_decoders():
        raise InputError(
            f"data.decoder: {name} is not installed; install it ({HOW_TO_INSTALL[name]}), "
            "or take auto"
        )
    return name


def describe_decoder(name: str) -> str:
    """A decoder with its version, such as `simplejpeg 1.9.0` or `pillow-simd 12.1.1 (SIMD)`."""
    if name == "pillow":
        return describe_pillow()
    return f"{name} {version(name)}"


def describe_pillow() -> str:
    """Pillow or Pillow-SIMD, whichever is in place, with its version."""
    try:
        return f"pillow-simd {version('pillow-simd')} (SIMD)"
    except PackageNotFoundError:
        return f"pillow {features.version('pil')}"
