import io
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from data.annotations import ClassMap, ImageSize, Resize, TrainingRules, input_size
from data.augmentation import view_boxes, whole_view
from data.dataset import DetectionDataset
from data.loader import evaluation_loader
from retinanet.engine.engines import Forward, torch_forward
from retinanet.evaluation.detect import (
    detect,
    detect_batch,
    detect_split,
    to_original_size,
)
from retinanet.evaluation.matching import ImageDetections
from retinanet.model.postprocess import Detections
from retinanet.model.retinanet import RetinaNet
from retinanet.training.signals import StopRequest
from retinanet.training.train_state import seed_everything
from tests.retinanet.report.samples import split, write_split

pytestmark = pytest.mark.slow
SIZES = [(96, 48), (48, 96), (64, 64)]
"""Width and height of the images; the model's square is 64×64."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> DetectionDataset:
    folder = tmp_path_factory.mktemp("images") / "written"
    drawn = split([(70, (8, 8, 38, 38))], [], [], names=("seventy", "thirty"), ids=(70, 30))
    widths, heights = np.array(SIZES, np.int32).T
    annotations = replace(drawn, image_ids=np.array([100, 99, 98]), widths=widths, heights=heights)
    write_split(folder, annotations)
    classes = ClassMap.contiguous(annotations.category_ids, annotations.category_names)
    rules = TrainingRules(image_size=64)
    return DetectionDataset(annotations, folder / "data", classes, rules, train=False)


@pytest.fixture(scope="module")
def model() -> RetinaNet:
    """A model that detects boxes everywhere: scores are near one half."""
    seed_everything(0)
    model = RetinaNet(num_classes=2, norm="batch", trainable_layers=5)
    bias = model.head.classification_head.cls_logits.bias
    assert bias is not None
    torch.nn.init.zeros_(bias)
    return model.to(memory_format=torch.channels_last)


def float32(model: RetinaNet) -> Forward:
    return torch_forward(model, precision="float32")


def run_detect(
    model: RetinaNet, dataset: DetectionDataset, *, batch_size: int
) -> list[ImageDetections]:
    loader = evaluation_loader(dataset, batch_size=batch_size)
    return list(detect(model, loader, classes=dataset.class_map, forward=float32(model)))


def test_detections_have_original_pixels_and_category_ids(
    model: RetinaNet, dataset: DetectionDataset
) -> None:
    images = run_detect(model, dataset, batch_size=3)
    [batch] = evaluation_loader(dataset, batch_size=3)
    in_square = detect_batch(model, batch.images, forward=float32(model))
    assert [image.image_id for image in images] == [100, 99, 98]
    for image, square, (width, height) in zip(images, in_square, SIZES, strict=True):
        assert len(image.boxes) > 20 and image.boxes.dtype == np.float64
        scale = np.array([width, height, width, height]) / 64
        np.testing.assert_allclose(image.boxes, square.boxes.numpy() * scale, rtol=1e-6)
        # Clipped boxes end at the right and lower edge of the original image.
        assert image.boxes[:, 2].max() == pytest.approx(width)
        assert image.boxes[:, 3].max() == pytest.approx(height)
        assert image.category_ids.tolist() == [(70, 30)[label] for label in square.labels]
        assert (np.diff(image.scores) <= 0).all()
        assert 0 < image.scores.min() <= image.scores.max() < 1
    assert set(np.concatenate([image.category_ids for image in images])) == {30, 70}


def test_letterbox_detections_are_within_the_original_image(
    model: RetinaNet, dataset: DetectionDataset
) -> None:
    letterbox = DetectionDataset(
        dataset.annotations,
        dataset.image_folder,
        dataset.class_map,
        TrainingRules(image_size=64, resize="letterbox"),
        train=False,
    )
    [batch] = evaluation_loader(letterbox, batch_size=3)
    loader = evaluation_loader(letterbox, batch_size=3)
    forward = float32(model)
    images = list(
        detect(model, loader, classes=dataset.class_map, forward=forward, resize="letterbox")
    )
    on_square = detect_batch(model, batch.images, forward=forward)
    for image, square, (width, height) in zip(images, on_square, SIZES, strict=True):
        scale = 64 / max(width, height)  # 2/3, 2/3, 1: the images are 64×32, 32×64 and 64×64
        content = torch.tensor([width, height, width, height]) * scale
        boxes = square.boxes.minimum(content)
        visible = (boxes[:, 2:] > boxes[:, :2]).all(dim=1)
        assert visible.all() == (width == height), "some boxes are on the padding alone"
        np.testing.assert_allclose(image.boxes, boxes[visible].numpy() / scale, rtol=1e-5)
        np.testing.assert_array_equal(image.scores, square.scores[visible].double().numpy())
        assert image.boxes[:, 2].max() == width and image.boxes[:, 3].max() == height


@pytest.mark.parametrize("shape", [(427, 640), (640, 427), (1, 333), (333, 335), (64, 64)])
@pytest.mark.parametrize("image_size", [416, (320, 416), (416, 224)])
def test_boxes_make_the_round_trip_through_the_network_input(
    shape: tuple[int, int], image_size: ImageSize
) -> None:
    """From annotated pixels to the network's input, as in training, and back as in evaluation."""
    height, width = shape
    random = np.random.default_rng(0)
    corners = np.sort(random.uniform(0, 1, (200, 2, 2)), axis=1) * [width, height]
    boxes = torch.from_numpy(corners.reshape(-1, 4))
    classes = ClassMap((70,), ("seventy",))
    resizes: tuple[Resize, ...] = ("square", "letterbox")
    size = input_size(shape, image_size)
    for resize in resizes:
        view = whole_view(shape, size=size, resize=resize)
        sizes = {"original_size": shape, "image_size": shape}
        on_square, keep = view_boxes(boxes, view, **sizes)
        labels = torch.zeros(int(keep.sum()), dtype=torch.int64)
        detections = Detections(on_square[keep].float(), labels.float(), labels)
        result = to_original_size(
            detections, classes, image_id=0, size=size, resize=resize, original_size=shape
        )
        np.testing.assert_allclose(result.boxes, boxes[keep].numpy(), atol=1e-4)


