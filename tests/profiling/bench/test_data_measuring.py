"""Which decoders take part."""

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from common.errors import InputError
from profiling.bench.data_bench import describe_decoders, loaders, variants_of_a_core


def test_those_that_work_take_part_and_the_others_get_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    monkeypatch.setitem(sys.modules, "accimage", None)
    said = io.StringIO()
    described = describe_decoders(None, console=Console(file=said, width=40))
    assert list(described) == ["torchvision", "pillow"]
    lines = said.getvalue().splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "simplejpeg is skipped",
        "accimage is skipped",
    ]


def test_one_that_was_asked_for_and_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    quiet = Console(quiet=True)
    with pytest.raises(InputError, match="--decoders: simplejpeg is not installed"):
        describe_decoders("pillow,simplejpeg", console=quiet)
    assert list(describe_decoders("pillow,torchvision", console=quiet)) == ["pillow", "torchvision"]


def test_every_decoder_takes_part_in_every_stage() -> None:
    of_a_core = variants_of_a_core(["a", "b"], photos=Path("list"), batch_size=8)
    assert [one.name for one in of_a_core] == [
        *("decode-a", "decode-b", "resize-a", "resize-b", "pipeline-a", "pipeline-b", "mlperf"),
    ]
    assert {one.allocator for one in of_a_core} == {"tuned"}
    on_all_cores = loaders("a", photos=Path("list"), batch_size=8, workers=2)
    assert [one.name for one in on_all_cores] == ["loader-1", "loader-2"]
