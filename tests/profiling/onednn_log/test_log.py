"""Reading logs: totals, prefixes, marks, gzip files, and damaged input."""

import gzip
import sys
from pathlib import Path

import pytest

from common.console import make_console
from common.errors import InputError
from profiling.__main__ import main
from profiling.efficiency import marked_steps
from profiling.onednn_log.log import (
    CACHED_LINES,
    LONGEST_LINE,
    LogPosition,
    log_files,
    name_files,
    read_logs,
    read_with_progress,
)
from profiling.onednn_log.parse import Mark, facts_line, mark_line
from tests.profiling.onednn_log.example_lines import DAMAGED, OTHERS, SPELLINGS, UNLIKE_OTHERS
from tests.profiling.onednn_log.logs import FIXTURES, plain_sum, shared_logs, write_log
from tests.support.commands import RunHere, error_line, error_message, run_program

LINE = SPELLINGS["3.13"]


def test_totals_of_real_logs_are_the_sum_of_their_lines() -> None:
    for file in shared_logs():
        log = read_logs([file])
        assert log.total_ms == pytest.approx(plain_sum(file), rel=1e-12)
        assert log.not_understood_count == 0
        assert log.versions == [file.name.split("-")[1]]
        assert log.threads == [2]
        text = file.read_text(encoding="utf-8")
        states = {name: text.count(f"create:{name}") for name in ("cache_hit", "cache_miss")}
        assert log.creation_states == {name: count for name, count in states.items() if count}


@pytest.mark.slow
def test_log_of_the_installed_torch(tmp_path: Path) -> None:
    program = (
        "import torch\n"
        "x = torch.randn(2, 8, 16, 16).to(memory_format=torch.channels_last).requires_grad_()\n"
        "net = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3), torch.nn.Conv2d(16, 4, 1))\n"
        "net(x).sum().backward()\n"
        "with torch.autocast('cpu', torch.bfloat16): net(x).sum().backward()\n"
    )
    command = (sys.executable, "-c", program)
    done = run_program(*command, check=True, ONEDNN_VERBOSE="all", ONEDNN_VERBOSE_TIMESTAMP="1")
    file = write_log(tmp_path / "torch.log", done.stdout)
    log = read_logs([file])
    assert log.not_understood_count == 0
    assert log.total_ms == pytest.approx(plain_sum(file), rel=1e-12)
    directions = {problem.direction for problem in log.calls() if problem.kind == "convolution"}
    assert directions == {"forward_training", "backward_data", "backward_weights"}


def test_every_line_is_counted(tmp_path: Path) -> None:
    profilednn = ["profilednn_mark,x", "profilednn_facts,[1]"]
    long = f"onednn_verbose,v1,{'x' * LONGEST_LINE}"
    damaged = [*DAMAGED, *profilednn, long]
    lines = [*SPELLINGS.values(), *OTHERS.values(), *UNLIKE_OTHERS, *damaged, "epoch 1", ""]
    log = read_logs([write_log(tmp_path / "onednn.log", *lines)])
    assert log.lines == len(lines)
    assert log.onednn_lines == len(lines) - 4
    executions = sum(calls.count for calls in log.calls().values())
    assert executions == len(SPELLINGS) + len(OTHERS)
    assert [item.line for item in log.not_understood] == [
        number for number, line in enumerate(lines, start=1) if line in damaged
    ]
    assert all(item.why for item in log.not_understood)
    assert log.dispatches == {
        "unsupported isa": 1,
        "only Ab4a, Ab8a destinations supported": 1,
        "attr must have default values": 1,
    }
    # The states of library and kernels are no failures.
    assert [text.partition(":")[0] for text in log.messages] == ["create", "exec", "error", "error"]
    assert sum(calls.count for calls in log.creations.values()) == 2
    spellings = log.calls()[next(iter(log.calls()))]  # Those of all versions are one problem
    assert (spellings.count, spellings.total_ms) == (len(SPELLINGS), 0.25 * len(SPELLINGS))
    assert log.versions == ["3.13.3"]
    assert (log.runtimes, log.threads) == (["OpenMP"], [224])
    assert log.instruction_sets == ["Intel AVX-512 with float16, Intel DL Boost and Intel AMX"]


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        *[("[3] ", 3), ("[1,3]<stdout>:", 3), ("loss 0.3 ", None), ("[a] ", None)],
        *[("3: ", None), ("12:", None), ("onednn.log:12:", None), ("trainer-1  | ", None)],
        ("2026-11-27T01:22:03.123456789Z stdout F ", None),
    ],
)
def test_prefix_of_a_rank_or_of_other_output(tmp_path: Path, prefix: str, rank: int | None) -> None:
    log = read_logs([write_log(tmp_path / "onednn.log", prefix + LINE)])
    assert list(log.executions) == [LogPosition(rank)]
    begin, end = (mark_line(Mark(1.0, edge, 7, None)).strip() for edge in (True, False))
    lines = (f"{prefix}{line}" for line in (begin, LINE, end))
    log = read_logs([write_log(tmp_path / "onednn.log", *lines)])
    places = [LogPosition(3 if prefix == "3: " else rank, 7)]  # a number with steps is a rank
    assert list(log.executions) == list(log.step_ms) == places


