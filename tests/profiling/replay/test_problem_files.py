"""Problem files from real logs: nothing vanishes, and nothing is overwritten unasked."""

from pathlib import Path

import pytest

from common.errors import InputError
from profiling.onednn_log.log import Calls, read_logs
from profiling.onednn_log.parse import head_of, meaning_of
from profiling.onednn_log.work import Problem
from profiling.replay.benchdnn_fields import Dialect
from profiling.replay.benchdnn_problems import write_problem_files

LOGS = Path(__file__).parents[4] / "shared" / "logs"

CONVOLUTION = (
    "cpu,convolution,{},forward_training,src:f32::blocked:acdb::f0 wei:f32:a:blocked:Acdb64a::f0 "
    "bia:undef::undef::: dst:f32::blocked:acdb::f0,,alg:convolution_direct,"
    "mb4_ic32oc64_ih24oh24kh1sh1dh0ph0_iw32ow32kw1sw1dw0pw0"
)
GRAPH = "v1,graph,exec,cpu,1,sdp,sdp,,in0_f32:0:strided:undef:2x3,fpm:strict,dnnl_backend,0.5"


def read(line: str) -> Problem:
    """The problem of a log's line."""
    problem = meaning_of(head_of(line)).problem
    assert problem is not None
    return problem


def called(count: int, total_ms: float) -> Calls:
    """Calls of equal length."""
    calls = Calls()
    for _ in range(count):
        calls.add(total_ms / count)
    return calls


def problems() -> dict[Problem, Calls]:
    """A convolution by two implementations, and a graph."""
    return {
        read(f"v1,primitive,exec,{CONVOLUTION.format('jit:avx512_core')},0.5"): called(2, 6.0),
        read(f"v1,primitive,exec,{CONVOLUTION.format('ref:any')},0.5"): called(1, 30.0),
        read(GRAPH): called(4, 4.0),
    }


@pytest.mark.parametrize("name", ["onednn-2.6.0-verbose1", "onednn-3.7.1-verbose1"])
@pytest.mark.parametrize("major", [2, 3])
def test_every_problem_of_a_real_log_has_a_line(name: str, major: int, tmp_path: Path) -> None:
    log = LOGS / f"{name}.log"
    if not log.is_file():
        pytest.skip(f"{log} is not there: real oneDNN logs lie beside the repository")
    calls = read_logs([log]).calls()
    written = write_problem_files(calls, tmp_path, dialect=Dialect(major))
    assert (len(written.lines), written.not_expressible) == (52, {})
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "conv.txt",
        "matmul.txt",
        "reorder.txt",
    ]
    text = "".join(file.read_text() for file in tmp_path.iterdir())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert set(lines) == {line.text for line in written.lines.values()}
    assert all(line.startswith("--reset ") for line in lines)
    assert ("--cfg=bf16bf16bf16" in text, "--dt=bf16:bf16:bf16" in text) == (major == 2, major == 3)


def test_problems_that_benchdnn_is_told_alike_share_a_line(tmp_path: Path) -> None:
    write_problem_files(problems(), tmp_path, dialect=Dialect())
    lines = (tmp_path / "conv.txt").read_text().splitlines()
    assert lines[3:] == [
        "# 1 call, 30 ms (30 ms each); ref:any",
        "# 2 calls, 6 ms (3 ms each); jit:avx512_core",
        "--reset --allow-enum-tags-only=false --dir=FWD_D --dt=f32:f32:f32 --stag=acdb --wtag=any "
        "--dtag=acdb --alg=DIRECT mb4_ic32oc64_ih24oh24kh1sh1dh0ph0_iw32ow32kw1sw1dw0pw0",
    ]


def test_what_has_no_words_is_written_with_its_share_and_the_reason(tmp_path: Path) -> None:
    written = write_problem_files(problems(), tmp_path, dialect=Dialect())
    assert written.refused == tmp_path / "not-expressible.txt"
    first, second = written.refused.read_text().splitlines()
    assert first.startswith("4 calls, 4 ms (1 ms each), 10.00% of the time: a partition of a graph")
    assert second.startswith("    cpu,sdp,")
    assert [problem.component for problem in written.not_expressible] == ["graph"]


def test_files_are_replaced_only_when_asked_and_then_none_of_before_stays(tmp_path: Path) -> None:
    write_problem_files(problems(), tmp_path, dialect=Dialect())
    (tmp_path / "pool.txt").write_text("of an earlier log")
    (tmp_path / "mine.txt").write_text("not ours")
    with pytest.raises(InputError, match=r"conv\.txt: exists; give --overwrite"):
        write_problem_files(problems(), tmp_path, dialect=Dialect())
    only_convolutions = dict(list(problems().items())[:2])
    write_problem_files(only_convolutions, tmp_path, dialect=Dialect(), overwrite=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["conv.txt", "mine.txt"]
