"""`Detector` in Python, compared with the command `predict` and with torchvision's RetinaNet."""

import json
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

import retinanet
from common.errors import InputError
from data.decoding import decode_image
from data.transforms import resize_image
from retinanet import Detections, Detector
from retinanet.__main__ import main
from retinanet.detector import read_picture
from tests.support.commands import RunHere, error_message, run_program
from tests.support.random_detectors import NAMES
from tests.support.torchvision_models import torchvision_retinanet

COCO128 = Path(__file__).parents[3] / "shared" / "data" / "coco128" / "train2017"
Make = Callable[[NDArray[np.uint8]], Any]


@pytest.fixture(scope="module")
def loaded(detector: Path) -> Detector:
    return Detector.load(detector, precision="float32")


@pytest.fixture
def pixels() -> NDArray[np.uint8]:
    return np.random.default_rng(4).integers(0, 256, (60, 90, 3), dtype=np.uint8)


@pytest.fixture
def photos(tmp_path: Path) -> Iterator[list[Path]]:
    """Photos of several sizes, one turned by its EXIF orientation; real ones where there are."""
    real = sorted(COCO128.glob("*.jpg"))[:4]
    for number, size in enumerate([] if real else [(90, 60), (40, 100), (64, 64)]):
        noise = np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / f"{number}.jpg")
    exif = Image.Exif()
    exif[0x0112] = 6
    first = Image.open(real[0]) if real else Image.open(tmp_path / "0.jpg")
    first.save(tmp_path / "turned.jpg", exif=exif)
    yield real or sorted(tmp_path.glob("[0-9].jpg"))


def same(first: Detections, second: Detections) -> bool:
    return (
        np.array_equal(first.boxes, second.boxes)
        and np.array_equal(first.scores, second.scores)
        and np.array_equal(first.labels, second.labels)
        and first.names == second.names
        and (first.width, first.height) == (second.width, second.height)
    )


def same_pixels(first: Image.Image, second: Image.Image) -> bool:
    return first.size == second.size and first.tobytes() == second.tobytes()


def test_package_loads_no_library_before_a_name_is_used() -> None:
    done = run_program(
        *(sys.executable, "-c", "import retinanet; retinanet.__all__; retinanet.InputError"),
        PYTHONPROFILEIMPORTTIME="1", check=True,
    )  # fmt: skip
    assert [name for name in (" torch\n", " numpy\n") if name in done.stderr] == []


def test_package_offers_what_it_lists() -> None:
    assert set(retinanet.__all__) <= set(dir(retinanet))
    assert all(getattr(retinanet, name).__name__ == name for name in retinanet.__all__)
    with pytest.raises(AttributeError, match="no attribute 'detect'"):
        getattr(retinanet, "detect")  # noqa: B009
    assert (Path(retinanet.__file__).parent / "py.typed").is_file()


@pytest.mark.slow
def test_boxes_equal_those_of_the_command(
    detector: Path, loaded: Detector, photos: list[Path], tmp_path: Path, run_here: RunHere
) -> None:
    files, boxes = [*photos, tmp_path / "turned.jpg"], tmp_path / "boxes.json"
    options = ("--no-pictures", "--json", boxes, "--score", "0.3", "--batch-size", "2")
    words = ("--checkpoint", detector, "--precision", "float32")
    done = run_here(main, "predict", *words, *files, *options)
    assert done.returncode == 0, done.stderr
    results = loaded.predict(files, min_score=0.3, batch_size=2)
    assert [result.path for result in results] == files
    dicts = [entry for result in results for entry in result.to_dicts()]
    assert len(dicts) > 20 and dicts == json.loads(boxes.read_text())
    again = [loaded.predict(file, min_score=0.3) for file in files]
    for first, second in zip(results, again, strict=True):
        np.testing.assert_allclose(first.boxes, second.boxes, atol=1e-3)


