from functools import partial

import pytest
import torch
from torch import Tensor
from torchvision.ops import sigmoid_focal_loss

from common.native import usable_instruction_sets
from retinanet.loss.focal import focal_loss, level_loss
from retinanet.loss.focal_kernel import FOCAL_LOSS, focal_loss_operator

EVERY_BF16 = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
"""All 65,536 values."""


def finite_bf16(largest: float) -> Tensor:
    return EVERY_BF16[EVERY_BF16.float().abs() <= largest]


def float64_focal_loss(logits: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Losses of background and their derivatives, without the cancellation of torchvision's."""
    x = logits.double().requires_grad_()
    loss = 0.75 * torch.exp(-gamma * torch.nn.functional.softplus(-x, threshold=800))
    loss = loss * torch.nn.functional.softplus(x, threshold=800)
    return loss.detach(), torch.autograd.grad(loss.sum(), x)[0]


@pytest.fixture(params=usable_instruction_sets())
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FOCAL_LOSS, "instruction_set", request.param)


def background(logits: Tensor, **options: object) -> tuple[Tensor, Tensor]:
    """The operator on one image of background anchors."""
    classes = torch.full(logits.shape[:2], -1)
    settings: dict[str, object] = {"alpha": 0.25, "gamma": 2.0, "reduce": False, **options}
    return focal_loss_operator(logits, classes, torch.ones(1), with_gradient=True, **settings)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.0, 2.5])
def test_every_value_is_exact_to_float32(gamma: float) -> None:
    logits = finite_bf16(25).float()  # beyond, gamma 2 leaves the range of float32
    losses, gradient = background(logits.view(1, 1, -1), gamma=gamma)
    expected_losses, expected_gradient = float64_focal_loss(logits, gamma)
    rtol = 2e-6 if gamma in (0, 2) else 6e-6
    torch.testing.assert_close(losses[0, 0].double(), expected_losses, rtol=rtol, atol=1e-37)
    torch.testing.assert_close(gradient[0, 0].double(), expected_gradient, rtol=rtol, atol=1e-37)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("gamma", [2.0, 1.5])
@pytest.mark.parametrize("num_anchors", [40, 4000], ids=["computed", "from the table"])
def test_the_table_gives_what_is_computed(gamma: float, num_anchors: int) -> None:
    torch.manual_seed(0)
    logits = (torch.randn(2, num_anchors, 91) * 6 - 3).bfloat16()
    classes = torch.randint(-2, 91, (2, num_anchors))
    weights = torch.tensor([0.37, 1.3])

    def run(logits: Tensor, *, reduce: bool) -> tuple[Tensor, Tensor]:
        return focal_loss_operator(
            logits,
            classes,
            weights,
            alpha=0.25,
            gamma=gamma,
            reduce=reduce,
            with_gradient=True,
        )

    loss, gradient = run(logits, reduce=True)
    wide_losses, wide_gradient = run(logits.float(), reduce=False)
    torch.testing.assert_close(loss.double(), wide_losses.double().sum(), rtol=1e-6, atol=0)
    assert torch.equal(gradient, wide_gradient.bfloat16())


def test_thirty_million_equal_terms_lose_nothing() -> None:
    # A fresh head has equal logits everywhere: rounding errors of a sum would all have one sign.
    logits = torch.full((1, 120087, 264), -4.595).bfloat16()
    loss, _ = background(logits, reduce=True)
    single, _ = float64_focal_loss(logits[0, 0, :1], 2.0)
    torch.testing.assert_close(loss.double(), single[0] * logits.numel(), rtol=5e-7, atol=0)


@pytest.mark.usefixtures("threads_restored")
def test_the_result_does_not_depend_on_the_number_of_threads() -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 4000, 91).bfloat16()
    classes = torch.randint(-2, 91, (2, 4000))
    settings = {"alpha": 0.25, "gamma": 2.0, "reduce": True, "with_gradient": True}
    results = []
    for threads in (1, 2, 2, 5):
        torch.set_num_threads(threads)
        results.append(focal_loss_operator(logits, classes, torch.ones(2), **settings))
    for loss, gradient in results[1:]:
        assert torch.equal(loss, results[0][0])
        assert torch.equal(gradient, results[0][1])


def test_without_gradients_none_is_computed() -> None:
    logits = torch.randn(1, 10, 3, requires_grad=True)
    classes = torch.zeros(1, 10, dtype=torch.int64)
    _, gradient = focal_loss_operator(
        logits, classes, torch.ones(1), alpha=0.25, gamma=2.0, reduce=True, with_gradient=False
    )
    assert gradient.numel() == 0
    assert not gradient.requires_grad
    with torch.no_grad():
        loss = focal_loss([logits], [classes], form="kernel")
    assert not loss.requires_grad
    torch.testing.assert_close(loss, focal_loss([logits], [classes], form="kernel").detach())


@pytest.mark.parametrize("gamma", [2.0, 0.0, 1.3])
@pytest.mark.parametrize("reduce", [True, False])
def test_gradcheck_passes(gamma: float, reduce: bool) -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 7, 5, dtype=torch.float64, requires_grad=True)
    classes = torch.randint(-2, 5, (2, 7))
    weights = torch.tensor([0.5, 3.0])
    function = partial(level_loss, alpha=0.25, gamma=gamma, reduce=reduce)
    assert torch.autograd.gradcheck(lambda x: function("kernel", x, classes, weights), logits)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "reduce"),
    [(torch.bfloat16, True), (torch.float32, False), (torch.float64, True)],
)
def test_opcheck_passes(dtype: torch.dtype, reduce: bool) -> None:
    logits = torch.randn(2, 7, 5).to(dtype).requires_grad_()
    classes = torch.randint(-2, 5, (2, 7))
    settings = {"alpha": 0.25, "gamma": 2.0, "reduce": reduce, "with_gradient": True}
    weights = torch.ones(2), torch.linspace(0.5, 2, 5)
    torch.library.opcheck(focal_loss_operator, (logits, classes, *weights), settings)


@pytest.mark.slow
def test_torch_compile_finds_no_graph_break() -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 7, 5, requires_grad=True)
    classes = torch.randint(-2, 5, (2, 7))

    def halved(logits: Tensor, classes: Tensor) -> Tensor:
        return focal_loss([logits * 2], [classes]) / 2

    compiled = torch.compile(halved, fullgraph=True, backend="aot_eager")
    expected, loss = halved(logits, classes), compiled(logits, classes)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        torch.autograd.grad(loss, logits)[0], torch.autograd.grad(expected, logits)[0]
    )


def test_a_second_derivative_is_refused() -> None:
    logits = torch.randn(1, 2, 3, requires_grad=True)
    loss = focal_loss([logits], [torch.tensor([[1, -1]])], form="kernel") ** 2
    (gradient,) = torch.autograd.grad(loss, logits, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_torchvisions_loss_of_large_logits() -> None:
    logits = finite_bf16(1e30).float()
    logits = logits[logits.abs() > 25].view(1, 1, -1)
    losses, gradient = background(logits)
    x = logits.clone().requires_grad_()
    expected = sigmoid_focal_loss(x, torch.zeros_like(x))
    torch.testing.assert_close(losses, expected.detach(), rtol=1e-6, atol=1e-30)
    wanted = torch.autograd.grad(expected.sum(), x)[0]
    torch.testing.assert_close(gradient, wanted, rtol=1e-6, atol=1e-30)
