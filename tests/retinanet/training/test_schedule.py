import pytest
import torch

from retinanet.training.schedule import learning_rate_factor


def factors(*, schedule: str = "constant", warmup_steps: int = 4, total: int = 20) -> list[float]:
    return [
        learning_rate_factor(
            step,
            warmup_steps=warmup_steps,
            warmup_factor=0.2,
            total_steps=total,
            schedule=schedule,
        )
        for step in range(total)
    ]


def test_warmup_by_hand() -> None:
    # from 0.2 in four equal parts of 0.2; full at step 4
    assert factors()[:6] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


def test_the_rate_stays_after_warmup() -> None:
    assert factors()[4:] == [1.0] * 16


def test_without_warmup_the_first_step_has_the_full_rate() -> None:
    assert factors(warmup_steps=0) == [1.0] * 20
    assert factors(warmup_steps=0, schedule="cosine")[0] == 1.0


def test_cosine_by_hand() -> None:
    values = factors(schedule="cosine")
    assert values[:4] == factors()[:4]
    assert values[4] == 1.0
    assert values[12] == pytest.approx(0.5)  # half-way between 4 and 20
    assert values[8] == pytest.approx(0.5 + 0.5 * 0.5**0.5)
    assert 0 < values[19] < 0.01
    assert values[4:] == sorted(values[4:], reverse=True)


def test_cosine_does_not_rise_again_past_the_end() -> None:
    factor = learning_rate_factor(
        30, warmup_steps=4, warmup_factor=0.2, total_steps=20, schedule="cosine"
    )
    assert factor == pytest.approx(0)


def test_a_warmup_longer_than_the_run_is_a_part_of_it() -> None:
    values = factors(warmup_steps=40, schedule="cosine")
    assert values == pytest.approx([0.2 + 0.8 * step / 40 for step in range(20)])


@pytest.mark.parametrize("warmup_steps", [1, 7])
def test_warmup_equals_torchs_linear_lr(warmup_steps: int) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.LinearLR(
        optimizer, start_factor=0.2, total_iters=warmup_steps
    )
    expected = []
    for _ in range(12):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert factors(warmup_steps=warmup_steps, total=12) == pytest.approx(expected)
