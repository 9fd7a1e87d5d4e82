"""Lines about stored kernels."""

import pytest

from common.native import tell_once
from retinanet.engine.kernel_calls import tell_once_per_host


@pytest.mark.parametrize(("local_rank", "lines"), [("0", 1), ("1", 0), ("", 1)])
def test_one_rank_of_a_host_prints_once(
    local_rank: str, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_once.cache_clear()
    if local_rank:
        variables = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
        for name, value in (variables | {"LOCAL_RANK": local_rank}).items():
            monkeypatch.setenv(name, value)
    for _ in range(2):
        tell_once_per_host("kernels: a folder is not trusted")
    assert capsys.readouterr().err.count("kernels: ") == lines
    monkeypatch.setenv("RANK", "no number")
    tell_once_per_host("kernels: another line")
    assert "another line" in capsys.readouterr().err