def test_numbers_before_lines_are_ranks_if_zero_is_among_them(tmp_path: Path) -> None:
    ranks = [write_log(tmp_path / f"{rank}.log", f"{rank}: {LINE}") for rank in (3, 0)]
    log = read_logs(ranks)  # srun --label --output=%t.log
    assert log.executions.keys() == {LogPosition(0), LogPosition(3)}
    tests = write_log(tmp_path / "ctest.log", f"1: {LINE}", f"3: {LINE}", LINE)
    log = read_logs([tests])
    assert log.ranks == []
    [calls] = log.executions[LogPosition()].values()
    assert calls.count == 3
    assert log.executions.keys() == {LogPosition()}


def test_log_without_executions_has_remarks(tmp_path: Path) -> None:
    reason = next(line for line in UNLIKE_OTHERS if "dispatch" in line)
    file = write_log(tmp_path / "onednn.log", UNLIKE_OTHERS[0], reason)
    assert read_logs([file], needs_executions=False).dispatches == {"unsupported isa": 1}
    with pytest.raises(InputError, match="no execution"):
        read_logs([file])
    steps = write_log(tmp_path / "steps.log", mark_line(Mark(1.0, True, 2, None)).strip())
    assert read_logs([steps], needs_executions=False).executions == {}  # as `capture` writes it
    header = write_log(tmp_path / "header.log", UNLIKE_OTHERS[0])
    with pytest.raises(InputError, match="no execution"):
        read_logs([file, header], needs_executions=False)


def test_log_of_mkldnn_0_is_named(tmp_path: Path) -> None:
    lines = (
        "mkldnn_verbose,exec,reorder,jit:uni,undef,in:f32_nchw out:f32_nChw8c,num:1,2x8x4x4,0.5",
        "mkldnn_verbose,exec,eltwise,jit:avx2,forward_training,fdata:nChw8c fdiff:undef,"
        "alg:eltwise_relu,mb2ic8ih4iw4,0.5",
    )
    for line in lines:
        with pytest.raises(InputError, match=r"MKL-DNN 0\.x .* version 1\.0"):
            read_logs([write_log(tmp_path / "onednn.log", line)])


def test_merged_lines_and_a_truncated_last_line(tmp_path: Path) -> None:
    file = write_log(tmp_path / "onednn.log", LINE + LINE)
    with file.open("a", encoding="utf-8") as text:
        text.write(LINE[:60])
    log = read_logs([file])
    assert sum(calls.count for calls in log.calls().values()) == 2
    assert [(item.line, item.text) for item in log.not_understood] == [(2, LINE[:60])]


def test_marks_give_rank_step_and_phase(tmp_path: Path) -> None:
    lines = [
        facts_line({"rank": 1, "threads": 4}),
        mark_line(Mark(1000.0, True, 20, None)),
        mark_line(Mark(1001.0, True, 20, "forward")),
        LINE + "\n",
        mark_line(Mark(1011.5, False, 20, "forward")),
        LINE + "\n",
        mark_line(Mark(1020.0, False, 20, None)),
        LINE + "\n",
    ]
    file = tmp_path / "rank1.log"
    file.write_text("".join(lines), encoding="utf-8")
    log = read_logs([file])
    assert list(log.executions) == [
        LogPosition(1, 20, "forward"),
        LogPosition(1, 20),
        LogPosition(1),
    ]
    assert log.phase_ms == {LogPosition(1, 20, "forward"): 10.5, LogPosition(1, 20): 20.0}
    assert log.facts == [{"rank": 1, "threads": 4}]
    assert (log.ranks, log.steps) == ([1], [20])


def test_steps_of_several_runs_are_told_apart(tmp_path: Path) -> None:
    files = []
    for run, milliseconds in enumerate((10.0, 30.0)):
        edges = [(True, None), (True, "forward"), (False, "forward"), (False, None)]
        marks = [mark_line(Mark(0.0 if begin else milliseconds, begin, 1, phase)).rstrip()
                 for begin, phase in edges]  # fmt: skip
        marks.insert(2, LINE)
        files.append(write_log(tmp_path / f"{run}.log", *marks))
    log = read_logs(files)
    assert log.step_ms == {LogPosition(None, 1, None, 0): 10, LogPosition(None, 1, None, 1): 30}
    assert set(log.executions) == {LogPosition(None, 1, "forward", run) for run in (0, 1)}
    steps = marked_steps(log)
    assert (steps.count, steps.wall_ms) == (2, 20)


