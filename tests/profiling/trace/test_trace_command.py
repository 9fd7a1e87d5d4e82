"""The whole command."""

import argparse
import csv
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from common.cli import run_command
from profiling.trace.command import add_trace
from tests.profiling.trace.traced_model import traced
from tests.profiling.trace.traces_by_hand import STEP, annotation, operator, write

REPOSITORY = Path(__file__).resolve().parents[3]
WITHOUT_TORCH = """\
import sys
sys.modules["torch"] = None
from profiling.trace.command import add_trace
from common.cli import run_command
import argparse
parser = argparse.ArgumentParser()
add_trace(parser.add_subparsers())
arguments = vars(parser.parse_args())
run = arguments.pop("run")
sys.exit(run_command(lambda: run(**arguments)))
"""
PICTURES = ("split", "timeline", "operators")


def run(*words: str | Path) -> int:
    parser = argparse.ArgumentParser()
    add_trace(parser.add_subparsers())
    arguments = vars(parser.parse_args(["trace", *map(str, words)]))
    command = arguments.pop("run")
    return run_command(lambda: command(**arguments))


def test_a_real_trace_becomes_tables_and_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_of_torch = traced(tmp_path / "rank0.json.gz", marks=True)
    out, numbers = tmp_path / "out", tmp_path / "numbers.json"
    assert run(run_of_torch.file, "--out", out, "--json", numbers, "--top", "3") == 0
    printed = capsys.readouterr().out
    assert "steps 20, 21: " in printed and "the 3 costliest of " in printed
    content = json.loads(numbers.read_text())
    whole = content["all"]
    assert whole["wall_ms"] == pytest.approx(sum(v for k, v in whole.items() if k != "wall_ms"))
    with (out / "operators.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(content["operators"])
    assert sum(float(row["share"]) for row in rows) == pytest.approx(
        1 - content["fragmentation"]["gap_share"]
    )
    assert {row["category"] for row in rows} == {"oneDNN", "matrix products", "other operators"}
    calls = sum(float(row["calls"]) for row in rows if row["operator"] == "aten::mm")
    assert calls == run_of_torch.calls["aten::mm"] / 2  # a step of two
    for name in PICTURES:
        with Image.open(out / f"{name}.png") as picture:
            assert picture.width > 800 and len(picture.convert("RGB").getcolors(1 << 24) or ()) > 5
        ElementTree.parse(out / f"{name}.svg")
    svg = (out / "timeline.svg").read_text()
    assert "main" in svg and "gaps: no operator runs" in svg


def test_what_is_printed_of_a_trace_by_hand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(write(tmp_path / "trace.json", *STEP)) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split("│")[1].strip(): line.split("│")[2:-1] for line in lines if "│" in line}
    assert [cell.strip() for cell in rows["backward"]] == ["0.40", "0.24", "0.05", "0.11"]
    assert [cell.strip() for cell in rows["share"]] == ["100.0%", "47.0%", "15.0%", "38.0%"]
    assert [cell.strip() for cell in rows["spans"]] == ["9", "9,000"]
    assert [cell.strip() for cell in rows["aten::mul"]] == [
        "loss",
        "1",
        "0.04",
        "4.0%",
        "outside modules",
    ]
    # Short: mul 40, sum 30, AccumulateGrad 10 µs work; conv2d 10 + 10, wrappers 4 × 10 call.
    assert lines[-1] == (
        "a little fragmented: 22.6% of operator time is in pieces shorter than 0.1 ms; in gaps, "
        "where no operator runs, is 38.0% of the time"
    )
    assert lines[-2] == "operators that call oneDNN: 47.0% of the time"


def test_many_short_operators_are_fragmented(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("aten::mul", "aten::add")
    many = [operator(names[place % 2], 20 * place, 20 * place + 15) for place in range(40)]
    write(tmp_path / "trace.json", annotation("step 1", 0, 1000), *many,
          operator("aten::sum", 800, 1000))  # fmt: skip
    assert run(tmp_path / "trace.json", "--json", tmp_path / "numbers.json") == 0
    assert "\nfragmented: 75.0% of operator time" in capsys.readouterr().out
    found = json.loads((tmp_path / "numbers.json").read_text())["fragmentation"]
    assert found["context_switches"] == 40
    assert found["context_switches_per_s"] == pytest.approx(40_000)
    assert found["median_working_span_us"] == 15


def test_reading_a_trace_needs_no_torch(tmp_path: Path) -> None:
    file = write(tmp_path / "trace.json", *STEP)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "trace", file, "--out", tmp_path / "out"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "timeline.png").exists()


def test_a_trace_that_was_cut_off_is_read_as_far_as_it_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = traced(tmp_path / "whole.json").file.read_bytes()
    cut = tmp_path / "cut.json"
    cut.write_bytes(whole[: len(whole) // 2])
    assert run(cut) == 0
    assert "note: the file ends in the middle" in capsys.readouterr().out


def test_files_of_an_earlier_call_are_kept_unless_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = write(tmp_path / "trace.json", *STEP), tmp_path / "out"
    out.mkdir()
    (out / "split.svg").write_text("kept")
    assert run(file, "--out", out) == 2
    assert f"{out / 'split.svg'}: exists; give --overwrite" in capsys.readouterr().err
    assert (out / "split.svg").read_text() == "kept"
    assert [one.name for one in out.iterdir()] == ["split.svg"]
    assert run(file, "--out", out, "--overwrite") == 0
    assert (out / "split.svg").read_text() != "kept"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--step", "21"], "--step: "),
        (["--onednn-log", "none.log"], "none.log: cannot be read"),
        (["--json", "."], "is a folder"),
    ],
)
def test_wrong_arguments_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    assert run(write(tmp_path / "trace.json", *STEP), *words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and expected in line


def test_control_characters_of_a_trace_do_nothing_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wild = (annotation("phase: \x1b[31mred", 0, 50), annotation("module: [bold]m[/]", 0, 50))
    file = write(tmp_path / "trace.json", *wild, operator("aten::\x1b[2J[red]mul", 0, 40))
    assert run(file) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "aten::�[2J[red]mul" in printed and "[bold]m[/]" in printed


def test_ctrl_c_is_one_word() -> None:
    reader, writer = os.pipe()  # a trace that never comes
    process = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_TORCH, "trace", f"/dev/fd/{reader}"],
        cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, pass_fds=[reader],
    )  # fmt: skip
    os.close(reader)
    with os.fdopen(writer, "wb") as stream:
        stream.write(b'{"traceEvents": [')
        stream.flush()
        while fcntl.ioctl(writer, termios.FIONREAD, b"\0" * 4) != b"\0" * 4:
            time.sleep(0.01)  # until the command has read it
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "interrupted\n")