@pytest.mark.slow
def test_torchvision_finds_the_same(detector: Path, photos: list[Path], tmp_path: Path) -> None:
    loaded = Detector.load(detector, precision="float32")
    model = torchvision_retinanet(len(NAMES), fixed_size=(64, 64)).eval()
    model.load_state_dict(loaded.network.state_dict(), strict=False)
    for photo in [*photos[:2], tmp_path / "turned.jpg"]:
        found = loaded.predict(photo, min_score=0.051)
        image = resize_image(decode_image(photo, apply_exif_orientation=True), (64, 64))
        with torch.inference_mode():
            [expected] = model([image / 255])
        is_above = expected["scores"] >= 0.051
        assert len(found) == is_above.sum() > 20
        in_square = found.boxes * 64 / np.array([found.width, found.height] * 2)
        np.testing.assert_allclose(in_square, expected["boxes"][is_above], atol=1e-4)
        np.testing.assert_allclose(found.scores, expected["scores"][is_above], atol=1e-4)
        assert found.names == [NAMES[number] for number in expected["labels"][is_above]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        Image.fromarray,
        lambda pixels: torch.from_numpy(pixels).permute(2, 0, 1),
        np.asfortranarray,
        lambda pixels: np.ascontiguousarray(pixels[..., ::-1])[..., ::-1],
        lambda pixels: np.frombuffer(pixels.tobytes(), np.uint8).reshape(pixels.shape),
    ],
    ids=["pillow", "tensor", "fortran", "from BGR", "read-only"],
)
def test_every_kind_of_pixels_gives_the_same_boxes(
    loaded: Detector, pixels: NDArray[np.uint8], make: Make, recwarn: pytest.WarningsRecorder
) -> None:
    expected = loaded.predict(pixels, min_score=0.2)
    assert len(expected) > 3 and expected.path is None
    assert same(loaded.predict(make(pixels), min_score=0.2), expected)
    assert [str(warning.message) for warning in recwarn] == []


@pytest.mark.slow
def test_grey_pixels_are_repeated(loaded: Detector, pixels: NDArray[np.uint8]) -> None:
    grey = pixels[..., 0]
    expected = loaded.predict(np.stack([grey] * 3, axis=-1))
    assert same(loaded.predict(grey), expected)
    assert same(loaded.predict(Image.fromarray(grey)), expected)
    assert same(loaded.predict(torch.from_numpy(grey)[None]), expected)


@pytest.mark.slow
def test_one_image_gives_an_object_and_many_a_list(
    loaded: Detector, pixels: NDArray[np.uint8]
) -> None:
    assert isinstance(loaded.predict(pixels), Detections)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    pair = [pixels, tensor]
    stacked = np.stack([pixels] * 2), torch.stack([tensor] * 2)
    kinds: list[Any] = [pair, tuple(pair), iter(pair), *stacked]
    for many in kinds:
        results = loaded.predict(many)
        assert isinstance(results, list) and len(results) == 2 and same(*results)
    assert loaded.predict([]) == [] and len(loaded.predict([pixels])) == 1


@pytest.mark.slow
def test_classes_and_scores_are_selected(loaded: Detector, pixels: NDArray[np.uint8]) -> None:
    everything = loaded.predict(pixels, min_score=0.1)
    assert set(everything.names) == set(NAMES)
    for classes in ("two", ["two"], iter(["two"])):
        two = loaded.predict(pixels, min_score=0.1, classes=classes)
        assert [*two] == [found for found in everything if found.name == "two"]
    assert {found.label for found in two} == {8} and loaded.names[8] == "two"
    high = loaded.predict(pixels, min_score=0.3)
    assert [*high] == [found for found in everything if found.score >= 0.3]
    assert "'four' is not a class" in error_message(loaded.predict, pixels, classes=["four"])
    numbers: dict[str, Any] = {"min_score": np.float32(0.3), "batch_size": np.int64(1)}
    assert same(loaded.predict(pixels, **numbers), high)
    # The result of a filter that leaves no class.
    assert len(loaded.predict(pixels, min_score=0.1, classes=[])) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_score": 2}, "min_score: expected a number from 0 to 1, found 2"),
        ({"min_score": math.nan}, "min_score: expected a number from 0 to 1, found nan"),
        ({"min_score": "0.5"}, "min_score: expected a number from 0 to 1, found '0.5'"),
        ({"batch_size": 1.5}, "batch_size: expected a whole number from 1, found 1.5"),
        ({"batch_size": 0}, "batch_size: expected a whole number from 1, found 0"),
        ({"classes": 3}, "classes: expected names, found 3"),
        ({"classes": [3]}, "classes: 3 is not a class of the checkpoint: one, "),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(
    loaded: Detector, pixels: NDArray[np.uint8], arguments: dict[str, Any], message: str
) -> None:
    assert error_message(loaded.predict, pixels, **arguments).startswith(message)


