"""The scaling study: shapes, their numbers and the findings."""

from typing import Any

import pytest

from launch.hosts import Where
from launch.topology import Topology
from profiling.bench.results import Finding
from profiling.studies.rounds import Measured, Shape
from profiling.studies.scale import (
    ScaleOptions,
    combine,
    efficiency,
    findings,
    is_standard,
    smallest,
    times_the_throughput,
)
from retinanet.config_file import load_config
from tests.launch.topologies import EIGHT_SOCKETS, cores_in_a_row
from tests.profiling.studies.scale.samples import measured
from tests.support.rank_steps import rank_steps

TWO_CORES = cores_in_a_row((0, 2, 0, 0))

STANDARD = ("data.image_size=800", "distributed.compress=bf16")
SAME_CORES = [measured(1, 2, 2.0, batch_size=2), measured(2, 1, 1.6, batch_size=1, without=0.98)]
TWO_JOBS = (
    (
        rank_steps(0, [2.0, 3.0], data=[0.1, 0.0], exchange=[0.5, 0.03], held_back=[1.9, 2.5]),
        rank_steps(1, [1.8, 2.9], data=[0.2, 0.3], exchange=[0.1, 0.60], held_back=[1.0, 2.7]),
    ),
    (
        rank_steps(0, [1.0], data=[0.0], exchange=[0.04], held_back=[0.9]),
        rank_steps(1, [1.0], data=[0.0], exchange=[0.02], held_back=[1.1]),
    ),
)
TWO_RANKS = Measured(shape=Shape(ranks=2, threads=1, batch_size=3), jobs=TWO_JOBS)


def combined(
    *,
    allowed: Topology = TWO_CORES,
    quota: float | None = None,
    comm_cores: int = 0,
    hosts: str | None = None,
    **options: Any,
) -> dict[Shape, str]:
    config = load_config("demo.yaml", [f"launch.comm_cores={comm_cores}", "data.workers=0"])
    where = Where(hosts=hosts)
    options = dict[str, Any](batch_size=8, threads=(1,), where=where) | options
    requested = ScaleOptions(**options)
    misfits, by_ranks = combine(requested, config, allowed=allowed, quota=quota)
    for count in requested.ranks if hosts else ():
        assert by_ranks[count] == ((("a", count // 2), ("b", count // 2)) if count > 1 else ())
    return misfits


def fitting(misfits: dict[Shape, str]) -> list[tuple[int, int]]:
    return [(shape.ranks, shape.threads) for shape, why in misfits.items() if not why]


@pytest.mark.parametrize(
    ("options", "shapes"),
    [
        ({"ranks": (1, 2, 4), "threads": (1, 2)}, [(1, 1), (1, 2), (2, 1)]),
        (
            {"ranks": (8, 16), "threads": (7, 14, 28), "allowed": EIGHT_SOCKETS},
            [(8, 7), (8, 14), (8, 28), (16, 7), (16, 14)],
        ),
        # Reserved cores leave fewer threads.
        (
            {"ranks": (8,), "threads": (27, 28), "allowed": EIGHT_SOCKETS, "comm_cores": 1},
            [(8, 27)],
        ),
        # A CPU quota counts as cores.
        ({"ranks": (1, 2), "threads": (1, 2), "quota": 1.5}, [(1, 1)]),
        # Hosts share the ranks, and each must fit its own.
        ({"ranks": (1, 2, 4, 6), "hosts": "a,b"}, [(2, 1), (4, 1)]),
    ],
)
def test_shapes_fit_the_cores(options: dict[str, Any], shapes: list[tuple[int, int]]) -> None:
    assert fitting(combined(**options)) == shapes


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"ranks": (2,), "threads": (2,)},
            "2 ranks can have 1 core each, but launch.threads=2",
        ),
        ({"ranks": (4,)}, "4 ranks are more than the 2 cores"),
        ({"ranks": (2,), "global_batch": 3}, "3 images do not divide evenly among 2 ranks"),
        ({"ranks": (1,), "hosts": "a,b"}, "--np 1: does not divide evenly among 2 hosts"),
        ({"ranks": (6,), "hosts": "a,b"}, "3 ranks are more than the 2 cores"),
    ],
)
def test_misfit_has_its_reason(options: dict[str, Any], reason: str) -> None:
    [found] = combined(**options).values()
    assert found.startswith(reason)


