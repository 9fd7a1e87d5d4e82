import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torchvision.models import resnext50_32x4d

from common.errors import InputError
from retinanet.config import ModelConfig
from retinanet.model.retinanet import RetinaNet
from retinanet.preflight.run import check_weights
from retinanet.training.build import (
    build_model,
    dropped_parts,
    read_backbone_weights,
    require_trainable_start,
    starting_weights,
)

REPOSITORY = Path(__file__).resolve().parents[3]


def refusal_of(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_backbone_weights(str(path))
    message = str(caught.value)
    assert message.startswith("model.pretrained_backbone: ") and str(path) in message
    assert "\n" not in message
    return message


def test_weights_of_a_file_reach_the_model(tmp_path: Path) -> None:
    torch.manual_seed(1)
    state_dict = dict(resnext50_32x4d(weights=None).state_dict())
    file = tmp_path / "a.safetensors"
    save_file(state_dict, file)
    settings = ModelConfig(pretrained_backbone=str(file))
    model = build_model(settings, num_classes=3, weights=starting_weights(settings))
    file.unlink()  # 100 MB
    body = model.backbone.body.state_dict()
    assert body.keys() < state_dict.keys()
    assert all(torch.equal(body[name], state_dict[name]) for name in body)
    assert body["layer4.2.conv3.weight"].is_contiguous(memory_format=torch.channels_last)


def test_weights_that_are_not_finite_are_refused_with_the_tensors_name(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_file({"conv1.weight": torch.zeros(2), "bn1.bias": torch.tensor([0, torch.nan])}, file)
    with pytest.raises(InputError, match="not finite") as caught:
        starting_weights(ModelConfig(pretrained_backbone=str(file)))
    assert str(caught.value).startswith(f"model.pretrained_backbone: {file}: bn1.bias ")


def test_what_of_a_whole_detector_is_dropped_is_told(tmp_path: Path) -> None:
    file = tmp_path / "detector.safetensors"
    save_file(RetinaNet(num_classes=2).state_dict(), file)
    found = check_weights(ModelConfig(pretrained_backbone=str(file)))
    assert found.level == "ok" and "backbone.fpn (16)" in found.detail
    words = (
        "data.scenes.train=2 data.scenes.validation=1 data.image_size=64 training.batch_size=1 "
        "training.max_steps=1 evaluation.pictures=0 engine.precision=float32 model.norm=frozen "
        f"model.trainable_layers=3 run.root={tmp_path} model.pretrained_backbone={file}"
    )
    done = subprocess.run(
        [sys.executable, "train.py", *words.split()],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    [note] = [line for line in done.stdout.splitlines() if str(file) in line and "note" in line]
    for part in ("backbone.fpn (16)", "classification_head (10)", "regression_head (10)"):
        assert part in note
    assert dropped_parts(resnext50_32x4d(weights=None).state_dict()) == ""


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
    assert "does not exist" in refusal_of(tmp_path / "none.safetensors")
    assert "does not exist" in refusal_of(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"\x80\x02garbage", b"hello" * 9])
def test_a_broken_file_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "broken.safetensors").write_bytes(content)
    assert "cannot be read" in refusal_of(tmp_path / "broken.safetensors")


def test_a_cut_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_file({"a": torch.zeros(1000)}, file)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert "cannot be read" in refusal_of(file)


def test_another_file_in_torchs_cache_is_not_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    file = tmp_path / "hub" / "checkpoints" / "resnext50_32x4d-7cdf4587.pth"
    file.parent.mkdir(parents=True)
    torch.save({"a": torch.zeros(3)}, file)
    with pytest.raises(InputError, match="SHA-512 differs") as caught:
        read_backbone_weights("torchvision")
    assert str(file) in str(caught.value) and file.exists()


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
    with pytest.raises(InputError, match="could not be downloaded") as caught:
        read_backbone_weights("torchvision")
    message = str(caught.value)
    assert "\n" not in message and "download it elsewhere " in message
    assert "download.pytorch.org" in message
