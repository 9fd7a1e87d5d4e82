"""What the measured peaks allow: the roofline (Williams, Waterman and Patterson, 2009)."""

from profiling.onednn_log.problem import Problem
from profiling.onednn_log.work import gbyte, gflop
from profiling.peaks.peaks import Peaks


def matrix_peak(problem: Problem, peaks: Peaks) -> float | None:
    """GFLOP/s that matrix products of the problem's type reach, None where not measured."""
    weights = problem.memory("wei") or problem.memory("src")
    type_ = weights.type if weights else ""
    if type_ in ("s8", "u8"):
        type_ = next((name for name in ("s8", "u8") if name in peaks.matrix_gflop_per_s), type_)
    return peaks.matrix_gflop_per_s.get(type_)


def roofline_ms(problem: Problem, peaks: Peaks) -> float | None:
    """Milliseconds of one call at the peaks: of its arithmetic or its tensors, what takes longer.

    None where it is not known, as for a type that has no peak. Data that stays in a cache can be
    faster than the roofline says.
    """
    computed, moved = gflop(problem), gbyte(problem)
    times = []
    if problem.is_computing:
        peak = matrix_peak(problem, peaks)
        if computed is None or not peak:
            return None  # the memory alone would promise too much
        times.append(computed / peak)
    if moved is not None:
        times.append(moved / peaks.bandwidth_gb_per_s)
    return 1000 * max(times) if times else None
