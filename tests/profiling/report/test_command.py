"""`retinanet profile report`: its inputs, and the page read as text."""

import json
import re
from collections import defaultdict
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from common.errors import InputError
from common.files import write_json
from profiling.__main__ import main
from profiling.onednn_log.log import read_logs
from profiling.peaks import save
from profiling.replay.replay import Conditions, Replay, ReplayTime
from profiling.report.command import Inputs, find_inputs
from tests.profiling.onednn_log.example_lines import UNLIKE_OTHERS
from tests.profiling.onednn_log.logs import FIXTURES, plain_sum
from tests.profiling.report.example_logs import (
    HEADER,
    PEAKS,
    convolution,
    hostile_log,
    rank_log,
    write_page,
    write_run,
)
from tests.profiling.trace import example_traces
from tests.support.commands import RunHere, error_line

CAPTION = "oneDNN's problems, the costliest first"


class Page(HTMLParser):
    """Texts by section, and the rows of its tables by caption."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.sections: dict[str, str] = {}
        self.tables: dict[str, list[list[str]]] = {}
        self.values: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        """Sort keys of a column, counted from 1, of a table; 0 for empty cells."""
        self._section = self._caption = ""
        self._open: list[str] = []
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open.append(tag)
        if tag == "section":
            self._section = dict(attrs)["id"] or ""
            self.sections[self._section] = ""
        elif tag == "caption":
            self._caption = ""
        elif tag == "tr":
            self.tables.setdefault(self._caption, []).append([])
        elif tag in ("td", "th"):
            self.tables[self._caption][-1].append("")
            self.values[self._caption, len(self.tables[self._caption][-1])].append(
                float(dict(attrs).get("data-value") or 0)
            )

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._section:
            self.sections[self._section] += data
        if "caption" in self._open:
            self._caption += data
        elif "tr" in self._open and {"td", "th"} & set(self._open[-2:]):
            self.tables[self._caption][-1][-1] += data


def numbers(row: list[str]) -> list[float]:
    return [float(cell.rstrip("%").replace(",", "")) for cell in row[1:] if cell]


def write_full_run(folder: Path) -> tuple[str | Path, ...]:
    """Write a run with all optional inputs, and return the arguments of `report`."""
    run = write_run(folder)
    log = run / "onednn" / "rank0.log"
    other_lines = [*UNLIKE_OTHERS, "onednn_verbose,v1,primitive,exec,cpu,convo"]
    log.write_text("\n".join([log.read_text(), *other_lines]))
    (run / "environment.json").write_text(json.dumps({"processor": "a CPU", "command": ["train"]}))
    (run / "perf").mkdir()
    counters = {"task-clock": {"value": 360.0}, "page-faults": {"value": 90_000.0}}
    content = {"rank": 0, "steps": [20, 21], "seconds": 0.2, "counters": counters,
               "not_counted": ["cycles"]}  # fmt: skip
    (run / "perf" / "rank0.json").write_text(json.dumps(content))
    (run / "trace").mkdir()
    example_traces.write(run / "trace" / "rank0.json", *example_traces.STEP)
    problems = read_logs([log]).calls()
    times = [ReplayTime(item, 5.0, 6.0, 3, item.implementation) for item in problems]
    replay = Replay("torch", "3.7.1", "", Conditions(2), times, [])
    write_json(folder / "replay.json", asdict(replay))
    reference = folder / "reference.log"
    reference.write_text(rank_log(0).replace(convolution(45.0, direction="backward_weights"), ""))
    return run, "--replay", folder / "replay.json", "--reference", reference


@pytest.mark.slow
def test_page_of_a_run_with_all_inputs(tmp_path: Path) -> None:
    page = Page(write_page(tmp_path, *write_full_run(tmp_path)))
    assert list(page.sections) == ["what-ran", "phases", "kinds", "trace", "could-be",
        "efficiency", "comparison", "next", "problems", "ranks", "log"]  # fmt: skip
    assert not [name for name, text in page.sections.items() if "retinanet train" in text]
    for text in ("by hand", "oneDNN 3.7.1", "a CPU", "20, 21"):
        assert text in page.sections["what-ran"]
    # Rank 1 takes 1.2 times as long in convolutions: (20 + 10 + 45 + 24 + 10 + 54) / 2
    rows = {row[0]: numbers(row) for row in page.tables["A mean step by phases"][1:]}
    assert rows["forward"] == [40, 40, 32, 8]
    assert rows["backward"] == [50, 50, 49.5, 0.5]
    assert rows["between phases"] == [10, 10, 0, 10]
    assert rows["whole step"] == [100, 100, 81.5, 18.5]
    kinds = {row[0]: row[1:3] for row in page.tables["oneDNN's time by kind and direction"][1:]}
    assert kinds["convolution backward weights"] == ["1", "49.5"]
    assert kinds["all"] == ["4", "81.5"]
    findings = " ".join(page.sections["next"].split())
    titles = ("fewer calls At most 49.5 ms per step", "Rank 1 is slower", "Reorders: ", "float32")
    for text in (*titles, "45,000 page faults", "slower in the run than in isolation"):
        assert text in findings
    savings = [float(number) for number in re.findall(r"At most ([\d.]+) ms", findings)]
    assert savings == sorted(savings, reverse=True)
    for text in ("1 nested_cache_miss", "unsupported isa", "out of memory", "rank0.log:"):
        assert text in page.sections["log"]


@pytest.mark.slow
def test_missing_inputs_have_commands_and_times_add_up(tmp_path: Path, run_here: RunHere) -> None:
    log, file = FIXTURES / "benchdnn-3.7.2-matmul.log", tmp_path / "page.html"
    title = ("--title", "A < B")
    assert run_here(main, "report", log, "--peaks=none", *title, "--out", file).returncode == 0
    assert "<title>A &lt; B</title>" in file.read_text(encoding="utf-8")
    page = Page(file)
    commands = {
        "phases": "retinanet train profile.onednn.steps=20-22",
        "trace": "retinanet train profile.trace.steps=20-22",
        "could-be": "retinanet profile peaks --json peaks.json",
        "efficiency": f"retinanet profile benchdnn {log} --out replay",
        "comparison": "--reference OTHER.log",
        "ranks": "profile.perf=true",
    }
    assert all(command in page.sections[name] for name, command in commands.items())
    assert sum(page.values[CAPTION, 4]) == pytest.approx(plain_sum(log))
    total = float(page.tables[CAPTION][-1][3].replace(",", ""))
    assert total == pytest.approx(plain_sum(log), rel=0.005, abs=0.0005)


@pytest.mark.slow
def test_cheap_problems_share_one_row(tmp_path: Path) -> None:
    log = tmp_path / "many.log"
    log.write_text("".join(convolution(place, channels=16 * place) for place in range(1, 621)))
    page = Page(write_page(tmp_path, log))
    rows = page.tables[CAPTION][1:]
    assert len(rows) == 502
    assert (rows[0][3], rows[499][3]) == ("620", "121")
    assert rows[500][0] == "120 other problems"
    assert rows[500][2:4] == ["120", "7,260"]  # 1 + 2 + … + 120
    assert rows[501][2:4] == ["620", "192,510"]
    assert "500 costliest of 620 problems" in page.sections["problems"]
    assert "retinanet profile stats" in page.sections["problems"]


def test_operators_and_reasons_of_a_captured_log(tmp_path: Path) -> None:
    operator = {"name": "aten::a", "caller": "aten::b", "module": "M", "shapes": "2x3"}
    slow = convolution(8.0, implementation="gemm:ref")
    tensors = slow.split("forward_training,")[1].rpartition(",")[0]
    reason = (
        "onednn_verbose,v1,primitive,create:dispatch,convolution,cpu,convolution,jit_dw:undef,"
        f"forward_training,{tensors},unsupported datatype,src/cpu/x64/jit_dw.hpp:53\n"
    )
    log = tmp_path / "captured.log"
    log.write_text(f"{HEADER}{reason}profilednn_operator,{json.dumps(operator)}\n{slow}")
    page = Page(write_page(tmp_path, log))
    [operators] = [rows for name, rows in page.tables.items() if "pairs of torch operator" in name]
    assert operators[1] == [
        "b > a",
        "convolution forward training",
        "1",
        "8.0",
        "100.0%",
        "M, 100%",
    ]
    [fallbacks] = [rows for name, rows in page.tables.items() if "by general code" in name]
    assert fallbacks[1][1] == "gemm:ref" and fallbacks[1][-1] == "jit_dw: unsupported datatype"
    assert "Skipped for the costliest: jit_dw: unsupported datatype." in page.sections["next"]


@pytest.mark.slow
def test_cautions_come_first_and_a_log_without_a_complete_step(
    tmp_path: Path, run_here: RunHere
) -> None:
    lines = rank_log(0).splitlines(keepends=True)
    log, page = tmp_path / "a.log", tmp_path / "page.html"
    log.write_text("".join(sorted(lines, key=lambda line: not line.startswith("profilednn_mark"))))
    save(replace(PEAKS, threads=77, other_cores=1.6), tmp_path / "disturbed.json")
    done = run_here(main, "report", log, "--peaks", tmp_path / "disturbed.json", "--out", page)
    assert done.returncode == 0, done.stderr
    head = page.read_text(encoding="utf-8").partition("<main")[0]
    assert head.index("1.60 cores") < head.index("77 in the measurement") < head.index("This log")
    first, second, *_ = done.stdout.splitlines()
    assert "1.60 cores" in first and "77 in the measurement" in second
    assert "no complete step" in Page(page).sections["kinds"]


def test_existing_page_is_not_overwritten(tmp_path: Path, run_here: RunHere) -> None:
    page = tmp_path / "page.html"
    page.write_text("mine")
    log = hostile_log(tmp_path / "a.log")
    done = run_here(main, "report", log, "--peaks=none", "--out", page)
    assert done.returncode == 2 and str(page) in done.stderr and "--overwrite" in done.stderr
    assert page.read_text() == "mine"


@pytest.mark.parametrize(
    ("option", "content", "reason"),
    [
        ("--environment", "[1]", "JSON object"),
        ("--environment", "{", "is not JSON"),
        ("--replay", "{}", "replay"),
        ("--trace", "{}", ""),
        ("--peaks", "{}", "matrix_gflop_per_s: Field required"),
        ("--reference", "nothing\n", "no oneDNN lines"),
    ],
)
def test_invalid_input_is_one_line(
    tmp_path: Path, run_here: RunHere, option: str, content: str, reason: str
) -> None:
    log, wrong = hostile_log(tmp_path / "a.log"), tmp_path / "wrong.json"
    wrong.write_text(content)
    options = [option, wrong] if option == "--peaks" else [option, wrong, "--peaks", "none"]
    error = error_line(run_here(main, "report", log, *options, "--out", tmp_path / "page.html"))
    assert error.startswith(f"error: {wrong}") and reason in error
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"steps": []}', '{"steps": [1], "rank": 0}',
     '{"steps": [], "rank": 0, "seconds": 1, "counters": {}, "not_counted": []}'],
)  # fmt: skip
def test_damaged_counters_name_their_file(tmp_path: Path, run_here: RunHere, content: str) -> None:
    run = write_run(tmp_path)
    (run / "perf").mkdir()
    file = run / "perf" / "rank0.json"
    file.write_text(content)
    done = run_here(main, "report", run, "--peaks", "none", "--out", tmp_path / "page.html")
    assert error_line(done).startswith(f"error: {file}: ")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with files of three ranks, and two files that are no input."""
    folder = tmp_path / "coco"
    files = ["trace/.rank0.json.gz", "onednn/notes.txt", "environment.json"]
    for rank in (10, 0, 2):
        files += [f"onednn/rank{rank}.log", f"trace/rank{rank}.json.gz", f"perf/rank{rank}.json"]
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def collect_inputs(
    *files: Path, trace: Path | None = None, environment: Path | None = None
) -> Inputs:
    return find_inputs(list(files), trace=trace, environment=environment)