def test_progress_counts_the_bytes_of_files(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.log", tmp_path / "b.log.gz"
    content = (LINE + "\n").encode() * 10_000  # Longer than a block
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    for file in (plain, packed):
        sizes: list[int] = []
        assert read_logs([file], advance=sizes.append).lines == 10_000
        assert sum(sizes) == file.stat().st_size


def test_several_files_gzip_and_truncated_gzip(tmp_path: Path) -> None:
    plain = write_log(tmp_path / "onednn.log", LINE)
    packed = tmp_path / "other.log.gz"
    packed.write_bytes(gzip.compress((LINE + "\n").encode() * 3))
    log = read_logs([plain, packed])
    assert sum(calls.count for calls in log.calls().values()) == 4
    many = "".join(LINE.replace("mb2", f"mb{number}") + "\n" for number in range(5000))
    whole = gzip.compress(many.encode())
    packed.write_bytes(whole[: len(whole) // 2])
    log = read_logs([packed])
    assert 0 < sum(calls.count for calls in log.calls().values()) < 5000
    assert "damaged" in log.not_understood[-1].why


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (bytes(range(256)) * 400, "not a text file"),
        (b"epoch 1\nepoch 2\n", "no oneDNN lines"),
        (b"onednn_verbose,v1,primitive,exec,cpu,convo", "line 1"),
        (UNLIKE_OTHERS[0].encode() + b"\n", "no execution"),
        (b"x," * 1_000_000, "no oneDNN lines"),
        (b"onednn_verbose,v1,primitive,exec," + b"x," * 1_000_000, "longer than 65536"),
        (b"\x1f\x8b but not packed", "compression method"),
        (b"\x1f\x8b\x08", "damaged gzip"),
    ],
)
def test_invalid_file_is_one_line(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "bad.log"
    file.write_bytes(content)
    message = error_message(read_logs, [file])
    assert message.startswith(f"{file}: ") and reason in message


def test_missing_file_and_folders_of_logs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.log: cannot be read: No such file"):
        read_logs([tmp_path / "none.log"])
    with pytest.raises(InputError, match=r"contains no \*\.log"):
        log_files(tmp_path)
    file = write_log(tmp_path / "onednn.log", LINE)
    assert log_files(tmp_path) == log_files(file) == [file]
    (tmp_path / "link.log").symlink_to(file)
    log = read_with_progress([file, tmp_path, tmp_path / "." / file.name], make_console())
    assert sum(each.count for each in log.calls().values()) == 1
    assert len(log_files(FIXTURES)) > 10
    assert name_files(["a/1.log", "b/2.log", "3.log", "4.log"]) == "1.log, 2.log, 3.log and 1 more"


def test_packed_copy_beside_a_log_is_left_out(
    tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write_log(tmp_path / "rank0.log", LINE)
    packed = tmp_path / "rank0.log.gz"
    packed.write_bytes(gzip.compress(log.read_bytes()))
    done = run_here(main, "stats", tmp_path, "--peaks=none")
    note = f"note: {packed} is left out: it is a packed copy of {log}"
    assert done.stdout.splitlines()[0] == note and "\n1 lines, 1 from oneDNN" in done.stdout
    monkeypatch.setattr("common.console.SHOWN_FROM", 1)
    lines = run_here(main, "stats", tmp_path, "--peaks=none").stdout.splitlines()
    assert lines[0].startswith("comparing with rank0.log.gz [MB] ") and lines[1] == note
    copy, other = packed.read_bytes(), f"{LINE}\n{LINE}\n".encode()
    for content in (
        gzip.compress(other),
        other,
        copy[:-20],
        copy[:-8] + bytes(8),
        copy[:-4] + b"\xff",
    ):
        packed.write_bytes(content)
        line = error_line(run_here(main, "stats", tmp_path, "--peaks=none"))
        assert line == f"error: {packed}: is no copy of {log}; rename or remove one of them"
    log.unlink()
    packed.write_bytes(copy)
    assert run_here(main, "stats", tmp_path, packed, "--peaks=none").returncode == 0


def test_reasons_belong_to_the_problem_that_was_chosen(tmp_path: Path) -> None:
    shape = "mb2_ic3oc16_ih32oh30kh3sh1dh0ph0_iw32ow30kw3sw1dw0pw0"
    dispatch = "onednn_verbose,v1,primitive,create:dispatch,convolution"
    work = f"attr-scratchpad:user,alg:convolution_direct,{shape}"
    tensors = "src:bf16:a:any:any::f0 wei:bf16:a:any:any::f0 bia:bf16:a:any:any::f0 dst:bf16:a:any"
    executed = (
        "onednn_verbose,v1,primitive,exec,cpu,convolution,ref:any,forward_training,"
        "src:bf16:a:blocked:abcd::f0 wei:bf16:a:blocked:abcd::f0 bia:undef::undef::: "
        f"dst:bf16:a:blocked:abcd::f0,{work},0.5"
    )
    log = read_logs(
        [
            write_log(
                tmp_path / "onednn.log",
                f"{dispatch},cpu,convolution,jit_dw:undef,forward_training,{tensors},{work},"
                "unsupported, and more,src/cpu/x64/jit_dw.hpp:53",
                f"{dispatch},bad param,src/cpu/x64/jit_brgemm.cpp:7",
                f"profilednn_chosen,{executed}",
                f"{dispatch},of another operator,src/cpu/x64/jit_brgemm.cpp:9",
                'profilednn_operator,{"name": "aten::a", "caller": "aten::b", "module": "M", '
                '"shapes": "2x3"}',
                executed,
                "profilednn_operator,[]",
            )
        ]
    )
    [reasons] = log.skipped.values()
    assert list(reasons) == ["jit_dw: unsupported, and more", "jit_brgemm.cpp: bad param"]
    [(operator, problems)] = log.operators.items()
    assert operator == ("aten::a", "aten::b", "M", "2x3")
    assert [calls.count for calls in problems.values()] == [1]  # the chosen one does not count
    assert log.not_understood_count == 1


def test_reasons_without_a_problem_do_not_fill_the_memory(tmp_path: Path) -> None:
    reason = "onednn_verbose,v1,primitive,create:dispatch,convolution,{},src/cpu/x64/jit.cpp:7"
    distinct = [reason.format(number) for number in range(CACHED_LINES + 3)]
    log = read_logs([write_log(tmp_path / "onednn.log", *distinct, *distinct[-1:] * 9, LINE)])
    [reasons] = log.skipped.values()
    assert list(reasons) == [f"jit.cpp: {CACHED_LINES + number}" for number in range(3)]


@pytest.mark.parametrize(
    ("command", "read"),
    [
        ("stats RUN/onednn --json FILE", "RUN/onednn/rank0.log"),
        ("stats RUN/onednn --peaks RUN/peaks.json --json FILE", "RUN/peaks.json"),
        ("efficiency RUN/onednn --json FILE", "RUN/onednn/rank0.log"),
        ("benchdnn RUN/onednn --out RUN/replay --json FILE", "RUN/onednn/rank0.log"),
        ("benchdnn RUN/conv.txt --out RUN --write-only", "RUN/conv.txt"),
        ("stats RUN/operators.csv --out RUN", "RUN/operators.csv"),
        ("efficiency RUN/efficiency.csv --out RUN", "RUN/efficiency.csv"),
        ("compare RUN/comparison.csv RUN/other --out RUN", "RUN/comparison.csv"),
        ("trace RUN/operators.csv --out RUN", "RUN/operators.csv"),
        ("compare RUN/other RUN/onednn --json FILE", "RUN/onednn/rank0.log"),
        ("trace RUN/trace.json --onednn-log RUN/onednn --json FILE", "RUN/onednn/rank0.log"),
        ("report RUN/onednn --out FILE", "RUN/environment.json"),
        ("report RUN/other --reference RUN --out FILE", "RUN/onednn/rank0.log"),
    ],
)
def test_no_output_replaces_a_file_that_is_read(
    tmp_path: Path, run_here: RunHere, command: str, read: str
) -> None:
    for folder in ("onednn", "other"):
        (tmp_path / folder).mkdir()
        write_log(tmp_path / folder / "rank0.log", LINE)
    for name in ("conv.txt", "operators.csv", "efficiency.csv", "comparison.csv"):
        write_log(tmp_path / name, LINE)
    for name in ("environment.json", "peaks.json", "trace.json"):
        (tmp_path / name).write_text("{}")
    file = Path(read.replace("RUN", str(tmp_path)))
    before = file.read_bytes()
    words = command.replace("FILE", read).replace("RUN", str(tmp_path)).split()
    done = run_here(main, *words, "--overwrite")
    fix = "which this command reads; set another output"
    assert error_line(done) == f"error: {file}: would replace {file}, {fix}"
    assert file.read_bytes() == before