@pytest.mark.parametrize("resize", ["square", "letterbox"])
def test_images_of_both_orientations_are_detected_as_each_alone(
    model: RetinaNet, dataset: DetectionDataset, resize: Resize
) -> None:
    rules = TrainingRules(image_size=(64, 96), resize=resize)
    parts = (dataset.annotations, dataset.image_folder, dataset.class_map, rules)
    rectangles = DetectionDataset(*parts, train=False)

    def detected(batch_size: int) -> dict[int, ImageDetections]:
        loader = evaluation_loader(rectangles, batch_size=batch_size)
        classes, forward = dataset.class_map, float32(model)
        found = detect(model, loader, classes=classes, forward=forward, resize=resize)
        return {image.image_id: image for image in found}

    together, alone = detected(3), detected(1)
    assert together.keys() == alone.keys() == {98, 99, 100}
    for number, (width, height) in zip((100, 99, 98), SIZES, strict=True):
        np.testing.assert_allclose(together[number].boxes, alone[number].boxes, atol=1e-3)
        assert len(alone[number].boxes) > 20
        assert together[number].boxes[:, 2:].max(axis=0).tolist() == [width, height]


def test_scores_do_not_depend_on_batch_size(model: RetinaNet, dataset: DetectionDataset) -> None:
    single, batched = (run_detect(model, dataset, batch_size=size) for size in (1, 3))
    for first, second in zip(single, batched, strict=True):
        np.testing.assert_allclose(first.scores, second.scores, rtol=1e-4)


def test_detection_leaves_model_unchanged(model: RetinaNet, dataset: DetectionDataset) -> None:
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run_detect(model, dataset, batch_size=3)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_detection_shows_progress(model: RetinaNet, dataset: DetectionDataset) -> None:
    output = io.StringIO()
    detections = detect_split(
        model,
        evaluation_loader(dataset, batch_size=2),
        classes=dataset.class_map,
        forward=torch_forward(model, precision="bf16"),
        console=Console(file=output, width=120),
    )
    assert detections is not None
    assert set(detections.image_ids.tolist()) == {100, 99, 98}
    assert "3/3" in output.getvalue()


def test_signal_stops_evaluation(model: RetinaNet, dataset: DetectionDataset) -> None:
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        result = detect_split(
            model,
            evaluation_loader(dataset, batch_size=1),
            classes=dataset.class_map,
            forward=float32(model),
            console=Console(file=io.StringIO()),
            stop=stop,
        )
    assert result is None