def test_inputs_of_a_run_are_in_order_of_ranks(run: Path, tmp_path: Path) -> None:
    inputs = collect_inputs(run)
    assert [file.name for file in inputs.logs] == ["rank0.log", "rank2.log", "rank10.log"]
    assert inputs.trace == run / "trace" / "rank0.json.gz"
    assert [file.name for file in inputs.counters] == ["rank0.json", "rank2.json", "rank10.json"]
    trace, environment = tmp_path / "t.json", tmp_path / "e.json"
    given = collect_inputs(run, trace=trace, environment=environment)
    assert (given.trace, given.environment) == (trace, environment)
    folder = collect_inputs(run / "onednn")
    assert inputs.environment == folder.environment == run / "environment.json"
    assert len(folder.logs) == 3


def test_inputs_of_one_rank(run: Path) -> None:
    log, counters = run / "onednn" / "rank2.log", run / "perf" / "rank2.json"
    inputs = collect_inputs(log)
    assert inputs.environment == run / "environment.json"
    assert (inputs.logs, inputs.counters) == ((log,), (counters,))
    assert inputs.trace == run / "trace" / "rank2.json.gz"


def test_inputs_of_other_logs(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.touch()
    alone = collect_inputs(log)
    assert (alone.trace, alone.environment, alone.counters) == (None, None, ())
    (tmp_path / "environment.json").touch()
    assert collect_inputs(log).environment == tmp_path / "environment.json"
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").touch()
    with pytest.raises(InputError, match="train with profile"):
        collect_inputs(run)
