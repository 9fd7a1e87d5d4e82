"""Augmented samples: geometry against painted objects, and what they depend on."""

import random
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from data.annotations import (
    MINIMUM_SIDE,
    ClassMap,
    Resize,
    TrainingRules,
    content_size,
    input_size,
)
from data.augmentation import (
    AUGMENTATIONS,
    JITTER,
    Augmentation,
    View,
    distort,
    view_boxes,
    whole_view,
    window_view,
)
from data.coco_json import read_annotations
from data.dataset import Batch, DetectionDataset, SampleKey
from data.loader import DetectionLoader, TrainingBatches
from data.tiling import Window
from data.transforms import PADDING
from retinanet.training.train_state import seed_everything
from tests.data.samples import one_box_dataset, write_json

EVERYTHING = ("ssd", "strong")
BOTH: tuple[Resize, ...] = get_args(Resize)


def painted_dataset(
    folder: Path,
    *,
    shape: tuple[int, int],
    boxes: Sequence[tuple[int, int, int, int]],
    **options: Any,
) -> DetectionDataset:
    """Return a data set of one dark picture, in which each object has a colour of its own."""
    height, width = shape
    pixels = np.full((height, width, 3), 40, dtype=np.uint8)
    for (x1, y1, x2, y2), colour in zip(boxes, COLOURS, strict=False):
        pixels[y1:y2, x1:x2] = colour
    Image.fromarray(pixels).save(folder / "0.png")
    content = {
        "images": [{"id": 1, "file_name": "0.png", "width": width, "height": height}],
        "annotations": [
            {
                "id": index + 1,
                "image_id": 1,
                "category_id": index + 1,
                "bbox": [x1, y1, x2 - x1, y2 - y1],
            }
            for index, (x1, y1, x2, y2) in enumerate(boxes)
        ],
        "categories": [{"id": index + 1, "name": f"kind {index}"} for index in range(len(COLOURS))],
    }
    annotations = read_annotations(write_json(folder / "labels.json", content))
    classes = ClassMap.contiguous(annotations.category_ids, annotations.category_names)
    train = options.pop("train", True)
    return DetectionDataset(annotations, folder, classes, TrainingRules(**options), train=train)


COLOURS = ((250, 0, 0), (0, 250, 0), (0, 0, 250))
BOXES = ((10, 20, 60, 70), (90, 10, 140, 40), (70, 50, 150, 95))


def colour_box(image: Tensor, label: int) -> NDArray[np.float64] | None:
    """Return the box of the pixels that have the colour of an object, if there are any."""
    channels = image.int()
    others = channels[[channel for channel in range(3) if channel != label]].amax(dim=0)
    mask = channels[label] - others > 105  # at least half of the colour
    rows, columns = mask.any(dim=1).nonzero(), mask.any(dim=0).nonzero()
    if not len(rows):
        return None
    edges = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
    return np.array([int(edge) for edge in edges], dtype=np.float64)


@pytest.mark.parametrize("resize", BOTH)
@pytest.mark.parametrize("names", [("flip",), ("flip", "scale_jitter"), ("ssd", "scale_jitter")])
def test_boxes_follow_the_painted_objects(
    tmp_path: Path, names: tuple[str, ...], resize: Resize
) -> None:
    dataset = painted_dataset(
        tmp_path, shape=(100, 160), boxes=BOXES, image_size=128, resize=resize, augmentation=names
    )
    # Colours would hide the objects: geometry alone.
    dataset.augmentation.steps -= {"photometric"}
    compared, sizes = 0, set()
    for seed in range(150):
        sample = dataset[SampleKey(0, seed)]
        boxes, labels = sample.target["boxes"].numpy(), sample.target["labels"].tolist()
        for box, label in zip(boxes, labels, strict=True):
            painted = colour_box(sample.image, label)
            if painted is None:  # a few pixels wide
                assert (box[2:] - box[:2]).min() < 4
                continue
            np.testing.assert_allclose(box, painted, atol=1.6)
            sizes.add(round(float(box[2] - box[0])))
            compared += 1
    assert compared > 200 and (len(sizes) > 30 or names == ("flip",))


