"""`replay.json` is what it was when it was saved, and a file that is none is refused."""

from pathlib import Path

import pytest

from common.errors import InputError
from profiling.onednn_log.parse import head_of, meaning_of
from profiling.replay.replay import Conditions, Replay, ReplayTime, load_replay, save_replay

PRODUCT = meaning_of(
    head_of(
        "v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core,undef,src:f32::blocked:ab::f0 "
        "wei:f32::blocked:ba::f0 bia:f32:a:blocked:ab::f0_mask2 dst:f32::blocked:ab::f0,"
        "attr-post-ops:sum,,4x8:8x2,0.5"
    )
).problem
COPY = meaning_of(
    head_of(
        "v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:ab:12x1:f0 "
        "dst:f32::blocked:ba::f0,,,10x6,0.5"
    )
).problem


def test_a_replay_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    assert PRODUCT is not None
    assert COPY is not None
    replay = Replay(
        runner="benchdnn",
        version="3.7.2",
        instruction_set="Intel AVX-512",
        conditions=Conditions(threads=2, cpus=(0, 1), memory_nodes=(0,)),
        times={PRODUCT: ReplayTime(0.1234567890123, None, 20, "brg_matmul:avx512_core")},
        not_replayed={COPY: "benchdnn: UNIMPLEMENTED"},
    )
    save_replay(replay, tmp_path / "replay.json")
    assert load_replay(tmp_path / "replay.json") == replay


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "is not JSON"),
        ("[1]", "holds no JSON object"),
        ('{"format": "something else"}', "holds no replay"),
        ('{"format": "profilednn replay 1"}', "is damaged: KeyError"),
    ],
)
def test_another_file_is_refused_in_one_line(content: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "replay.json"
    file.write_text(content)
    with pytest.raises(InputError, match=why) as error:
        load_replay(file)
    assert str(error.value).startswith(f"{file}: ")
    assert "\n" not in str(error.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"replay\.json: cannot be read: No such file"):
        load_replay(tmp_path / "replay.json")
