"""Problem lines against benchdnn's documentation, and the files of real logs."""

import re
from pathlib import Path

import pytest

from common.errors import InputError
from profiling.onednn_log.log import Calls, read_logs
from profiling.onednn_log.work import Problem
from profiling.replay.benchdnn_fields import Dialect, NotExpressibleError
from profiling.replay.benchdnn_problems import problem_line, write_problem_files
from tests.profiling.onednn_log.logs import SHARED
from tests.profiling.replay.problems import make_calls, parse_problem, parse_v3

ALWAYS = "--reset --allow-enum-tags-only=false "


def read_cases() -> dict[str, tuple[int, str, str]]:
    """Return dialect, line of the log and expected line of benchdnn, by title."""
    text = Path(__file__).with_name("benchdnn_lines.txt").read_text()
    cases = {}
    for block in text.strip().split("\n\n"):
        title, log_line, expected = block.splitlines()
        dialect, _, name = title.removeprefix("# ").partition(": ")
        cases[name] = (int(dialect), log_line, expected)
    return cases


CASES = read_cases()


def to_line(log_line: str, dialect: Dialect = Dialect(3)) -> str:  # noqa: B008
    """Return driver and options, without those with which every line begins."""
    line = problem_line(parse_v3(log_line), dialect)
    assert line.text.startswith(ALWAYS)
    return f"{line.driver}: {line.text.removeprefix(ALWAYS)}"


@pytest.mark.parametrize("title", CASES)
def test_problem_line_is_as_documented(title: str) -> None:
    dialect, log_line, expected = CASES[title]
    assert to_line(log_line, Dialect(dialect)) == expected


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("bounded_relu alpha:6", "--alg=clip --alpha=0 --beta=6"),
        ("logsigmoid alpha:0", "--alg=soft_relu --alpha=-1 --beta=0"),
        ("soft_relu alpha:0", "--alg=soft_relu --alpha=1 --beta=0"),
        ("hardswish alpha:0", "--alg=hardswish --alpha=0.166667 --beta=0.5"),
    ],
)
def test_version_2_algorithms_are_translated_to_3(algorithm: str, options: str) -> None:
    line = "cpu,eltwise,jit:avx2,forward_training,data_f32::blocked:ab:f0,,{},64x1000"
    assert options in to_line(line.format(f"alg:eltwise_{algorithm} beta:0"))


def test_version_2_scale_and_shift_become_two_flags() -> None:
    _, log_line, _ = CASES["batch normalization with scale and shift in one tensor"]
    assert "--flags=CH " in to_line(log_line)


CHOSEN_LAYOUT = "a convolution whose weights' layout the library chose"


@pytest.mark.parametrize(
    ("title", "options"),
    [
        (CHOSEN_LAYOUT, "--stag=any --wtag=any --dtag=any"),
        ("a reorder into a layout with blocks", "--stag=acdb --dtag=AcdB32a2b"),
        ("a convolution with a source that is not dense", "--stag=any"),
    ],
)
def test_layout_any_replaces_layouts_and_strides(title: str, options: str) -> None:
    line = to_line(CASES[title][1], Dialect(3, "any"))
    assert options in line and "--strides" not in line


def test_note_names_what_benchdnn_runs_differently() -> None:
    _, log_line, _ = CASES["a convolution with a fused depthwise convolution"]
    [note] = problem_line(parse_v3(log_line), Dialect()).notes
    assert "inference with a bias" in note


RELU = "alg:eltwise_relu alpha:0 beta:0"
MATRICES = "src:{}::blocked:ab::f0 wei:{}::blocked:ab::f0 dst:f32::blocked:ab::f0"
REFUSED = {
    "gpu:0": f"gpu:0,eltwise,ocl:ref:any,forward_training,data:f32::blocked:ab::f0,,{RELU},64x1000",
    "cpu2gpu": "cpu2gpu,reorder,ocl:any,undef,src:f32::blocked:ab::f0 "
    "dst:f32::blocked:ab::f0,,,8x8",
    "unknown kind": "cpu,telepathy,ref:any,undef,src:f32::blocked:ab::f0,,,8x8",
    "takes no strides": f"cpu,eltwise,jit:avx2,forward_training,data:f32::blocked:ab:12x1:f0,,"
    f"{RELU},64x10",
    "a layout without a name": "cpu,reorder,wino:any,undef,src:f32::blocked:abcd::f0 "
    "dst:f32::wino:::f0,,,64x64x3x3",
    "known at run time only": f"cpu,matmul,ref:any,undef,{MATRICES.format('f32', 'f32')},,"
    "runtime_dims_masks:3:3,*x*:*x*",
    "takes one type, not bf16 and f32": "cpu,concat,ref:any,undef,src:f32::blocked:ab::f0 "
    "src:bf16::blocked:ab::f0 dst:f32::blocked:ab::f0,,axis:0,2x3:2x3",
    "no attribute 'attr-telepathy'": f"cpu,eltwise,jit:avx2,forward_training,"
    f"data:f32::blocked:ab::f0,attr-telepathy:on,{RELU},64x10",
    "no post-operation 'telepathy'": f"cpu,eltwise,jit:avx2,forward_training,"
    f"data:f32::blocked:ab::f0,attr-post-ops:telepathy:1,{RELU},64x10",
    "no name for the mask 1 of src0": f"cpu,matmul,ref:any,undef,{MATRICES.format('u8', 's8')},"
    "attr-scales:src0:1:f32,,6x4:4x5",
    "oneDNN 2.x": f"cpu,matmul,ref:any,undef,{MATRICES.format('u8', 's8')},attr-oscale:2,,6x4:4x5",
    "name the tensor of its scales": "cpu,binary,ref:any,undef,src_f32::blocked:ab:f0 "
    "src_f32::blocked:ab:f0 dst_f32::blocked:ab:f0,scales:'src:0:0.5';,alg:binary_add,2x3:2x3",
    "takes one layout": "cpu,pooling,ref:any,forward_inference,src:f32::blocked:acdb::f0 "
    "dst:f32::blocked:abcd::f0,,alg:pooling_max,mb1ic8_ih4oh2kh2sh2dh0ph0_iw4ow2kw2sw2dw0pw0",
}
GRAPH = "v1,graph,exec,cpu,1,sdp,sdp,,in0_f32:0:strided:undef:2x3,fpm:strict,dnnl_backend"
MICRO_KERNEL = "v1,ukernel,exec,cpu,brgemm,brgemm:avx512_core,undef,src:f32::blocked:ab::f0,,,8x8"


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        *((parse_v3(line), reason) for reason, line in REFUSED.items()),
        (parse_problem(f"{GRAPH},dnnl_backend"), "ONEDNN_GRAPH_DUMP"),
        (parse_problem(f"{MICRO_KERNEL}:8x8"), "--brgemm"),
    ],
)
def test_refusal_names_the_reason(problem: Problem, reason: str) -> None:
    with pytest.raises(NotExpressibleError, match=re.escape(reason)):
        problem_line(problem, Dialect())


