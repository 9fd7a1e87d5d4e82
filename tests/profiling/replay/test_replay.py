"""A replay: its conditions, its file, and which lines of logs are the same work."""

import io
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from common.errors import InputError
from common.files import write_json
from profiling.onednn_log.log import LogPosition, OneDnnLog
from profiling.onednn_log.work import Problem
from profiling.replay.replay import (
    Conditions,
    NotReplayed,
    Replay,
    ReplayTime,
    difference,
    load_replay,
    mismatches,
    normalize_work,
    replay_conditions,
    same_layouts,
)
from tests.profiling.replay.problems import parse_problem, parse_v3
from tests.support.commands import error_message

ALLOWED = sorted(os.sched_getaffinity(0))
FIRST = ALLOWED[0]
RANK: dict[str, Any] = {"threads": 1, "cpus": str(FIRST)}
ON_FIRST, ON_ALL = Conditions(threads=1, cpus=(FIRST,)), Conditions(threads=len(ALLOWED))
TWO_RANKS: dict[LogPosition, Any] = {LogPosition(0): {}, LogPosition(1): {}}


@pytest.mark.parametrize(
    ("log", "options", "expected", "notes"),
    [
        (  # facts take precedence over the header
            OneDnnLog(threads=[64], facts=[{**RANK, "memory_nodes": "0"}]),
            {},
            replace(ON_FIRST, memory_nodes=(0,)),
            [],
        ),
        (OneDnnLog(threads=[1, 7]), {}, Conditions(threads=1), []),
        (OneDnnLog(), {}, ON_ALL, []),
        (OneDnnLog(threads=[4096]), {}, ON_ALL, ["4096 threads"]),
        (OneDnnLog(facts=[{**RANK, "cpus": f"{FIRST},99999"}]), {}, ON_FIRST, [f"{FIRST},99999"]),
        # options take precedence over the log
        (OneDnnLog(threads=[64], facts=[{"threads": 64, "cpus": "99999"}]), RANK, ON_FIRST, []),
        (OneDnnLog(facts=[RANK, RANK], executions=TWO_RANKS), {}, ON_FIRST, ["2 ranks"]),
    ],
)
def test_conditions(
    log: OneDnnLog, options: dict[str, Any], expected: Conditions, notes: list[str]
) -> None:
    output = io.StringIO()
    arguments: dict[str, Any] = {"threads": None, "cpus": None, **options}
    assert replay_conditions(log, **arguments, console=Console(file=output)) == expected
    printed = output.getvalue().splitlines()
    assert len(printed) == len(notes)
    assert all(note in line for note, line in zip(notes, printed, strict=True))


@pytest.mark.parametrize("cpus", ["a", "99999", ""])
def test_unusable_cpus_are_refused(cpus: str) -> None:
    with pytest.raises(InputError, match="--cpus: "):
        replay_conditions(OneDnnLog(), threads=None, cpus=cpus, console=Console())


def test_mismatches_have_a_line_each_unless_equal_or_unknown() -> None:
    replay = Replay("benchdnn", "3.7.2", "Intel AVX-512", Conditions(2), [], [])
    other = OneDnnLog(versions=["2.6.0"], instruction_sets=["Intel AVX2"], threads=[4])
    lines = mismatches(other, replay)
    assert [line.partition(":")[0] for line in lines] == ["instruction set", "threads", "oneDNN"]
    assert lines[2] == "oneDNN: 2.6.0 in the log, 3.7.2 in the replay"
    equal = OneDnnLog(versions=["3.7.2"], instruction_sets=["Intel AVX-512"], threads=[2])
    assert mismatches(OneDnnLog(), replay) == mismatches(equal, replay) == []


