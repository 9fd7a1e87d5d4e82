"""128 photos of COCO 2017 by every decoder, and resized beside the reference's arithmetic."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F
from torchvision.transforms.functional import to_tensor

from data.decoding import decode_image, installed_decoders
from data.transforms import resize_image

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "coco128" / "train2017"
PHOTOS = sorted(FOLDER.glob("*.jpg"))

pytestmark = pytest.mark.skipif(not PHOTOS, reason=f"{FOLDER} is missing")


def test_every_decoder_gives_the_same_pixels() -> None:
    decoders = installed_decoders()
    assert len(decoders) >= 3
    for photo in PHOTOS:
        pillow = decode_image(photo, decoder="pillow")
        for decoder in decoders:
            assert np.array_equal(decode_image(photo, decoder=decoder), pillow), (photo, decoder)


@pytest.mark.parametrize("size", [320, 800])
@pytest.mark.parametrize("decoder", ["simplejpeg", "torchvision", "pillow"])
def test_resized_levels_are_within_one_of_the_references(decoder: str, size: int) -> None:
    for photo in PHOTOS[::8]:
        with Image.open(photo) as image:
            exact = to_tensor(image.convert("RGB"))[None]
        reference = F.interpolate(exact, size=(size, size), mode="bilinear", align_corners=False)
        levels = (reference[0] * 255).round().int()
        resized = resize_image(decode_image(photo, decoder=decoder), size)
        assert resized.dtype == torch.uint8
        assert (resized - levels).abs().max() <= 1, photo
