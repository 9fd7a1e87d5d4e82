import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torchvision.models import resnext50_32x4d

from retinanet.config import ModelConfig
from retinanet.errors import InputError
from retinanet.training.pretrained import read_backbone_weights, require_trainable_start
from retinanet.training.start import build_model, starting_weights


@pytest.fixture(scope="module")
def state_dict() -> dict[str, Tensor]:
    """A real classifier's, as torchvision's training script would save it."""
    torch.manual_seed(1)
    return dict(resnext50_32x4d(weights=None).state_dict())


@pytest.fixture
def file(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    path = tmp_path / request.param
    yield path
    path.unlink(missing_ok=True)  # 100 MB


def refusal_of(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_backbone_weights(str(path))
    message = str(caught.value)
    assert message.startswith("model.pretrained_backbone: ") and str(path) in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    "file", ["a.safetensors", "bare.pth", "nested.pth"], indirect=True, ids=lambda name: name
)
def test_weights_come_from_any_kind_of_file_and_reach_the_model(
    file: Path, state_dict: dict[str, Tensor]
) -> None:
    if file.suffix == ".safetensors":
        save_file(state_dict, file)
    else:
        torch.save({"model": state_dict, "epoch": 3} if "nested" in file.name else state_dict, file)
    settings = ModelConfig(pretrained_backbone=str(file))
    weights = starting_weights(settings)
    model = build_model(settings, num_classes=3, weights=weights)
    body = model.backbone.body.state_dict()
    assert body.keys() < state_dict.keys()
    assert all(torch.equal(body[name], state_dict[name]) for name in body)
    assert body["layer4.2.conv3.weight"].is_contiguous(memory_format=torch.channels_last)


def test_a_start_from_random_weights_needs_no_file() -> None:
    assert starting_weights(ModelConfig(norm="batch", trainable_layers=5)) is None


@pytest.mark.parametrize(
    ("norm", "trainable_layers", "named"),
    [
        ("frozen", 5, "model.norm: frozen"),
        ("batch", 3, "model.trainable_layers: 3"),
        ("frozen", 0, "model.trainable_layers: 0"),
    ],
)
def test_frozen_random_weights_are_refused(norm: str, trainable_layers: int, named: str) -> None:
    with pytest.raises(InputError) as caught:
        require_trainable_start(None, norm=norm, trainable_layers=trainable_layers)
    message = str(caught.value)
    assert message.startswith(named) and "\n" not in message
    assert "model.pretrained_backbone" in message
    assert "model.norm=batch model.trainable_layers=5" in message
    require_trainable_start("a file", norm=norm, trainable_layers=trainable_layers)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "does not exist" in refusal_of(tmp_path / "none.pth")
    assert "does not exist" in refusal_of(tmp_path)


@pytest.mark.parametrize("name", ["broken.pth", "broken.safetensors"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"\x80\x02garbage", b"hello" * 9])
def test_a_broken_file_is_named(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert "cannot be read" in refusal_of(tmp_path / name)


def test_a_cut_file_is_named(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1000)}, tmp_path / "a.pth")
    save_file({"a": torch.zeros(1000)}, tmp_path / "a.safetensors")
    for name in ("a.pth", "a.safetensors"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        assert "cannot be read" in refusal_of(tmp_path / name)


class Malice:
    """What a file from the network might carry."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.victim),)


def test_code_in_a_file_is_refused_and_not_run(tmp_path: Path) -> None:
    victim = tmp_path / "made"
    torch.save({"a": Malice(victim)}, tmp_path / "zip.pth")
    (tmp_path / "raw.pth").write_bytes(pickle.dumps({"a": Malice(victim)}, protocol=2))
    for name in ("zip.pth", "raw.pth"):
        assert "cannot be read" in refusal_of(tmp_path / name)
    assert not victim.exists()


@pytest.mark.parametrize("content", [[1, 2], {"a": 1}, {"model": {"a": 1}}, torch.zeros(3)])
def test_a_file_that_holds_no_weights_is_refused(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "other.pth")
    assert "no state_dict" in refusal_of(tmp_path / "other.pth")


def test_weights_of_another_network_name_file_and_key(tmp_path: Path) -> None:
    save_file({"conv1.weight": torch.zeros(64, 3, 7, 7)}, tmp_path / "other.safetensors")
    settings = ModelConfig(pretrained_backbone=str(tmp_path / "other.safetensors"))
    with pytest.raises(InputError, match=r"other\.safetensors: key bn1\.weight is missing"):
        build_model(settings, num_classes=3, weights=starting_weights(settings))


def test_a_download_without_network_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A proxy that no one listens at: the machine's own network is not asked.
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="could not be fetched") as caught:
        read_backbone_weights("torchvision")
    message = str(caught.value)
    assert "\n" not in message and "give the file's path" in message
    assert "download.pytorch.org" in message
