"""`retinanet profile trace`: tables, files, memory traffic, and errors."""

import csv
import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from common.errors import InputError
from profiling.__main__ import main
from profiling.trace.trace import parse_bytes_moved
from tests.profiling.report.example_logs import HEADER, convolution
from tests.profiling.trace.example_traces import STEP, Event, annotation, operator, write
from tests.profiling.trace.traced_model import traced
from tests.support.commands import RunHere, run_program

WITHOUT_TORCH = """\
import sys
sys.modules["torch"] = None
from common.cli import run_command
from profiling.__main__ import main
sys.exit(run_command(main))
"""
CHARTS = ("split", "timeline", "operators")


def table_cells(output: str) -> list[list[str]]:
    """Return the cells of all printed tables, row by row."""
    lines = [line for line in output.splitlines() if "│" in line]
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]


@pytest.mark.slow
def test_real_trace_becomes_tables_and_charts_without_torch(
    tmp_path: Path, run_here: RunHere
) -> None:
    trace = traced(tmp_path / "rank0.json.gz", marks=True)
    out, numbers = tmp_path / "out", tmp_path / "numbers.json"
    arguments = ("trace", trace.file, "--out", out, "--json", numbers, "--top", "3")
    out.mkdir()
    (out / "split.svg").write_text("existing")
    refused = run_here(main, *arguments)
    assert refused.returncode == 2
    assert f"{out / 'split.svg'}: exists; give --overwrite" in refused.stderr
    assert [entry.name for entry in out.iterdir()] == ["split.svg"]
    done = run_program(sys.executable, "-c", WITHOUT_TORCH, *map(str, arguments), "--overwrite")
    assert done.returncode == 0, done.stderr
    assert "steps 20, 21: " in done.stdout and "the 3 costliest of " in done.stdout
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
    assert calls == trace.calls["aten::mm"] / 2  # Per step, of two steps
    for name in CHARTS:
        with Image.open(out / f"{name}.png") as picture:
            assert picture.width > 800 and len(picture.convert("RGB").getcolors(1 << 24) or ()) > 5
        ElementTree.parse(out / f"{name}.svg")
    svg = (out / "timeline.svg").read_text()
    assert "main" in svg and "gaps: no operator runs" in svg


def test_printed_tables_and_verdicts(tmp_path: Path, run_here: RunHere) -> None:
    done = run_here(main, "trace", write(tmp_path / "trace.json", *STEP))
    rows = {row[0]: row[1:] for row in table_cells(done.stdout)}
    assert rows["backward"] == ["0.40", "0.24", "0.05", "0.11"]
    assert rows["share"] == ["100.0%", "47.0%", "15.0%", "38.0%"]
    assert rows["spans"] == ["9", "9,000"]
    assert rows["aten::mul"] == ["loss", "1", "0.04", "4.0%", "no module"]
    # Short: mul 40, sum 30, AccumulateGrad 10 µs work; conv2d 10 + 10, wrappers 4 × 10 call.
    *_, onednn, fragmentation = done.stdout.splitlines()
    assert "oneDNN: 47.0%" in onednn
    assert fragmentation.startswith("a little fragmented")
    assert "22.6%" in fragmentation and "38.0%" in fragmentation


def test_many_short_operators_are_fragmented(tmp_path: Path, run_here: RunHere) -> None:
    names = ("aten::mul", "aten::add")
    many = [operator(names[place % 2], 20 * place, 20 * place + 15) for place in range(40)]
    write(tmp_path / "trace.json", annotation("step 1", 0, 1000), *many,
          operator("aten::sum", 800, 1000))  # fmt: skip
    numbers = tmp_path / "numbers.json"
    done = run_here(main, "trace", tmp_path / "trace.json", "--json", numbers)
    verdict = done.stdout.splitlines()[-1]
    assert verdict.startswith("fragmented") and "75.0%" in verdict
    content = json.loads(numbers.read_text())["fragmentation"]
    assert content["context_switches"] == 40
    assert content["context_switches_per_s"] == pytest.approx(40_000)
    assert content["median_working_span_us"] == 15


def test_onednn_log_of_the_same_trace(tmp_path: Path, run_here: RunHere) -> None:
    trace = write(tmp_path / "trace.json", operator("aten::mm", 0, 1000))
    log, numbers = tmp_path / "onednn.log", tmp_path / "numbers.json"
    kinds = "".join(convolution(0.05).replace("convolution,", f"kind_{x},") for x in "abcdefghij")
    log.write_text(HEADER + kinds)
    done = run_here(main, "trace", trace, "--onednn-log", log, "--json", numbers)
    assert done.returncode == 0, done.stderr
    assert ["all", "1.0", "0.50", "50.0%", "0.0", "1.0"] in table_cells(done.stdout)
    assert "2 more kinds" in done.stdout and "note: the log has no marks" in done.stdout
    content = json.loads(numbers.read_text())["onednn_log"]
    assert content["share"] == pytest.approx(0.5) and len(content["kinds_ms"]) == 10
    assert "50.0%" in done.stdout.splitlines()[-2]