@pytest.mark.slow
def test_pixels_that_were_overwritten_are_not_drawn(
    loaded: Detector, pixels: NDArray[np.uint8]
) -> None:
    """As the buffer of a camera, which has the next frame by then."""
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    for picture in (pixels, tensor, pixels[..., ::-1], Image.fromarray(pixels)):
        found = loaded.predict(picture)
        assert found.draw().size == (720, 480)  # Small images are enlarged
        if isinstance(picture, Image.Image):
            picture.putpixel((0, 0), (1, 2, 3))
        else:
            pixels += 1
        assert "its pixels have changed since predict" in error_message(found.draw)


@pytest.mark.slow
def test_drawing_and_text(
    loaded: Detector, pixels: NDArray[np.uint8], tmp_path: Path, detector: Path, run_here: RunHere
) -> None:
    file = tmp_path / "a.png"
    Image.fromarray(pixels).save(file)
    found = loaded.predict(file)
    words = ("--checkpoint", detector, "--precision", "float32", "--out", tmp_path / "out")
    assert run_here(main, "predict", file, *words).returncode == 0
    with Image.open(tmp_path / "out" / "a.boxes.png") as drawn:
        assert same_pixels(found.draw(), drawn)
    assert same_pixels(loaded.predict(pixels).draw(), found.draw())
    assert f"{file}, 90×60 pixels, {len(found)} objects: {found.names[0]} 0." in repr(found)
    assert "pixels, 0 objects>" in repr(loaded.predict(pixels, min_score=1))
    assert repr(loaded).endswith("64×64 pixels, float32, one, two, three>")
    file.unlink()
    assert "no such image file" in error_message(found.draw)


WRONG: list[tuple[object, str]] = [
    (np.zeros((4, 4, 3)), "array of float64: expected uint8"),
    (np.zeros((3, 8, 9), np.uint8), "array of 3 × 8 × 9: expected height × width × 3 (RGB;"),
    (np.zeros((8, 9, 4), np.uint8), "array of 8 × 9 × 4: expected height × width × 3"),
    (np.zeros((8,), np.uint8), "array of 8: expected"),
    (np.zeros((0, 9, 3), np.uint8), "array of 0 × 9 × 3: has no pixels"),
    (torch.zeros(3, 8, 9), "tensor of float32: expected uint8"),
    (torch.zeros(8, 9, 3, dtype=torch.uint8), "tensor of 8 × 9 × 3: expected 3 × height × width"),
    (Image.new("F", (8, 9)), "Pillow image: 32-bit pixels"),
    (Image.new("RGB", (0, 5)), "Pillow image: has no pixels"),
    (np.broadcast_to(np.uint8(0), (10**5, 10**5)), "100000×100000 pixels exceed the limit"),
    (np.zeros((1, 65_536, 3), np.uint8), "65536×1 pixels; a side of 65535 is the limit; shrink it"),
    (torch.zeros(1, 1, 1, dtype=torch.uint8).expand(3, 10**5, 10**5), "exceed the limit"),
    (torch.zeros(3, 0, 0, dtype=torch.uint8), "tensor of 3 × 0 × 0: has no pixels"),
    (torch.zeros(3, 8, 9, dtype=torch.uint8, device="meta"), "device meta: has no pixels"),
    (torch.zeros(3, 8, 9, dtype=torch.uint8).to_sparse(), "sparse_coo tensor: expected a dense"),
    (3, "int is no image; give a path, the bytes of a file, a Pillow image"),
    ([3], "int is no image; give a path, the bytes of a file, a Pillow image"),
    ({"a.jpg": 1}, "dict is no image"),
    (b"text", "4 bytes: not an image in JPEG"),
    (BytesIO(b"text"), "BytesIO is an open file; give its path, or its bytes: file.read()"),
    ([BytesIO(b"text")], "BytesIO is an open file"),
    ("x" * 300, "x: cannot be read: File name too long"),
    ("a\0b", "a�b: damaged image: open: embedded null character"),
    ("none.jpg", "none.jpg: no such image file"),
    (Path(__file__).parent, "is a folder; give its files, such as sorted(Path("),
]


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[text for _, text in WRONG])
def test_wrong_images_are_refused_in_one_line(loaded: Detector, wrong: Any, message: str) -> None:
    assert message in error_message(loaded.predict, wrong)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 8])
