import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torchvision.ops import sigmoid_focal_loss

from common.errors import InputError
from common.native import find_compiler
from retinanet.loss.focal import FORMS, focal_loss, level_loss, try_kernel
from retinanet.loss.focal_kernel import FOCAL_LOSS
from tests.support.no_compiler import no_compiler

every_form = pytest.mark.parametrize("form", FORMS)


def levels(*, num_classes: int = 37, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Logits of two images on three levels; the last is empty."""
    torch.manual_seed(0)
    sizes = (300, 41, 0)
    return [(torch.randn(2, size, num_classes) * 4 - 2).to(dtype) for size in sizes]


def random_classes(logits: list[Tensor]) -> list[Tensor]:
    """Return views of one tensor, as in training: background, ignored and every label."""
    sizes = [level.shape[1] for level in logits]
    classes = torch.randint(-2, logits[0].shape[2], (2, sum(sizes)))
    return list(classes.split(sizes, dim=1))


def by_torchvision(
    logits: list[Tensor], classes: list[Tensor], alpha: float, gamma: float
) -> list[Tensor]:
    """Return the loss of each image's counted anchors over all levels, in float64."""
    together, wanted = torch.cat(logits, dim=1).double(), torch.cat(classes, dim=1)
    losses = []
    for image_logits, image_classes in zip(together, wanted, strict=True):
        counted = image_classes != -2
        num_classes = image_logits.shape[1]
        one_hot = torch.nn.functional.one_hot(image_classes.clamp(min=-1) + 1, num_classes + 1)
        targets = one_hot[:, 1:].double()
        loss = sigmoid_focal_loss(image_logits[counted], targets[counted], alpha, gamma)
        losses.append(loss)
    return losses


def gradients(loss: Tensor, logits: list[Tensor]) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, logits)])


@every_form
def test_values_worked_out_by_hand(form: str) -> None:
    # Logit 0: p = 1/2, cross entropy ln 2, (1 - p_t)^2 = 1/4; alpha .25 for the class, .75 else.
    logits = torch.zeros(2, 2, 3)
    classes = torch.tensor([[1, -1], [-2, -1]])
    unit = math.log(2) / 4
    foreground, background = (0.25 + 2 * 0.75) * unit, 3 * 0.75 * unit
    loss = focal_loss([logits], [classes], form=form)
    torch.testing.assert_close(loss, torch.tensor(foreground + 2 * background))
    losses = level_loss(form, logits, classes, torch.ones(2), alpha=0.25, gamma=2.0, reduce=False)
    torch.testing.assert_close(losses[0, 0], torch.tensor([0.75, 0.25, 0.75]) * unit)
    assert losses[1, 0].eq(0).all()


@every_form
@pytest.mark.parametrize(
    ("alpha", "gamma"), [(0.25, 0), (0.25, 1), (0.25, 2), (0.4, 2.5), (0, 2), (1, 2), (-1, 2.5)]
)
def test_loss_and_gradient_are_torchvisions(form: str, alpha: float, gamma: float) -> None:
    logits = [level.requires_grad_() for level in levels()]
    classes = random_classes(logits)
    weights = torch.tensor([0.3, 2.0])
    loss = focal_loss(logits, classes, alpha=alpha, gamma=gamma, image_weights=weights, form=form)
    images = by_torchvision(logits, classes, alpha, gamma)
    expected = 0.3 * images[0].sum() + 2.0 * images[1].sum()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(
        gradients(loss, logits), gradients(expected, logits), rtol=1e-5, atol=2e-6
    )


@every_form
def test_bf16_logits_are_computed_in_float32(form: str) -> None:
    logits = [level.requires_grad_() for level in levels(dtype=torch.bfloat16)]
    classes = random_classes(logits)
    wide = [level.detach().double().requires_grad_() for level in logits]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = focal_loss(logits, classes, form=form)
    expected = torch.cat(by_torchvision(wide, classes, 0.25, 2.0)).sum()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=0)
    gradient = gradients(loss, logits)
    assert gradient.dtype == torch.bfloat16
    # Rounded to BF16 once: 8 bits.
    torch.testing.assert_close(
        gradient.double(), gradients(expected, wide), rtol=2**-8 + 1e-5, atol=2e-6
    )