def test_flip_is_that_of_the_seed_and_nothing_else(tmp_path: Path) -> None:
    dataset = one_box_dataset(tmp_path, train=True)
    plain = one_box_dataset(tmp_path, train=False)
    mirrored = []
    for seed in range(40):
        sample, expected = dataset[SampleKey(3, seed)], plain[SampleKey(3, 0)]
        is_mirrored = np.random.default_rng(seed).random() < 0.5
        image = expected.image.flip(-1) if is_mirrored else expected.image
        assert torch.equal(sample.image, image)
        # 8 pixels wide at x = 2, 9 high at y = 3, of 32×24 pixels: on the square 32×32
        box = [22, 4, 30, 16] if is_mirrored else [2, 4, 10, 16]
        assert sample.target["boxes"].tolist() == [box]
        mirrored.append(is_mirrored)
    assert 10 < sum(mirrored) < 30


def test_no_name_leaves_images_as_evaluation_has_them(tmp_path: Path) -> None:
    dataset = one_box_dataset(tmp_path, train=True, augmentation=())
    plain = one_box_dataset(tmp_path, train=False)
    for seed in range(5):
        assert torch.equal(dataset[SampleKey(1, seed)].image, plain[SampleKey(1, 0)].image)


@pytest.mark.parametrize(
    ("shape", "size"),
    [((40, 80), (32, 64)), ((80, 40), (64, 32)), ((50, 50), (64, 64)), ((1, 999), (1, 64))],
)
def test_letterbox_keeps_the_ratio(shape: tuple[int, int], size: tuple[int, int]) -> None:
    assert content_size(shape, size=(64, 64), resize="letterbox") == size
    assert content_size(shape, size=(64, 64), resize="square") == (64, 64)


edge = st.integers(1, 5000)
side = st.integers(2, 60).map(lambda count: 32 * count)


@given(shape=st.tuples(edge, edge), image_size=st.tuples(side, side))
def test_rectangle_turns_with_the_image_and_is_filled_along_one_side(
    shape: tuple[int, int], image_size: tuple[int, int]
) -> None:
    size = input_size(shape, image_size)
    assert sorted(size) == sorted(image_size)
    upright = [height > width for height, width in (shape, size)]
    lying = [height < width for height, width in (shape, size)]
    assert all(upright) or all(lying) or size == image_size  # one of both is a square
    height, width = content_size(shape, size=size, resize="letterbox")
    scale = min(size[0] / Fraction(shape[0]), size[1] / Fraction(shape[1]))
    for scaled, whole in zip((height, width), shape, strict=True):
        assert abs(scaled - max(Fraction(1), whole * scale)) <= Fraction(1, 2)
    assert height == size[0] or width == size[1]
    assert content_size(shape, size=size, resize="square") == size


def test_letterbox_has_hand_computed_boxes_and_padding(tmp_path: Path) -> None:
    options: dict[str, Any] = {"shape": (40, 80), "boxes": ((10, 10, 30, 30),), "image_size": 64}
    plain = painted_dataset(tmp_path, train=False, resize="letterbox", **options)
    sample = plain[SampleKey(0, 0)]
    assert sample.target["boxes"].tolist() == [[8, 8, 24, 24]]
    assert sample.image.shape == (3, 64, 64) and sample.image.stride() == (1, 192, 3)
    assert (sample.image[:, 32:].permute(1, 2, 0) == torch.tensor(PADDING)).all()
    assert (sample.image[:, 31] < 50).all()
    mirrored = painted_dataset(tmp_path, resize="letterbox", **options)[SampleKey(0, 1)]
    seen = [painted_dataset(tmp_path, resize="letterbox", **options)[SampleKey(0, seed)].target
            ["boxes"].tolist() for seed in range(8)]  # fmt: skip
    assert [[40, 8, 56, 24]] in seen and [[8, 8, 24, 24]] in seen
    # Padding stays below: the image is mirrored within itself.
    assert (mirrored.image[:, 32:].permute(1, 2, 0) == torch.tensor(PADDING)).all()


def test_windows_have_hand_computed_views() -> None:
    options: dict[str, Any] = {"size": (64, 64), "resize": "square"}
    # A quarter of the image, enlarged; a window four times as large, the image in its middle.
    inside = window_view(Window(40, 0, 80, 20), (40, 80), **options)
    assert inside == View((40, 0, 80, 20), (0, 0, 64, 64))
    outside = window_view(Window(-40, -20, 120, 60), (40, 80), **options)
    assert outside == View((0, 0, 80, 40), (16, 16, 48, 48))
    letterbox = window_view(Window(-40, -20, 120, 60), (40, 80), size=(64, 64), resize="letterbox")
    assert letterbox == View((0, 0, 80, 40), (16, 8, 48, 24))
    assert window_view(Window(80, 0, 120, 20), (40, 80), **options) is None
    sizes = {"original_size": (40, 80), "image_size": (40, 80)}
    boxes = torch.tensor([[50, 5, 60, 15], [30, 5, 50, 15], [20, 5, 44, 15]]).double()
    clipped, keep = view_boxes(boxes, View((40, 0, 80, 20), (0, 0, 64, 64)), **sizes)
    assert clipped.tolist() == [[16, 16, 32, 48], [0, 16, 16, 48], [0, 16, 6.4, 48]]
    # Half of the second box is visible, but a sixth of the third.
    assert keep.tolist() == [True, True, False]