@pytest.mark.parametrize(
    ("events", "note"),
    [
        ([*STEP, {"ph": "X", "cat": "kernel", "name": "k", "ts": 0, "dur": 1}], "1 GPU events"),
        ([*STEP, operator("aten::decode", 0, 500, thread=9)], "other threads are not included"),
        ([operator("aten::mul", 0, 9)], "with_stack=True"),
    ],
)
def test_notes(tmp_path: Path, run_here: RunHere, events: list[Event], note: str) -> None:
    done = run_here(main, "trace", write(tmp_path / "trace.json", *events))
    assert any(line.startswith("note: ") and note in line for line in done.stdout.splitlines())


def test_truncated_trace(tmp_path: Path, run_here: RunHere) -> None:
    whole = write(tmp_path / "trace.json", *STEP)
    whole.write_bytes(whole.read_bytes()[:-400])
    done = run_here(main, "trace", whole)
    assert done.returncode == 0 and "note: the file is truncated" in done.stdout


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--step", "21"], "--step: "),
        (["--step", "a"], "--step"),
        (["--onednn-log", "none.log"], "none.log: cannot be read"),
        (["--json", "."], "is a folder"),
    ],
)
def test_invalid_options(
    tmp_path: Path, run_here: RunHere, options: list[str], reason: str
) -> None:
    done = run_here(main, "trace", write(tmp_path / "trace.json", *STEP), *options)
    assert done.returncode == 2
    assert "error: " in done.stderr.splitlines()[-1] and reason in done.stderr


def test_control_characters_are_replaced(tmp_path: Path, run_here: RunHere) -> None:
    wild = (annotation("phase: \x1b[31mred", 0, 50), annotation("module: [bold]m[/]", 0, 50))
    file = write(tmp_path / "trace.json", *wild, operator("aten::\x1b[2J[red]mul", 0, 40))
    done = run_here(main, "trace", file)
    assert done.returncode == 0 and "\x1b" not in done.stdout
    assert "aten::�[2J[red]mul" in done.stdout and "[bold]m[/]" in done.stdout


MOVED = {
    "step": 19,
    "operators": [
        ["forward", "aten::convolution", 3, 2_000_000_000, 1_000_000_000],
        ["forward", "aten::relu_", 2, 600_000_000, 600_000_000],
        ["backward", "aten::threshold_backward", 2, 1_200_000_000, 600_000_000],
        ["optimizer", "lamb_step", 1, 4_000_000_000, 3_000_000_000],
        ["", "aten::mul", 1, 8, 8],
    ],
}


def write_with_bytes(folder: Path, moved: Any) -> Path:
    file = folder / "trace.json"
    file.write_text(json.dumps({"bytes_moved": moved, "traceEvents": STEP}))
    return file


def test_memory_traffic_by_phase_and_operator(tmp_path: Path, run_here: RunHere) -> None:
    numbers = tmp_path / "numbers.json"
    done = run_here(main, "trace", write_with_bytes(tmp_path, MOVED), "--json", numbers)
    assert done.returncode == 0, done.stderr
    cells = table_cells(done.stdout)
    assert ["backward", "1.200", "0.600", "1.800"] in cells
    assert ["all", "7.800", "5.200", "13.000"] in cells
    assert ["lamb_step", "optimizer", "1", "4.000", "3.000", "53.8%"] in cells
    content = json.loads(numbers.read_text())["bytes_moved"]
    assert content["step"] == 19 and content["bytes"] == 13_000_000_016
    assert content["phases"]["forward"] == 4_200_000_000
    assert content["phases"]["between phases"] == 16


@pytest.mark.parametrize(
    "damaged", [7, {"step": 1}, {"step": 1, "operators": [["forward", "x"]]}, {"operators": []}]
)
def test_damaged_memory_traffic(tmp_path: Path, run_here: RunHere, damaged: Any) -> None:
    with pytest.raises(InputError, match=r"trace\.json: bytes_moved"):
        parse_bytes_moved(damaged, Path("trace.json"))
    done = run_here(main, "trace", write_with_bytes(tmp_path, damaged))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