@every_form
@pytest.mark.parametrize("alpha", [0.25, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_class_weights_multiply_the_loss_of_the_class_that_an_anchor_is(
    form: str, alpha: float, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    # The first level is one for which the kernel makes a table of BF16 values.
    logits = [(torch.randn(2, size, 37) * 4 - 2).to(dtype) for size in (7200, 41)]
    classes = random_classes(logits)
    weights, of_class = torch.tensor([0.3, 2.0]), torch.logspace(-3, 3, 37, dtype=torch.float64)
    wide = [level.double().requires_grad_() for level in logits]
    expected = torch.zeros((), dtype=torch.float64)
    for level, labels in zip(wide, classes, strict=True):
        one_hot = torch.nn.functional.one_hot(labels.clamp(min=-1) + 1, 38)[..., 1:].double()
        losses = sigmoid_focal_loss(level, one_hot, alpha, 2.0)
        factors = one_hot * of_class + (1 - one_hot)  # negatives keep their loss
        counted = (labels != -2).unsqueeze(-1) * weights.double()[:, None, None]
        expected = expected + (losses * factors * counted).sum()
    logits = [level.requires_grad_() for level in logits]
    loss = focal_loss(
        logits, classes, alpha=alpha, image_weights=weights, class_weights=of_class, form=form
    )
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=0)
    rounding = 2**-8 if dtype == torch.bfloat16 else 0
    torch.testing.assert_close(
        gradients(loss, logits).double(), gradients(expected, wide), rtol=rounding + 1e-5, atol=2e-6
    )
    single = [
        level_loss(form, *level, weights, of_class, alpha=alpha, gamma=2.0, reduce=False).double()
        for level in zip(logits, classes, strict=True)
    ]
    torch.testing.assert_close(sum(map(torch.sum, single)), expected, rtol=1e-6, atol=0)


@every_form
def test_class_weights_of_one_change_no_bit(form: str) -> None:
    logits = [level.requires_grad_() for level in levels()]
    classes = random_classes(logits)
    plain = focal_loss(logits, classes, form=form)
    weighted = focal_loss(logits, classes, class_weights=torch.ones(37), form=form)
    assert torch.equal(plain, weighted)
    assert torch.equal(gradients(plain, logits), gradients(weighted, logits))


@every_form
def test_the_sum_and_its_gradient_are_those_of_the_single_losses(form: str) -> None:
    logits = [level.requires_grad_() for level in levels()]
    classes = random_classes(logits)
    weights = torch.tensor([0.3, 2.0])
    losses = [
        level_loss(form, *level, weights, alpha=0.25, gamma=2.0, reduce=False)
        for level in zip(logits, classes, strict=True)
    ]
    total = focal_loss(logits, classes, image_weights=weights, form=form)
    assert [level.shape for level in losses] == [level.shape for level in logits]
    added = torch.stack([level.double().sum() for level in losses]).sum()
    torch.testing.assert_close(total.double(), added, rtol=1e-6, atol=0)
    thrice = gradients(focal_loss(logits, classes, image_weights=weights, form=form) * 3, logits)
    # Any gradient from above, not only ones.
    factors = [torch.randn_like(level) for level in losses]
    weighed = sum((f * level).sum() for f, level in zip(factors, losses, strict=True))
    once = gradients(total, logits)
    torch.testing.assert_close(thrice, once * 3)
    torch.testing.assert_close(
        gradients(torch.as_tensor(weighed), logits),
        once * torch.cat([f.flatten() for f in factors]),
    )


@every_form
@pytest.mark.parametrize("reduce", [True, False])
def test_ignored_anchors_contribute_nothing_even_when_not_finite(form: str, reduce: bool) -> None:
    logits = torch.tensor([[[math.nan], [math.inf], [-math.inf], [1.0]]], requires_grad=True)
    classes = torch.tensor([[-2, -2, -2, -1]])
    nothing = focal_loss([logits], [torch.full((1, 4), -2)], form=form)
    assert nothing.item() == 0.0
    assert gradients(nothing, [logits]).eq(0).all()
    loss = level_loss(
        form, logits, classes, torch.ones(1), alpha=0.25, gamma=2.0, reduce=reduce
    ).sum()
    loss.backward()
    assert loss.isfinite()
    assert logits.grad is not None
    assert logits.grad[0, :3].eq(0).all()
    assert logits.grad[0, 3] > 0


@every_form
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("label", [-1, 0, 1])
def test_a_nan_logit_makes_the_loss_nan(form: str, dtype: torch.dtype, label: int) -> None:
    logits = torch.zeros(1, 1, 2, dtype=dtype)
    logits[0, 0, 0] = math.nan
    assert focal_loss([logits], [torch.tensor([[label]])], form=form).isnan()


@every_form
def test_losses_of_confident_predictions(form: str) -> None:
    logits = torch.tensor([[[200.0, -200.0]]], requires_grad=True)
    right = focal_loss([logits], [torch.tensor([[0]])], form=form)
    assert right.item() < 1e-30
    wrong = focal_loss([logits], [torch.tensor([[1]])], form=form)
    torch.testing.assert_close(wrong, torch.tensor(200.0 * (0.25 + 0.75)))
    torch.testing.assert_close(gradients(wrong, [logits]), torch.tensor([0.75, -0.25]))


@every_form
def test_logits_may_have_any_strides(form: str) -> None:
    (dense, *_), (classes, *_) = levels(), random_classes(levels())
    strided = torch.stack([dense, dense], dim=-1)[..., 0].requires_grad_()
    assert not strided.is_contiguous()
    maps = dense.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    dense.requires_grad_()
    expected = focal_loss([dense], [classes], form=form)
    for logits in (strided, maps):
        loss = focal_loss([logits], [classes], form=form)
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(
            torch.autograd.grad(loss, logits)[0],
            torch.autograd.grad(expected, dense, retain_graph=True)[0],
        )


@every_form
def test_a_label_beyond_the_classes_is_an_error(form: str) -> None:
    with pytest.raises((IndexError, RuntimeError)):
        focal_loss([torch.zeros(1, 1, 3)], [torch.tensor([[3]])], form=form)


def test_auto_is_the_kernel_if_there_is_a_compiler(capfd: pytest.CaptureFixture[str]) -> None:
    assert find_compiler()
    logits = levels()
    classes = random_classes(logits)
    assert torch.equal(focal_loss(logits, classes), focal_loss(logits, classes, form="kernel"))
    assert capfd.readouterr().err == ""


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with no_compiler(monkeypatch, FOCAL_LOSS, try_kernel.cache_clear):
        yield


@pytest.mark.usefixtures("without_compiler")
def test_without_a_compiler_auto_is_another_form_with_one_warning(
    capfd: pytest.CaptureFixture[str],
) -> None:
    logits, classes = torch.zeros(1, 2, 3), torch.tensor([[1, -1]])
    for _ in range(2):
        loss = focal_loss([logits], [classes]).item()
        assert loss == pytest.approx((0.25 + 5 * 0.75) * math.log(2) / 4)
    with pytest.raises(InputError, match=r"focal loss: .*no-such-compiler"):
        focal_loss([logits], [classes], form="kernel")
    [line] = capfd.readouterr().err.splitlines()
    assert "no-such-compiler" in line and "paper" in line