def test_damaged_photo_among_others_is_named(
    loaded: Detector, photos: list[Path], tmp_path: Path, batch_size: int
) -> None:
    damaged = tmp_path / "damaged.jpg"
    damaged.write_bytes(b"text")
    files = [photos[0], damaged, photos[0]]
    message = error_message(partial(loaded.predict, batch_size=batch_size), files)
    assert message.startswith(f"{damaged}: ")
    assert len(loaded.predict([files[0], files[2]])) == 2  # the detector is as usable as before


@pytest.mark.slow
@pytest.mark.parametrize(("flag", "precision"), [("avx512_bf16", "bf16"), ("avx512bw", "float32")])
def test_precision_is_the_processors_unless_it_is_named(
    flag: str, precision: str, detector: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is one of a training in float32, as converted ones are."""
    monkeypatch.setattr("common.machine.cpu_flags", lambda: {flag})
    assert Detector.load(detector).precision == precision
    for named in ("bf16", "float32"):
        assert Detector.load(detector, precision=named).precision == named
    assert Detector.load(detector, precision=None).precision == "float32"


@pytest.mark.slow
def test_errors_of_load_name_the_path_and_the_fix(tmp_path: Path, detector: Path) -> None:
    assert "does not exist; give runs/NAME" in error_message(Detector.load, tmp_path / "none")
    assert "contains no checkpoint" in error_message(Detector.load, str(tmp_path))
    assert "is a pickle" in error_message(Detector.load, tmp_path / "model.pth")
    message = error_message(Detector.load, detector, precision="fp16")
    assert message == "precision: expected auto, bf16 or float32, found 'fp16'"
    with pytest.raises(ValueError, match="does not exist"):
        Detector.load(tmp_path / "none")
    assert error_message(Detector.load, "x" * 300) == f"{'x' * 300}: File name too long"
    assert issubclass(retinanet.InputError, InputError)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_of_a_file_are_its_image(
    loaded: Detector, photos: list[Path], kind: Callable[[bytes], Any]
) -> None:
    expected = loaded.predict(photos[0], min_score=0.2)
    found = loaded.predict(kind(photos[0].read_bytes()), min_score=0.2)
    assert same(found, expected) and found.path is None
    assert same_pixels(found.draw(), expected.draw())


@pytest.mark.slow
def test_pillow_image_is_turned_as_its_file(tmp_path: Path, pixels: NDArray[np.uint8]) -> None:
    exif = Image.Exif()
    exif[0x0112] = 8
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    with Image.open(tmp_path / "a.png") as image:
        assert same_pixels(Image.fromarray(read_picture(image)), ImageOps.exif_transpose(image))
        assert np.array_equal(read_picture(image), read_picture(tmp_path / "a.png"))


@pytest.mark.slow
def test_threads_may_share_a_detector(loaded: Detector, pixels: NDArray[np.uint8]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    pictures = [np.roll(pixels, shift, axis=1) for shift in range(6)]
    expected = [loaded.predict(picture) for picture in pictures]
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(loaded.predict, pictures))
    assert all(map(same, results, expected))