def test_boxes_of_a_resized_copy_are_those_of_the_original() -> None:
    """The image file has half of the annotated pixels."""
    boxes = torch.tensor([[10, 10, 30, 30]]).double()
    view = View((10, 0, 30, 20), (0, 0, 64, 64))
    halved, _ = view_boxes(boxes, view, original_size=(40, 80), image_size=(20, 40))
    # The view is (20, 0) to (60, 40) in annotated pixels.
    assert halved.tolist() == [[0, 16, 16, 48]]


@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (2, 200), (200, 1)])
@pytest.mark.parametrize("resize", BOTH)
def test_images_of_a_few_pixels_are_augmented(
    tmp_path: Path, shape: tuple[int, int], resize: Resize
) -> None:
    dataset = painted_dataset(
        tmp_path,
        shape=shape,
        boxes=((0, 0, shape[1], shape[0]),),
        image_size=64,
        resize=resize,
        augmentation=EVERYTHING,
    )
    for seed in range(60):
        assert dataset[SampleKey(0, seed)].image.shape == (3, 64, 64)


def test_an_image_keeps_an_object_unless_images_without_boxes_are_trained_on(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {
        "shape": (100, 160),
        "boxes": ((0, 0, 8, 8),),
        "image_size": 64,
        "augmentation": ("scale_jitter",),
    }
    skipping = painted_dataset(tmp_path, skip_images_without_boxes=True, **options)
    training = painted_dataset(tmp_path, **options)
    counts = [
        [len(dataset[SampleKey(0, seed)].target["boxes"]) for seed in range(120)]
        for dataset in (skipping, training)
    ]
    assert set(counts[0]) == {1}
    # An enlarged window seldom has the corner.
    assert 20 < counts[1].count(0) < 100
    # No object at all: nothing to keep.
    empty = painted_dataset(tmp_path, **{**options, "boxes": (), "augmentation": EVERYTHING})
    assert all(not len(empty[SampleKey(0, seed)].target["labels"]) for seed in range(20))


def test_jitter_covers_its_range(tmp_path: Path) -> None:
    box = (60, 30, 100, 70)
    dataset = painted_dataset(
        tmp_path, shape=(100, 160), boxes=(box,), image_size=320, augmentation=("scale_jitter",)
    )
    factors = []
    for seed in range(200):
        boxes = dataset[SampleKey(0, seed)].target["boxes"]
        inside = (boxes > 0).all() and (boxes < 320).all()
        if len(boxes) and inside:
            # 40 of 160 pixels: a quarter of the square
            factors.append(float(boxes[0, 2] - boxes[0, 0]) / 80)
    assert min(factors) == pytest.approx(JITTER[0], abs=0.1)
    assert max(factors) == pytest.approx(JITTER[1], abs=0.1)


boxes_of_images = st.lists(
    st.tuples(*[st.floats(-0.2, 1.2)] * 4).map(
        lambda edges: (
            min(edges[0], edges[2]),
            min(edges[1], edges[3]),
            max(edges[0], edges[2]),
            max(edges[1], edges[3]),
        )
    ),
    max_size=6,
)


@given(
    shape=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    edges=boxes_of_images,
    seed=st.integers(0, 2**63 - 1),
    names=st.lists(st.sampled_from(sorted(AUGMENTATIONS)), unique=True),
    resize=st.sampled_from(BOTH),
    keeps_an_object=st.booleans(),
)
def test_boxes_stay_within_the_visible_image_and_have_an_area(
    *,
    shape: tuple[int, int],
    edges: list[tuple[float, float, float, float]],
    seed: int,
    names: list[str],
    resize: Resize,
    keeps_an_object: bool,
) -> None:
    height, width = shape
    scale = torch.tensor([width, height, width, height]).double()
    boxes = torch.tensor(edges).double().reshape(-1, 4) * scale
    sizes = {"original_size": shape, "image_size": shape}
    view = Augmentation(names).draw_view(
        boxes, seed=seed, size=(64, 64), resize=resize, keeps_an_object=keeps_an_object, **sizes
    )
    left, top, right, bottom = view.source
    assert 0 <= left < right <= width and 0 <= top < bottom <= height
    left, top, right, bottom = view.target
    assert 0 <= left < right <= 64 and 0 <= top < bottom <= 64
    visible, keep = view_boxes(boxes, view, **sizes)
    kept = visible[keep]
    assert (kept >= 0).all() and (kept[:, 2:] - kept[:, :2] >= MINIMUM_SIDE).all()
    assert (kept[:, [0, 2]] <= right - left).all() and (kept[:, [1, 3]] <= bottom - top).all()
    whole = whole_view(shape, size=(64, 64), resize=resize)
    if keeps_an_object and view_boxes(boxes, whole, **sizes)[1].any():
        assert keep.any()


def photo(height: int, width: int) -> Tensor:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return torch.from_numpy(pixels).permute(2, 0, 1)


def test_colours_are_those_of_torchvision() -> None:
    transform, image = v2.RandomPhotometricDistort(), photo(70, 190)
    changed = 0
    for seed in range(40):
        torch.manual_seed(seed)
        params = transform.make_params([image])
        result, expected = distort(image, params), transform.transform(image, params)
        assert result.dtype == torch.uint8 and result.stride() == (1, 570, 3)
        if params["contrast_factor"] is None:
            assert torch.equal(result, expected)
        else:
            # The mean is exact here; a level of difference grows with saturation and hue.
            assert (result.int() - expected.int()).abs().float().mean() < 0.6
        changed += not torch.equal(result, image)
    assert changed > 30


def test_contrast_is_torchvisions_to_a_level() -> None:
    none = dict.fromkeys(
        ("brightness_factor", "saturation_factor", "hue_factor", "channel_permutation")
    )
    image = photo(50, 60)
    for factor in (0.5, 0.9, 1.5):
        params = {**none, "contrast_factor": factor, "contrast_before": True}
        expected = functional.adjust_contrast(image, factor)
        assert (distort(image, params).int() - expected.int()).abs().max() <= 1


def test_colours_do_not_depend_on_the_number_of_threads() -> None:
    image, augmentation = photo(300, 400), Augmentation(["photometric"])
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append([augmentation.change_colours(image, seed=seed) for seed in range(8)])
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_generators_of_the_process_are_left_alone(tmp_path: Path) -> None:
    dataset = one_box_dataset(tmp_path, train=True, augmentation=EVERYTHING)
    seed_everything(5)
    expected = random.random(), np.random.random(), torch.rand(3).tolist()
    seed_everything(5)
    first = dataset[SampleKey(0, 11)]
    assert (random.random(), np.random.random(), torch.rand(3).tolist()) == expected
    # And they have no effect on the sample.
    second = dataset[SampleKey(0, 11)]
    assert torch.equal(first.image, second.image)
    assert not torch.equal(first.image, dataset[SampleKey(0, 12)].image)


def loaded(
    dataset: DetectionDataset, *, workers: int, rank: int = 0, ranks: int = 1, first: int = 0
) -> list[Batch]:
    batches = TrainingBatches(len(dataset), batch_size=4 // ranks, seed=3, rank=rank, ranks=ranks)
    batches.set_position(epoch=1, first=first)
    return list(DetectionLoader(dataset, batches, workers=workers))


@pytest.mark.slow
@pytest.mark.parametrize("resize", BOTH)
def test_workers_ranks_and_resumption_see_the_same_images(tmp_path: Path, resize: Resize) -> None:
    options: dict[str, Any] = {"augmentation": EVERYTHING, "resize": resize}
    dataset = one_box_dataset(tmp_path, images=16, train=True, **options)
    here = loaded(dataset, workers=0)
    assert len(here) == 4
    images = torch.cat([batch.images for batch in here])
    boxes = [target["boxes"] for batch in here for target in batch.targets]

    def require_same(batches: Sequence[Batch], *, start: int = 0) -> None:
        assert torch.equal(torch.cat([batch.images for batch in batches]), images[start:])
        others = [target["boxes"] for batch in batches for target in batch.targets]
        assert all(torch.equal(a, b) for a, b in zip(boxes[start:], others, strict=True))

    for workers in (1, 2):
        require_same(loaded(dataset, workers=workers))
    require_same(loaded(dataset, workers=1, first=8), start=8)
    pairs = zip(*(loaded(dataset, workers=0, rank=rank, ranks=2) for rank in (0, 1)), strict=True)
    require_same([batch for pair in pairs for batch in pair])
