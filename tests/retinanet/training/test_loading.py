import pytest

from common.errors import InputError
from retinanet.config_types import loading_processes
from retinanet.training.data import FIRST_STEPS, STEPS_MEASURED, BadImages, LoadingWatch
from retinanet.training.loop import StepResult


def step(number: int, *, seconds: float, data_seconds: float) -> StepResult:
    return StepResult(
        step=number,
        losses={},
        gradient_norm=2.0,
        learning_rate=0.0,
        images=2,
        seconds=seconds,
        data_seconds=data_seconds,
        page_faults=0,
        resident_mb=0.0,
        peak_resident_mb=0.0,
    )


def said(watch: LoadingWatch, *, share: float, first_share: float = 0.0) -> list[str]:
    shares = [first_share] * FIRST_STEPS + [share] * 3 * STEPS_MEASURED
    steps = [
        step(number, seconds=2.0, data_seconds=2.0 * part) for number, part in enumerate(shares)
    ]
    return [words for words in map(watch.step, steps) if words]


def test_loading_that_takes_a_noticeable_share_moves_out_once() -> None:
    (words,) = said(LoadingWatch(True), share=0.03)
    assert words == ("loading took 3.0% of step time: a separate process loads from now on")


def test_loading_stays_where_it_costs_little() -> None:
    assert said(LoadingWatch(True), share=0.009) == []


def test_the_first_steps_do_not_count() -> None:
    assert said(LoadingWatch(True), share=0.001, first_share=0.9) == []


def test_more_processes_are_named_where_one_cannot_keep_up() -> None:
    (words,) = said(LoadingWatch(True), share=0.7)
    assert words.endswith("; set data.workers=3 to keep up")


def test_nothing_is_decided_where_the_user_has() -> None:
    assert said(LoadingWatch(False), share=0.5) == []


def test_how_many_processes_start() -> None:
    assert loading_processes("auto", reserved_cores=0) == 1
    assert loading_processes("auto", reserved_cores=3) == 3
    assert loading_processes(0, reserved_cores=3) == 0


def test_each_bad_image_counts_once_and_too_many_end_the_run() -> None:
    images = BadImages(limit=2)
    assert images.note(("a: damaged", "a: damaged")) == ["a: damaged"]
    assert images.note(("a: damaged",)) == []
    assert images.note(("b: missing",)) == ["b: missing"]
    with pytest.raises(InputError, match=r"c: missing; more than data\.bad_image_limit=2 images"):
        images.note(("b: missing", "c: missing"))
    assert images.note(()) == images.note(("c: missing",)) == []  # it has been told
