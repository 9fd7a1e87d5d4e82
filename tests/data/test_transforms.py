import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torchvision.models.detection.transform import resize_boxes
from torchvision.transforms import functional as torchvision_functional

from data.transforms import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    clip_boxes,
    flip,
    normalize,
    resize_image,
    scale_boxes,
)


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("shape", [(48, 64), (100, 37), (64, 64), (3, 90), (1, 1)])
@pytest.mark.parametrize("size", [32, 64, 128])
def test_resize_is_within_one_level_of_float_bilinear(shape: tuple[int, int], size: int) -> None:
    image = noise(*shape)
    resized = resize_image(image, (size, size))
    assert resized.shape == (3, size, size) and resized.dtype == torch.uint8
    channels = torch.from_numpy(image).permute(2, 0, 1).contiguous()
    reference = F.interpolate(
        channels[None].float(), size=(size, size), mode="bilinear", align_corners=False
    )[0].round()
    assert (resized.float() - reference).abs().max() <= 1


def test_resize_uses_no_antialiasing() -> None:
    """Halving twice over: bilinear looks at 2×2 of each 4×4 pixels, here all black."""
    image = np.full((64, 64, 3), 255, dtype=np.uint8)
    for row, column in ((1, 1), (1, 2), (2, 1), (2, 2)):
        image[row::4, column::4] = 0
    resized = resize_image(image, (16, 16))
    assert resized.max() == 0 and resized.stride() == (1, 48, 3)


def test_boxes_are_scaled_by_each_sides_ratio() -> None:
    boxes = torch.tensor([[10.0, 10, 20, 40]])
    scaled = scale_boxes(boxes, original_size=(50, 200), size=(100, 100))
    assert scaled.tolist() == [[5, 20, 10, 80]]
    many = torch.rand(50, 4) * 300
    torch.testing.assert_close(
        scale_boxes(many, original_size=(427, 640), size=(320, 320)),
        resize_boxes(many, (427, 640), (320, 320)),
    )


def test_flip_twice_is_identity() -> None:
    image = resize_image(noise(20, 30), (16, 16))
    boxes = torch.tensor([[1.0, 2, 5, 7], [0, 0, 16, 16]])
    once_image, once_boxes = flip(image, boxes)
    assert once_boxes.tolist() == [[11, 2, 15, 7], [0, 0, 16, 16]]
    assert not torch.equal(once_image, image) and once_image.stride() == image.stride()
    twice_image, twice_boxes = flip(once_image, once_boxes)
    assert torch.equal(twice_image, image) and torch.equal(twice_boxes, boxes)
    assert flip(image, torch.zeros(0, 4))[1].shape == (0, 4)


@pytest.mark.parametrize(
    ("box", "expected", "keep"),
    [
        ([-5.0, -5, 10, 10], [0, 0, 10, 10], True),
        ([60.0, 60, 70, 64], [60, 60, 64, 64], True),
        ([4, 4, 4.1, 4.1], [4, 4, 4.1, 4.1], True),
        ([4, 4, 4.0005, 9], [4, 4, 4.0005, 9], False),
        ([4.0, 4, 9, 4], [4, 4, 9, 4], False),
        ([64.0, 0, 70, 9], [64, 0, 64, 9], False),
    ],
)
def test_boxes_are_clipped_and_marked_without_area(
    box: list[float], expected: list[float], keep: bool
) -> None:
    clipped, has_area = clip_boxes(torch.tensor([box]), size=(64, 64))
    assert clipped[0].tolist() == pytest.approx(expected) and has_area.tolist() == [keep]


def test_normalize_agrees_with_torchvision_and_keeps_the_layout() -> None:
    images = torch.from_numpy(noise(32, 32)).permute(2, 0, 1)[None].repeat(2, 1, 1, 1)
    images = images.contiguous(memory_format=torch.channels_last)
    before = images.clone()
    expected = torchvision_functional.normalize(
        images.float() / 255, mean=list(IMAGENET_MEAN), std=list(IMAGENET_STD)
    )
    result = normalize(images)
    assert result.dtype == torch.float32
    assert result.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(images, before)


@pytest.mark.parametrize("cached_floats", [1, 1000, 1 << 18])
@pytest.mark.parametrize("shape", [(2, 3, 33, 57), (1, 3, 32, 32), (0, 3, 32, 32)])
def test_normalized_values_do_not_depend_on_the_layout(
    shape: tuple[int, int, int, int], cached_floats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data.transforms.CACHED_FLOATS", cached_floats)
    planes = torch.randint(0, 256, shape, dtype=torch.uint8)
    pixels = planes.contiguous(memory_format=torch.channels_last)
    assert normalize(planes).stride() == planes.stride()
    assert normalize(pixels).stride() == pixels.stride()
    assert torch.equal(normalize(pixels), normalize(planes))
