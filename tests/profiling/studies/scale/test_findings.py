import pytest

from profiling.bench.results import Finding
from profiling.studies.scale_study import Measured, findings, is_standard
from retinanet.config_file import load_config
from tests.profiling.studies.scale.measured_by_hand import measured

STANDARD = ("data.image_size=800", "distributed.compress=bf16")
SAME_CORES = [
    measured(1, 2, 2.0, batch_size=2),
    measured(2, 1, 1.6, batch_size=1, without=0.98),
]


def found(*overrides: str, batch: int | None, of: list[Measured] = SAME_CORES) -> list[Finding]:
    config = load_config("demo.yaml", ["engine.precision=bf16", *overrides])
    return findings(of, config=config, global_batch=batch)


def test_two_ranks_on_two_cores_are_held_against_one_of_two_threads() -> None:
    ratio, exposed, added = found(*STANDARD, batch=2)
    assert ratio.what == "2 ranks × 1 thread against 1 rank × 2 threads, both 2 images per step"
    assert ratio.value == pytest.approx(1.25)
    assert ratio.at_least == 1.0
    assert exposed.value == pytest.approx(0.01)
    assert added.value == pytest.approx(0.02)
    assert exposed.at_most == added.at_most == 0.05


@pytest.mark.parametrize(
    ("overrides", "batch", "ratio_target", "exchange_target"),
    [
        (("data.image_size=800",), 2, 1.0, None),
        (STANDARD, 4, None, 0.05),
        (("data.image_size=640", "distributed.compress=bf16"), 2, None, None),
        ((*STANDARD, "engine.precision=float32"), 2, None, None),
    ],
)
def test_targets_are_for_the_standard_workload_alone(
    overrides: tuple[str, ...],
    batch: int,
    ratio_target: float | None,
    exchange_target: float | None,
) -> None:
    ratio, exposed, added = found(*overrides, batch=batch)
    assert ratio.at_least == ratio_target
    assert exposed.at_most == added.at_most == exchange_target


def test_other_workloads_show_no_targets() -> None:
    assert is_standard(load_config("demo.yaml", ["engine.precision=bf16", *STANDARD]))
    assert not is_standard(load_config("demo.yaml"))


def test_without_a_global_batch_nothing_is_held_against_more_threads() -> None:
    assert [one.at_most for one in found(*STANDARD, batch=None)] == [0.05, 0.05]


def test_the_largest_share_counts_and_is_named() -> None:
    more = [*SAME_CORES, measured(4, 1, 1.0, batch_size=2, without=0.9)]
    *_, added = found(*STANDARD, batch=None, of=more)
    assert added.value == pytest.approx(0.1)
    assert added.shown == "0.1000 (4 ranks × 1 thread)"