CONVOLUTION = (
    "cpu,convolution,{},forward_training,src:f32::blocked:acdb::f0 wei:f32:a:blocked:Acdb64a::f0 "
    "bia:undef::undef::: dst:f32::blocked:acdb::f0,,alg:convolution_direct,"
    "mb4_ic32oc64_ih24oh24kh1sh1dh0ph0_iw32ow32kw1sw1dw0pw0"
)


@pytest.fixture
def calls() -> dict[Problem, Calls]:
    """A convolution by two implementations, and a graph."""
    return {
        parse_v3(CONVOLUTION.format("jit:avx512_core")): make_calls(3.0, 3.0),
        parse_v3(CONVOLUTION.format("ref:any")): make_calls(30.0),
        parse_problem(GRAPH): make_calls(1.0, 1.0, 1.0, 1.0),
    }


@pytest.mark.parametrize("name", ["onednn-2.6.0-verbose1", "onednn-3.7.1-verbose1"])
@pytest.mark.parametrize("major", [2, 3])
def test_every_problem_of_a_real_log_has_a_line(name: str, major: int, tmp_path: Path) -> None:
    log = SHARED / f"{name}.log"
    if not log.is_file():
        pytest.skip(f"no {log}: real oneDNN logs are kept beside the repository")
    files = write_problem_files(read_logs([log]).calls(), tmp_path, dialect=Dialect(major))
    assert (len(files.lines), files.not_expressible) == (52, {})
    assert {file.name for file in tmp_path.iterdir()} == {"conv.txt", "matmul.txt", "reorder.txt"}
    text = "".join(file.read_text() for file in tmp_path.iterdir())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert set(lines) == {line.text for line in files.lines.values()}
    assert ("--cfg=bf16bf16bf16" in text, "--dt=bf16:bf16:bf16" in text) == (major == 2, major == 3)


def test_equal_problems_share_a_line(calls: dict[Problem, Calls], tmp_path: Path) -> None:
    write_problem_files(calls, tmp_path, dialect=Dialect())
    lines = (tmp_path / "conv.txt").read_text().splitlines()
    assert lines[3:] == [
        "# 1 call, 30 ms (30 ms each); ref:any",
        "# 2 calls, 6 ms (3 ms each); jit:avx512_core",
        "--reset --allow-enum-tags-only=false --dir=FWD_D --dt=f32:f32:f32 --stag=acdb --wtag=any "
        "--dtag=acdb --alg=DIRECT mb4_ic32oc64_ih24oh24kh1sh1dh0ph0_iw32ow32kw1sw1dw0pw0",
    ]


def test_refused_problems_have_a_file_with_shares_and_reasons(
    calls: dict[Problem, Calls], tmp_path: Path
) -> None:
    files = write_problem_files(calls, tmp_path, dialect=Dialect())
    assert files.refused == tmp_path / "not-expressible.txt"
    first, second = files.refused.read_text().splitlines()
    assert first.startswith("4 calls, 4 ms (1 ms each), 10.00% of the time: a partition of a graph")
    assert second.startswith("    cpu,sdp,")
    assert [problem.component for problem in files.not_expressible] == ["graph"]


def test_overwrite_replaces_all_files_of_an_earlier_call(
    calls: dict[Problem, Calls], tmp_path: Path
) -> None:
    write_problem_files(calls, tmp_path, dialect=Dialect())
    (tmp_path / "pool.txt").write_text("of an earlier log")
    (tmp_path / "mine.txt").write_text("not ours")
    with pytest.raises(InputError, match=r"conv\.txt: exists; give --overwrite"):
        write_problem_files(calls, tmp_path, dialect=Dialect())
    only_convolutions = dict(list(calls.items())[:2])
    write_problem_files(only_convolutions, tmp_path, dialect=Dialect(), overwrite=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["conv.txt", "mine.txt"]
