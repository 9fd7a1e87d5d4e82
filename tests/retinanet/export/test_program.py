import pytest
import torch
from torch import Tensor

from data.transforms import normalize
from retinanet.engine.engines import torch_forward
from retinanet.evaluation.detect import detect_batch
from retinanet.export.command import compare, compare_program, split_detections
from retinanet.export.program import DetectorProgram, fold_norms, suppress_by_class
from retinanet.model.postprocess import Detections
from retinanet.model.retinanet import RetinaNet
from tests.support.random_detectors import random_detector

pytestmark = pytest.mark.slow


def random_images(count: int, *, size: tuple[int, int] = (64, 64)) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    shape = (count, 3, *size)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


@pytest.fixture(scope="module")
def model() -> RetinaNet:
    return random_detector(classes=40)


@pytest.mark.parametrize("norm", ["frozen", "batch"])
def test_folding_norms_keeps_outputs(norm: str) -> None:
    model = random_detector(norm=norm)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    images = normalize(random_images(1))
    with torch.no_grad():
        expected, actual = model(images), fold_norms(model)(images)
    assert not [name for name in fold_norms(model).state_dict() if "bn" in name]
    torch.testing.assert_close(actual.cls_logits, expected.cls_logits, rtol=1e-3, atol=1e-4)
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())


@pytest.mark.parametrize(
    ("threshold", "size"),
    [(0.01, (64, 64)), (0.05, (64, 96)), (0.2, (128, 64)), (0.999, (64, 64))],
)
def test_program_equals_postprocess(
    model: RetinaNet, threshold: float, size: tuple[int, int]
) -> None:
    images = random_images(3, size=size)
    program = DetectorProgram(model, size=size, score_threshold=threshold)
    actual = split_detections(program(images))
    forward = torch_forward(model, precision="float32")
    expected = detect_batch(model, images, forward=forward, score_threshold=threshold)
    counts = [len(image.scores) for image in expected]
    assert (max(counts) == 0) == (threshold == 0.999)
    if threshold == 0.01:
        assert max(counts) == 300  # the limit is reached
    for first, second in zip(expected, actual, strict=True):
        compared = compare(first, second, score_threshold=threshold)
        assert compared.differing == 0
        assert compared.equal >= 0.98 * len(first.scores)
        assert compared.box_difference < 1e-3 and compared.score_difference < 1e-5


def test_unused_rows_are_marked(model: RetinaNet) -> None:
    program = DetectorProgram(model, size=(64, 64), score_threshold=0.4)
    boxes, scores, labels = program(random_images(2))
    empty = scores == 0
    assert empty.any() and not empty.all()
    assert (labels[empty] == -1).all() and (boxes[empty] == 0).all()
    assert (labels[~empty] >= 0).all() and (scores[~empty] > 0.4).all()
    assert (scores.diff(dim=1) <= 0).all()


def test_suppression_is_per_image_and_class() -> None:
    box = torch.tensor([10.0, 10.0, 30.0, 30.0])
    boxes = torch.stack([box, box + 1, box, box]).repeat(2, 1, 1)
    scores = torch.tensor([[0.9, 0.8, 0.7, 0.0], [0.1, 0.8, 0.7, 0.6]])
    labels = torch.tensor([[0, 0, 1, 0], [2, 2, 2, 2]])
    keep = suppress_by_class(boxes, scores, labels)
    assert keep.tolist() == [[True, False, True, False], [False, True, False, False]]


def test_program_of_another_model_differs(model: RetinaNet) -> None:
    other = random_detector(classes=40)
    with torch.no_grad():
        other.head.classification_head.cls_logits.weight[0] *= 1.2
    program = DetectorProgram(other, size=(64, 64), score_threshold=0.1)
    compared = compare_program(model, program, random_images(2), score_threshold=0.1)
    assert compared.differing > 0


def detection(box: list[float], score: float, label: int = 0) -> Detections:
    return Detections(torch.tensor([box]), torch.tensor([score]), torch.tensor([label]))


NO_DETECTIONS = Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64))


@pytest.mark.parametrize(
    ("first", "second", "equal", "differing", "edge"),
    [
        (detection([0, 0, 9, 9], 0.5), detection([0, 0, 9, 9.01], 0.5002), 1, 0, 0),
        (detection([0, 0, 9, 9], 0.5), detection([0, 0, 9, 9.2], 0.5), 0, 2, 0),
        (detection([0, 0, 9, 9], 0.5), detection([0, 0, 9, 9], 0.6), 0, 2, 0),
        (detection([0, 0, 9, 9], 0.5), detection([0, 0, 9, 9], 0.5, 1), 0, 2, 0),
        (detection([0, 0, 9, 9], 0.5), NO_DETECTIONS, 0, 1, 0),
        (NO_DETECTIONS, detection([0, 0, 9, 9], 0.1003), 0, 0, 1),
        (NO_DETECTIONS, NO_DETECTIONS, 0, 0, 0),
    ],
)
def test_compare(
    first: Detections, second: Detections, equal: int, differing: int, edge: int
) -> None:
    compared = compare(first, second, score_threshold=0.1)
    assert (compared.equal, compared.differing, compared.at_the_edge) == (equal, differing, edge)


def test_box_near_the_suppression_iou_may_be_missing() -> None:
    """The IoU with a better box is 0.5 up to 1e-4."""
    better = detection([0.0, 0.0, 10.0, 10.0], 0.9)
    worse = detection([0.0, 0.0, 10.0, 5.0002], 0.8)
    both = Detections(*(torch.cat(parts) for parts in zip(better, worse, strict=True)))
    assert compare(better, both, score_threshold=0.1).at_the_edge == 1
    clear = detection([0.0, 0.0, 10.0, 4.0], 0.8)
    both = Detections(*(torch.cat(parts) for parts in zip(better, clear, strict=True)))
    assert compare(better, both, score_threshold=0.1).differing == 1
