from pathlib import Path

import pytest

from common.errors import InputError
from profiling.studies.async_groups_search import (
    Evaluated,
    Point,
    Probed,
    Results,
    Setting,
    Trained,
    read_results,
    write_results,
)

ABOUT = {"config": "demo.yaml", "ranks": 2}


def some() -> Results:
    probe = Probed(
        setting=Setting(2, 0.3), points=[Point(seconds=1.5, loss=0.7, images=8)], staleness=0.5
    )
    training = Trained(
        setting=Setting(1, 0.9, 0.3),
        curve=[Evaluated(epoch=2.0, seconds=10.0, map=0.1, map_50=0.3)],
        steps=4,
        staleness=0.0,
        target=0.2,
    )
    return Results(about=dict(ABOUT), probes=[probe], trained=[training])


def test_a_repeated_command_finds_what_there_is(tmp_path: Path) -> None:
    assert read_results(tmp_path, ABOUT) == Results(about=ABOUT, probes=[], trained=[])
    write_results(tmp_path, some())
    assert read_results(tmp_path, ABOUT) == some()


def test_probes_of_other_settings_are_not_gone_on_with(tmp_path: Path) -> None:
    write_results(tmp_path, some())
    with pytest.raises(InputError, match="ranks was 2, is now 4; give another --out"):
        read_results(tmp_path, {**ABOUT, "ranks": 4})


@pytest.mark.parametrize(
    "text", ["", "[]", '{"about": {}}', '{"about": {}, "probes": [1]}', "[" * 100_000]
)
def test_another_file_is_refused_in_a_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "probes.json").write_text(text)
    with pytest.raises(InputError, match="was not written by this command"):
        read_results(tmp_path, ABOUT)
