"""Which decoder a run takes, and what it is told when it cannot have one."""

import importlib
import sys
from pathlib import Path

import PIL
import pytest

from common.errors import InputError
from data.decoding import decoder_fault, describe_decoder, installed_decoders, resolve_decoder


def refusal(name: str) -> str:
    with pytest.raises(InputError) as caught:
        resolve_decoder(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def take_away(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)  # Python's own sign for: not to be found


def test_auto_takes_the_fastest_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_decoder("auto") == "simplejpeg"
    take_away(monkeypatch, "simplejpeg")
    assert resolve_decoder("auto") == "torchvision"
    take_away(monkeypatch, "torchvision")
    assert resolve_decoder("auto") == "pillow"


def test_what_works_is_listed_fastest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    take_away(monkeypatch, "accimage")
    assert installed_decoders() == ["simplejpeg", "torchvision", "pillow"]


@pytest.mark.parametrize("name", ["simplejpeg", "torchvision", "pillow"])
def test_a_name_is_itself(name: str) -> None:
    assert resolve_decoder(name) == name


@pytest.mark.parametrize("name", ["simplejpeg", "torchvision", "accimage"])
def test_one_that_is_missing_is_refused_with_what_to_do(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_away(monkeypatch, name)
    assert refusal(name).startswith(f"data.decoder: {name} is not installed: ")
    assert refusal(name).endswith("; or take auto")


def test_accimage_is_said_to_need_intels_library(monkeypatch: pytest.MonkeyPatch) -> None:
    take_away(monkeypatch, "accimage")
    assert "pip has none" in refusal("accimage") and "Intel's IPP" in refusal("accimage")


def test_one_that_is_not_known_is_refused() -> None:
    assert refusal("opencv").startswith("data.decoder: opencv is not known; take auto, simplejpeg")


@pytest.mark.parametrize("code", ["raise ImportError('no libippi')", "Image = None", ""])
def test_one_whose_compiled_part_is_missing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """It would fall back on Pillow for every image, and nobody would know."""
    (tmp_path / "accimage.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    take_away(monkeypatch, "accimage")  # so that what is imported here is gone after it
    monkeypatch.delitem(sys.modules, "accimage")
    importlib.invalidate_caches()
    assert (decoder_fault("accimage") or "").startswith("is installed and does not work")
    assert refusal("accimage").startswith("data.decoder: accimage is installed and does not work")
    assert "accimage" not in installed_decoders()


def test_decoders_are_described_with_their_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe_decoder("simplejpeg").startswith("simplejpeg 1.")
    assert describe_decoder("torchvision").startswith("torchvision 0.")
    pillow = describe_decoder("pillow")
    assert PIL.__version__ in pillow and "libjpeg-turbo" in pillow
    # Pillow-SIMD's package is called so, and its versions end in .post0.
    assert pillow.startswith("pillow-simd ") == (".post" in PIL.__version__)
    monkeypatch.setattr("data.decoding.version", lambda name: PIL.__version__)
    assert describe_decoder("pillow").startswith(f"pillow-simd {PIL.__version__} (SIMD")