def test_loaded_replay_equals_the_saved_one(tmp_path: Path) -> None:
    product = parse_v3(
        "cpu,matmul,brg_matmul:avx512_core,undef,src:f32::blocked:ab::f0 wei:f32::blocked:ba::f0 "
        "bia:f32:a:blocked:ab::f0_mask2 dst:f32::blocked:ab::f0,attr-post-ops:sum,,4x8:8x2"
    )
    copy = parse_v3(
        "cpu,reorder,jit:uni,undef,src:f32::blocked:ab:12x1:f0 dst:f32::blocked:ba::f0,,,10x6"
    )
    replay = Replay(
        runner="benchdnn",
        version="3.7.2",
        instruction_set="Intel AVX-512",
        conditions=Conditions(threads=2, cpus=(0, 1), memory_nodes=(0,)),
        times=[ReplayTime(product, 0.1234567890123, None, 20, "brg_matmul:avx512_core")],
        not_replayed=[NotReplayed(copy, "benchdnn: UNIMPLEMENTED")],
    )
    file = tmp_path / "replay.json"
    write_json(file, asdict(replay))
    assert load_replay(file) == replay
    text = file.read_text()
    file.write_text(text.replace("replay 1", "replay 2"))
    assert "(format: Input should be 'profilednn replay 1'" in error_message(load_replay, file)
    file.write_text(text.replace("times", "time"))
    assert "times: Field required" in error_message(load_replay, file)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "the file: Invalid JSON"),
        ("[1]", "the file: Input should be an object"),
        ('{"format": "profilednn replay 1"}', "runner: Field required); expected"),
    ],
)
def test_other_file_is_refused_in_one_line(content: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "replay.json"
    assert "cannot be read: No such file" in error_message(load_replay, file)
    file.write_text(content)
    assert error_message(load_replay, file).startswith(f"{file}: is not a replay ({reason}")


TENSORS = "src:bf16::blocked:acdb::f0 wei:bf16:a:blocked:AcdB64a2b::f0 bia:undef::undef::: "
SHAPE = "mb4_ic32oc64_ih24oh24kh1sh1dh0ph0_iw32ow32kw1sw1dw0pw0"


def convolution(
    *,
    implementation: str = "brgconv_1x1:avx512_core_bf16",
    direction: str = "forward_training",
    memories: str = f"{TENSORS}dst:bf16::blocked:acdb::f0",
    attributes: str = "attr-scratchpad:user",
    shape: str = SHAPE,
) -> Problem:
    return parse_v3(
        f"cpu,convolution,{implementation},{direction},{memories},{attributes},"
        f"alg:convolution_direct,{shape}"
    )


def product(*, attributes: str = "attr-scratchpad:user", weights: str = "ba") -> Problem:
    return parse_v3(
        "cpu,matmul,brg_matmul:avx512_core_bf16,undef,src:bf16::blocked:ab::f0 "
        f"wei:bf16::blocked:{weights}::f0 dst:bf16::blocked:ab::f0,{attributes},,4x128:128x10"
    )


def reorder(source: str, target: str, shape: str = "64x32x1x1") -> Problem:
    return parse_v3(
        f"cpu,reorder,jit:uni,undef,src:bf16::blocked:{source}::f0 dst:bf16::blocked:{target}::f0,"
        f"attr-scratchpad:user,,{shape}"
    )


def relu(memories: str, algorithm: str = "relu") -> Problem:
    return parse_v3(
        f"cpu,eltwise,jit,forward_training,{memories},attr-scratchpad:user,"
        f"alg:eltwise_{algorithm} alpha:0 beta:0,2x32x20x20"
    )


OLD_CONVOLUTION = parse_problem(
    "exec,cpu,convolution,jit_bf16_1x1:avx512_core_bf16,backward_data,src_bf16::blocked:acdb:f0 "
    "wei_bf16::blocked:BAcd8a16b2a:f0 bia_undef::undef::f0 dst_bf16::blocked:acdb:f0,"
    f"attr-scratchpad:user ,alg:convolution_direct,{SHAPE}"
)
OLD_PRODUCT = parse_problem(
    "exec,cpu,matmul,brg:avx512_core_bf16,undef,src_bf16::blocked:ab:f0 wei_bf16::blocked:ba:f0 "
    "dst_bf16::blocked:ab:f0,attr-scratchpad:user attr-post-ops:sum ,,4x128:128x10:4x10"
)
DATA = "data:f32::blocked:abcd::f0"
BLOCKED = "AcdB64a2b"


ROW, IMAGE = (
    "mb2_ic8oc16_iw20ow18kw3sw1dw0pw0",
    "mb2_ic8oc16_ih1oh1kh1sh1dh0ph0_iw20ow18kw3sw1dw0pw0",
)
BACKWARD = convolution(implementation="brg_conv_bwd:avx512", direction="backward_data")
SUM = product(attributes="attr-scratchpad:user attr-post-ops:sum")
OTHER_WEIGHTS = f"{TENSORS.replace(BLOCKED, 'aBcd16b')}dst:bf16::blocked:acdb::f0"
TWO_TENSORS = "src:f32::blocked:abcd::f0 dst:f32::blocked:abcd::f0"


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        (OLD_CONVOLUTION, BACKWARD, True),
        (OLD_PRODUCT, SUM, True),
        (convolution(), convolution(memories=OTHER_WEIGHTS), True),  # the library's choice
        (convolution(shape=ROW), convolution(shape=IMAGE), True),  # an image of height 1
        (product(), product(weights="ab"), False),
        (product(), product(attributes="attr-post-ops:sum"), False),
        (reorder("acdb", BLOCKED), reorder("acdb", "ABcd8a16b2a"), False),
        # the place of a dimension makes a difference only if it is larger than 1
        (reorder("acdb", BLOCKED), reorder("abcd", BLOCKED), True),
        (reorder("acdb", BLOCKED, "64x32x3x3"), reorder("abcd", BLOCKED, "64x32x3x3"), False),
        (relu(DATA), relu(TWO_TENSORS), True),
        (relu(DATA), relu(DATA, algorithm="tanh"), False),
    ],
)
def test_same_work(first: Problem, second: Problem, is_same: bool) -> None:
    is_equal = normalize_work(first) == normalize_work(second)
    assert (is_equal and same_layouts(first, second)) == is_same


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (convolution(shape=SHAPE.replace("mb4", "mb8")), "as mb8"),
        (convolution(memories=f"{TENSORS}dst:f32::blocked:acdb::f0"), "src:bf16 wei:bf16 dst:f32"),
        (convolution(direction="backward_data"), "as backward_data"),
        (convolution(attributes="attr-post-ops:eltwise_relu"), "with eltwise_relu"),
        (
            convolution(memories=f"{TENSORS.replace('acdb', 'abcd')}dst:bf16::blocked:abcd::f0"),
            "layouts src:abcd wei:AcdB64a2b dst:abcd",
        ),
    ],
)
def test_difference_names_what_torch_ran_instead(other: Problem, reason: str) -> None:
    wanted = convolution()
    assert normalize_work(wanted) != normalize_work(other) or not same_layouts(wanted, other)
    assert reason in difference(wanted, other)
