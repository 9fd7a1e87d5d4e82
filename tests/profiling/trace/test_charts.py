"""The part of a step that the timeline shows closer."""

from profiling.trace.charts import MOST_SPANS, Window, busiest

STEP = Window(0, 3_000_000)


def test_closer_view_is_of_the_densest_part() -> None:
    starts = [*range(0, 3_000_000, 10_000), *range(1_000_000, 1_010_000, 500)]
    view = busiest(sorted(starts), STEP)
    assert view.start < 1_000_000 and view.end - view.start == 10_000


def test_short_run_of_calls_does_not_outweigh_the_densest_part() -> None:
    dense = range(1_000_000, 1_010_000, 100)  # 100 spans in 10 µs
    run = range(2_000_000, 2_000_600, 10)  # 60 spans in 0.6 µs
    view = busiest([*dense, *run], STEP)
    assert 1_000_000 - 200 <= view.start < 1_010_000
    assert 0 < sum(view.start <= start < view.end for start in dense) <= MOST_SPANS
