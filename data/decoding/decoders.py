"""Which decoders there are, which work here, and which one a run takes."""

import io
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import PIL
from PIL import Image, features

from data.decoding.jpeg_decoders import JPEG_DECODERS
from retinanet.errors import InputError

DECODERS = ("simplejpeg", "torchvision", "pillow", "accimage")
"""The fastest first, as measured on photos (`python -m data bench`); `auto` takes the first that
works. accimage is last: it pulls the pixels apart into planes, which are wanted together again."""

HOW_TO_INSTALL = {
    "simplejpeg": "run `.venv/bin/pip install simplejpeg`",
    "torchvision": "install the release made for this torch",
    "accimage": "pip has none; its source (0.2.0) must be compiled, against Intel's IPP",
}


def installed_decoders() -> list[str]:
    """Names of the decoders that work here, the fastest first."""
    return [name for name in DECODERS if fault_of(name) is None]


def resolve_decoder(name: str) -> str:
    """The decoder that `data.decoder` means: itself, or for `auto` the fastest that works here.

    Raises:
        InputError: It is not known, not installed, or does not work.
    """
    if name == "auto":
        return next(one for one in DECODERS if fault_of(one) is None)
    if name not in DECODERS:
        raise InputError(
            f"data.decoder: {name} is not known; take auto, {', '.join(DECODERS[:-1])} "
            f"or {DECODERS[-1]}"
        )
    fault = fault_of(name)
    if fault is not None:
        raise InputError(f"data.decoder: {name} {fault}; or take auto")
    return name


def fault_of(name: str) -> str | None:
    """Why a decoder of `DECODERS` cannot be taken here, and what to do; None if it can."""
    if name == "pillow":
        return None
    if find_spec(name) is None:
        return f"is not installed: {HOW_TO_INSTALL[name]}"
    try:
        # An installed library may still lack its compiled part. Decoding would then always fall
        # back on Pillow, and nobody would know.
        JPEG_DECODERS[name](smallest_jpeg())
    except Exception as error:
        reason = " ".join(str(error).split())
        return f"is installed and does not work: {reason}; install it anew"
    return None


def smallest_jpeg() -> bytes:
    """A black square of 8 by 8 pixels."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, format="JPEG")
    return buffer.getvalue()


def describe_decoder(name: str) -> str:
    """A decoder with its version, such as `simplejpeg 1.9.0` or `pillow-simd 12.1.1.post0 (SIMD)`.

    `pillow` is whichever of Pillow and Pillow-SIMD is in place.
    """
    if name != "pillow":
        return f"{name} {version(name)}"
    library = f"libjpeg-turbo {features.version_feature('libjpeg_turbo')}"
    if is_pillow_simd():
        return f"pillow-simd {PIL.__version__} (SIMD, {library})"
    return f"pillow {PIL.__version__} ({library})"


def is_pillow_simd() -> bool:
    """Whether Pillow-SIMD is in Pillow's place, as `make simd` puts it."""
    try:
        return version("pillow-simd") == PIL.__version__
    except PackageNotFoundError:
        return False
