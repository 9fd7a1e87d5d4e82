import pytest
import torch
from torch import Tensor

from data.transforms import normalize
from retinanet.engine.engines import torch_forward
from retinanet.evaluation.detect import detect_batch
from retinanet.export.command import compare, compare_program, detections_of
from retinanet.export.program import DetectorProgram, fold_norms, suppress_by_class
from retinanet.model.postprocess import Detections
from retinanet.model.retinanet import RetinaNet
from tests.support.random_detectors import random_detector


def images_of(count: int, *, size: int = 64) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    shape = (count, 3, size, size)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


@pytest.fixture(scope="module")
def model() -> RetinaNet:
    return random_detector(classes=40)


@pytest.mark.parametrize("norm", ["frozen", "batch"])
def test_folded_norms_leave_the_outputs_as_they_are(norm: str) -> None:
    model = random_detector(norm=norm)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    images = normalize(images_of(1))
    with torch.no_grad():
        wanted, found = model(images), fold_norms(model)(images)
    assert not [name for name in fold_norms(model).state_dict() if "bn" in name]
    for one, other in zip(wanted.cls_logits, found.cls_logits, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-4)
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())


@pytest.mark.parametrize("threshold", [0.01, 0.05, 0.2, 0.999])
def test_a_program_finds_what_postprocess_finds(model: RetinaNet, threshold: float) -> None:
    images = images_of(3)
    program = DetectorProgram(model, image_size=64, score_threshold=threshold)
    found = detections_of(program(images))
    forward = torch_forward(model, precision="float32")
    wanted = detect_batch(model, images, forward=forward, score_threshold=threshold)
    counts = [len(one.scores) for one in wanted]
    assert (max(counts) == 0) == (threshold == 0.999)
    if threshold == 0.01:
        assert max(counts) == 300  # the limit is reached
    for one, other in zip(wanted, found, strict=True):
        compared = compare(one, other, score_threshold=threshold)
        assert compared.differing == 0
        assert compared.same >= 0.98 * len(one.scores)
        assert compared.box_difference < 1e-3 and compared.score_difference < 1e-5


def test_rows_without_a_detection_say_so(model: RetinaNet) -> None:
    program = DetectorProgram(model, image_size=64, score_threshold=0.4)
    boxes, scores, labels = program(images_of(2))
    empty = scores == 0
    assert empty.any() and not empty.all()
    assert (labels[empty] == -1).all() and (boxes[empty] == 0).all()
    assert (labels[~empty] >= 0).all() and (scores[~empty] > 0.4).all()
    assert (scores.diff(dim=1) <= 0).all()


def test_suppression_is_within_an_image_and_a_class() -> None:
    box = torch.tensor([10.0, 10.0, 30.0, 30.0])
    boxes = torch.stack([box, box + 1, box, box]).repeat(2, 1, 1)
    scores = torch.tensor([[0.9, 0.8, 0.7, 0.0], [0.1, 0.8, 0.7, 0.6]])
    labels = torch.tensor([[0, 0, 1, 0], [2, 2, 2, 2]])
    kept = suppress_by_class(boxes, scores, labels)
    assert kept.tolist() == [[True, False, True, False], [False, True, False, False]]


def test_another_models_program_is_found_out(model: RetinaNet) -> None:
    other = random_detector(classes=40)
    with torch.no_grad():
        other.head.classification_head.cls_logits.weight[0] *= 1.2
    program = DetectorProgram(other, image_size=64, score_threshold=0.1)
    compared = compare_program(model, program, images_of(2), score_threshold=0.1)
    assert compared.differing > 0


def found(box: list[float], score: float, label: int = 0) -> Detections:
    return Detections(torch.tensor([box]), torch.tensor([score]), torch.tensor([label]))


NOTHING = Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64))


@pytest.mark.parametrize(
    ("one", "other", "same", "differing", "edge"),
    [
        (found([0, 0, 9, 9], 0.5), found([0, 0, 9, 9.01], 0.5002), 1, 0, 0),
        (found([0, 0, 9, 9], 0.5), found([0, 0, 9, 9.2], 0.5), 0, 2, 0),
        (found([0, 0, 9, 9], 0.5), found([0, 0, 9, 9], 0.6), 0, 2, 0),
        (found([0, 0, 9, 9], 0.5), found([0, 0, 9, 9], 0.5, 1), 0, 2, 0),
        (found([0, 0, 9, 9], 0.5), NOTHING, 0, 1, 0),
        (NOTHING, found([0, 0, 9, 9], 0.1003), 0, 0, 1),
        (NOTHING, NOTHING, 0, 0, 0),
    ],
)
def test_comparing_two_detections_by_hand(
    one: Detections, other: Detections, same: int, differing: int, edge: int
) -> None:
    compared = compare(one, other, score_threshold=0.1)
    assert (compared.same, compared.differing, compared.at_the_edge) == (same, differing, edge)


def test_a_box_at_the_edge_of_suppression_may_be_there_or_not() -> None:
    """A box of IoU 0.5 with a better one, to a ten-thousandth."""
    better = found([0.0, 0.0, 10.0, 10.0], 0.9)
    worse = found([0.0, 0.0, 10.0, 5.0002], 0.8)
    both = Detections(*(torch.cat(parts) for parts in zip(better, worse, strict=True)))
    assert compare(better, both, score_threshold=0.1).at_the_edge == 1
    clear = found([0.0, 0.0, 10.0, 4.0], 0.8)
    both = Detections(*(torch.cat(parts) for parts in zip(better, clear, strict=True)))
    assert compare(better, both, score_threshold=0.1).differing == 1
