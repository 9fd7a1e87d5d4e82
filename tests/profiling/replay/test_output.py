"""benchdnn's output read back, as version 3.7.2 printed it."""

from pathlib import Path

import pytest

from profiling.replay.benchdnn import read_timed, refusal, typical

FILL = (
    "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:abcd::f0 "
    "dst:bf16::blocked:acdb::f0,,,4x64x24x32,4.36011\n"
)
RUN = (
    "onednn_verbose,v1,primitive,exec,cpu,convolution,brg_conv_fwd:avx512_core_bf16,"
    "forward_training,src:bf16::blocked:acdb::f0 wei:bf16:a:blocked:AcdB64a2b::f0 "
    "bia:bf16:a:blocked:a::f0 dst:bf16::blocked:acdb::f0,attr-scratchpad:user,"
    "alg:convolution_direct,mb4_ic64oc128_ih24oh12kh3sh2dh0ph1_iw32ow16kw3sw2dw0pw1,{}\n"
)
PERFORMANCE = (
    "profilednn,{},{},--mode=P --fix-times-per-prb=3 --conv --allow-enum-tags-only=false "
    "--dt=bf16:bf16:bf16 --stag=acdb --dtag=acdb --attr-scratchpad=user "
    "mb4ic64ih24iw32oc128oh12ow16kh3kw3sh2sw2ph1pw1\n"
)
TEMPLATE = "Output template: profilednn,%-time%,%0time%,%prb%\n"
SKIPPED = (
    "0:SKIPPED (Invalid case) __REPRO: --mode=P --fix-times-per-prb=3 --matmul "
    "--runtime_dims_masks=1:0 16x32:32x64\n"
)
ZEROS = "profilednn,0,0,--mode=P --fix-times-per-prb=3 --matmul 16x32:32x64\n"


def written(folder: Path, *parts: str) -> Path:
    """A file of these parts."""
    file = folder / "output"
    file.write_text("".join(parts))
    return file


def test_runs_before_each_line_of_the_template_count_and_the_warm_up_does_not(
    tmp_path: Path,
) -> None:
    hot = [RUN.format(time) for time in ("8.01709", "7.93701", "7.90991", "11.9241")]
    cold = [RUN.format(time) for time in ("7.99219", "4.83984", "11.907", "7.9502")]
    output = written(
        tmp_path,
        *(FILL, *hot, TEMPLATE, PERFORMANCE.format("7.95361", "9.29972")),
        *(FILL, *cold, PERFORMANCE.format("4.89795", "8.27482")),
    )
    timed = read_timed(output, driver="conv", runs=3)
    assert [one.milliseconds for one in timed] == [
        (7.93701, 7.90991, 11.9241),
        (4.83984, 11.907, 7.9502),
    ]
    assert {one.problem.implementation for one in timed} == {"brg_conv_fwd:avx512_core_bf16"}
    assert refusal(output) is None


def test_a_refused_problem_s_line_is_no_measurement(tmp_path: Path) -> None:
    output = written(tmp_path, SKIPPED, TEMPLATE, ZEROS)
    assert read_timed(output, driver="matmul", runs=3) == []
    assert refusal(output) == "benchdnn: SKIPPED (Invalid case)"


def test_what_was_measured_before_a_refusal_counts(tmp_path: Path) -> None:
    hot = [RUN.format(time) for time in (4, 3, 2, 1)]
    output = written(tmp_path, *hot, TEMPLATE, PERFORMANCE.format(1, 2), SKIPPED, ZEROS)
    assert [one.milliseconds for one in read_timed(output, driver="conv", runs=3)] == [(3, 2, 1)]


def test_a_log_with_too_few_runs_is_not_understood(tmp_path: Path) -> None:
    output = written(tmp_path, FILL, RUN.format(1), RUN.format(1), PERFORMANCE.format(1, 1))
    with pytest.raises(ValueError, match="does not show 3 runs of one problem"):
        read_timed(output, driver="conv", runs=3)


def test_runs_of_another_kind_are_not_understood(tmp_path: Path) -> None:
    output = written(tmp_path, *[RUN.format(1)] * 4, PERFORMANCE.format(1, 1))
    with pytest.raises(ValueError, match="shows convolution where matmul was asked for"):
        read_timed(output, driver="matmul", runs=3)


def test_an_output_that_was_cut_has_what_was_measured_before(tmp_path: Path) -> None:
    hot = [RUN.format(1)] * 4
    output = written(tmp_path, *hot, PERFORMANCE.format(1, 1), RUN.format(1)[:60])
    assert len(read_timed(output, driver="conv", runs=3)) == 1


def test_a_median_is_taken_unless_the_clock_s_steps_show() -> None:
    assert typical((5.0, 1.0, 100.0)) == 5.0
    # a microsecond a step: the mean of 1, 1, 2, 2 of the middle half
    steps = (0.0, 0.0, 0.001, 0.001, 0.002, 0.002, 0.003, 0.009)
    assert typical(steps) == pytest.approx(0.0015)
