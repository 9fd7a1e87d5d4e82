"""Options as fields of a record: how they are parsed, shown, and checked."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from common.cli import add_command, positive
from common.errors import InputError
from common.options import (
    argument,
    flag,
    included,
    json_option,
    option,
    overrides_argument,
    overwrite_option,
)


@dataclass(frozen=True, kw_only=True)
class Where:
    hosts: str | None = option("names", default=None, exclusive="where")
    hostfile: Path | None = option("names in a file", default=None, exclusive="where")


@dataclass(frozen=True, kw_only=True)
class Record:
    logs: list[Path] = argument("logs", metavar="LOG", nargs="+")
    where: Where = included(Where)
    batch_size: int = option("images", default=2, parse=positive)
    share: float = option("share", default=0.5)
    layout: Literal["log", "any"] = option("layout", default="log")
    cold: bool = flag("cold caches, too", default=True)
    overwrite: bool = overwrite_option()
    json: Path | None = json_option()


@dataclass(frozen=True, kw_only=True)
class WithOverrides:
    config: str = option("a configuration")
    overrides: list[str] = overrides_argument()
    chart: Path | None = option("a chart", default=None, writes=True)


def parse(record: type, words: str) -> object:
    parser, taken = argparse.ArgumentParser(), []
    commands = parser.add_subparsers()

    def run(options: object) -> int:
        taken.append(options)
        return 0

    add_command(commands, "command", about="", options=record, run=run)
    parsed = vars(parser.parse_args(["command", *words.split()]))
    assert parsed.pop("run")(**parsed) == 0
    return taken[0]


def test_fields_are_read_as_their_types_say() -> None:
    given = "a.log b.log --hosts x --batch-size 4 --share 0.25 --layout any --no-cold --overwrite"
    assert parse(Record, given) == Record(
        logs=[Path("a.log"), Path("b.log")],
        where=Where(hosts="x"),
        batch_size=4,
        share=0.25,
        layout="any",
        cold=False,
        overwrite=True,
    )
    assert parse(Record, "a.log") == Record(logs=[Path("a.log")], where=Where())


def test_overrides_stand_anywhere() -> None:
    parsed = parse(WithOverrides, "a.b=1 --config coco c.d=2")
    assert parsed == WithOverrides(config="coco", overrides=["a.b=1", "c.d=2"])


@pytest.mark.parametrize(
    ("record", "words", "message"),
    [
        (Record, "", "the following arguments are required: LOG"),
        (Record, "a --hosts x --hostfile y", "argument --hostfile: not allowed with"),
        (Record, "a --hostfile=", "argument --hostfile: expected a path, found ''; give . for"),
        (Record, "a --layout other", "argument --layout: invalid choice: 'other'"),
        (Record, "a --batch-size 0", "argument --batch-size: expected a whole number"),
        (WithOverrides, "a.b=1", "the following arguments are required: --config"),
    ],
)
def test_wrong_options_are_refused(
    capsys: pytest.CaptureFixture[str], record: type, words: str, message: str
) -> None:
    with pytest.raises(SystemExit):
        parse(record, words)
    assert message in capsys.readouterr().err


def test_written_files_are_checked_before_the_work(tmp_path: Path) -> None:
    log, json, chart = tmp_path / "a.log", tmp_path / "a.json", tmp_path / "a.png"
    for file in (log, json, chart):
        file.write_text("")
    with pytest.raises(InputError, match="exists; give --overwrite or another --json"):
        parse(Record, f"{log} --json {json}")
    parse(Record, f"{log} --json {json} --overwrite")
    with pytest.raises(InputError, match=r"would replace .*a\.log, which this command reads"):
        parse(Record, f"{log} --json {log} --overwrite")
    with pytest.raises(InputError, match="exists; give --chart another file"):
        parse(WithOverrides, f"--config coco --chart {chart}")
    with pytest.raises(InputError, match="cannot be written"):
        parse(Record, f"{log} --json {log}/b.json")


def test_help_has_types_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(Record, "--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "--batch-size BATCH_SIZE images (default: 2)" in text
    assert "--layout {log,any} layout (default: log)" in text
    assert "--cold, --no-cold cold caches, too" in text


@dataclass(frozen=True, kw_only=True)
class WithFolder:
    source: Path = argument("a file", metavar="FILE")
    out: Path = option("a file, or a folder", default=Path("out"))


def test_out_is_none_of_the_files_that_are_read(tmp_path: Path) -> None:
    source = tmp_path / "labels.csv"
    source.write_text("mine")
    with pytest.raises(InputError, match=r"would replace .*, which this command reads"):
        parse(WithFolder, f"{source} --out {source}")
    parse(WithFolder, f"{source} --out {tmp_path}")