def test_each_rank_has_the_batch_size_or_its_part_of_the_global_batch() -> None:
    weak, strong = combined(ranks=(1, 2)), combined(ranks=(1, 2), global_batch=6)
    assert [(each.batch_size, each.images) for each in weak] == [(8, 8), (8, 16)]
    assert [(each.batch_size, each.images) for each in strong] == [(6, 6), (3, 6)]


def test_numbers_of_a_shape() -> None:
    assert TWO_RANKS.step_seconds == 2.0  # of 2.0, 3.0, 1.0: those of the slowest rank
    assert TWO_RANKS.images_per_second == 6 / 2.0
    # Waiting for data: the rank that waited longest. Of 0.2/2, 0.3/3, 0.
    assert TWO_RANKS.data_share == pytest.approx(0.1)
    # Waiting for gradients: the rank that was ready last. Of 0.1/2, 0.03/3, 0.02/1.
    assert TWO_RANKS.exposed_share == pytest.approx(0.02)
    # Each step is compared with the next one without exchange. Of 1-1.9/2, 1-2.7/3, 1-1.1/1.
    assert TWO_RANKS.added_share == pytest.approx(0.05)
    alone = measured(1, 1, 2.0)
    assert alone.exposed_share is None and alone.added_share is None


def test_weak_scaling_efficiency_is_relative_to_the_fewest_ranks() -> None:
    single, two, four = measured(1, 1, 2.0), measured(2, 1, 2.5), measured(4, 1, 4.0)
    other_threads = measured(1, 2, 1.0)
    everything = [single, other_threads, two, four]
    assert efficiency(two, everything) == pytest.approx(0.8)
    assert efficiency(four, everything) == pytest.approx(0.5)
    assert efficiency(four, [two, four]) == pytest.approx(2.5 / 4)
    assert efficiency(single, everything) is efficiency(other_threads, everything) is None
    assert smallest([two, other_threads]) is other_threads  # the fewest ranks, then threads


def test_throughputs_are_compared_by_all_steps_and_by_rounds() -> None:
    # As many images: 2 ranks of 1 against 1 rank of 2.
    two = measured(2, 1, 1.0, 2.0, batch_size=1)
    single = measured(1, 2, 1.2, 1.8, batch_size=2)
    ratio = times_the_throughput(two, single)
    assert ratio.median == pytest.approx(1.5 / 1.5)
    assert (ratio.lowest, ratio.highest) == pytest.approx((1.8 / 2.0, 1.2 / 1.0))


def make_findings(
    *overrides: str, batch: int | None, of: list[Measured] = SAME_CORES
) -> list[Finding]:
    config = load_config("demo.yaml", ["engine.precision=bf16", *overrides])
    return findings(of, config=config, global_batch=batch)


@pytest.mark.parametrize(
    ("overrides", "batch", "ratio_target", "exchange_target"),
    [
        (STANDARD, 2, 1.0, 0.05),
        (("data.image_size=800",), 2, 1.0, None),
        (STANDARD, 4, None, 0.05),
        (("data.image_size=640", "distributed.compress=bf16"), 2, None, None),
        ((*STANDARD, "engine.precision=float32"), 2, None, None),
    ],
)
def test_more_ranks_are_compared_with_more_threads(
    overrides: tuple[str, ...],
    batch: int,
    ratio_target: float | None,
    exchange_target: float | None,
) -> None:
    ratio, exposed, added = make_findings(*overrides, batch=batch)
    assert ratio.what.startswith("2 ranks × 1 thread against 1 rank × 2 threads")
    values = [finding.value for finding in (ratio, exposed, added)]
    assert values == pytest.approx([1.25, 0.01, 0.02])
    assert ratio.at_least == ratio_target  # targets are for the standard workload alone
    assert exposed.at_most == added.at_most == exchange_target


def test_only_a_global_batch_compares_ranks_with_threads() -> None:
    assert is_standard(load_config("demo.yaml", ["engine.precision=bf16", *STANDARD]))
    assert not is_standard(load_config("demo.yaml"))
    assert [finding.at_most for finding in make_findings(*STANDARD, batch=None)] == [0.05, 0.05]


def test_largest_share_is_named() -> None:
    more = [*SAME_CORES, measured(4, 1, 1.0, batch_size=2, without=0.9)]
    *_, added = make_findings(*STANDARD, batch=None, of=more)
    assert added.value == pytest.approx(0.1)
    assert added.shown == "0.1000 (4 ranks × 1 thread)"
