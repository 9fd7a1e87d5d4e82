"""`python -m profiling report` as a user has it, its page read as text."""

import json
import re
from collections import defaultdict
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from profiling.onednn_log.log import read_logs
from profiling.peaks import save
from profiling.replay.replay import Conditions, Replay, ReplayTime, save_replay
from tests.profiling.onednn_log.logs import plain_sum
from tests.profiling.report.logs_by_hand import convolution, hostile_log, rank_log, write_run
from tests.profiling.report.pages import PEAKS, report, written_page
from tests.profiling.trace import traces_by_hand

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "onednn"


class Page(HTMLParser):
    """Texts by section, and the rows of its tables by caption."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.sections: dict[str, str] = {}
        self.tables: dict[str, list[list[str]]] = {}
        self.values: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        """What a table's column, counted from 1, is sorted by; 0 where a cell has nothing."""
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


@pytest.fixture(scope="module")
def of_a_run(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Everything that can be given: two ranks, counters, trace, replay, reference."""
    folder = tmp_path_factory.mktemp("run")
    run = write_run(folder)
    (run / "environment.json").write_text(json.dumps({"processor": "a CPU", "command": ["train"]}))
    (run / "perf").mkdir()
    counters = {"task-clock": {"value": 360.0}, "page-faults": {"value": 90_000.0}}
    content = {"rank": 0, "steps": [20, 21], "seconds": 0.2, "counters": counters,
               "not_counted": ["cycles"]}  # fmt: skip
    (run / "perf" / "rank0.json").write_text(json.dumps(content))
    (run / "trace").mkdir()
    traces_by_hand.write(run / "trace" / "rank0.json", *traces_by_hand.STEP)
    problems = read_logs([run / "onednn" / "rank0.log"]).calls()
    times = {one: ReplayTime(5.0, 6.0, 3, one.implementation) for one in problems}
    save_replay(Replay("torch", "3.7.1", "", Conditions(2), times), folder / "replay.json")
    reference = folder / "reference.log"
    reference.write_text(rank_log(0).replace(convolution(45.0, direction="backward_weights"), ""))
    words = ("--replay", folder / "replay.json", "--reference", reference)
    return Page(written_page(folder, run, *words))


def test_the_page_begins_with_what_speaks_against_its_peaks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path)
    disturbed = replace(PEAKS, threads=77, other_cores=1.6)
    save(disturbed, tmp_path / "disturbed.json")
    page = tmp_path / "page.html"
    assert report(run, "--peaks", tmp_path / "disturbed.json", "--out", page) == 0
    head = page.read_text(encoding="utf-8").partition("<main")[0]
    assert head.index("1.60 cores") < head.index("77 when peaks") < head.index("A step")
    printed = capsys.readouterr().out.splitlines()
    assert "1.60 cores" in printed[0] and "77 when peaks" in printed[1]


def test_every_section_is_there_and_none_asks_for_more(of_a_run: Page) -> None:
    assert list(of_a_run.sections) == ["what-ran", "phases", "kinds", "trace", "could-be",
        "efficiency", "comparison", "next", "problems", "ranks", "log"]  # fmt: skip
    asking = {name for name, text in of_a_run.sections.items() if "python train.py" in text}
    assert not asking
    for words in ("by hand", "oneDNN 3.7.1", "a CPU", "20, 21"):
        assert words in of_a_run.sections["what-ran"]


def test_a_step_is_the_mean_over_steps_and_ranks(of_a_run: Page) -> None:
    # Rank 1 is 1.2 times as slow in convolutions: (20 + 10 + 45 + 24 + 10 + 54) / 2
    rows = {row[0]: numbers(row) for row in of_a_run.tables["A mean step by phases"][1:]}
    assert rows["forward"] == [40, 40, 32, 8]
    assert rows["backward"] == [50, 50, 49.5, 0.5]
    assert rows["between phases"] == [10, 10, 0, 10]
    assert rows["whole step"] == [100, 100, 81.5, 18.5]
    kinds = {row[0]: row[1:3] for row in of_a_run.tables["oneDNN's time by kind and direction"][1:]}
    assert kinds["convolution backward weights"] == ["1", "49.5"]
    assert kinds["all"] == ["4", "81.5"]


def test_findings_have_their_numbers(of_a_run: Page) -> None:
    text = " ".join(of_a_run.sections["next"].split())
    for words in (
        "Convolution backward weights: the reference makes fewer calls At most 49.5 ms a step",
        "Rank 1 is slower than the others in oneDNN",
        "rank 0 75.0 ms, rank 1 88.0 ms; on average 81.5 ms",
        "Reorders: layouts or types change between operators At most 10.0 ms a step, 10.0%",
        "Arithmetic in float32 on a machine that has BF16",
        "45,000 page faults a step",
        "Primitives are slower in the run than alone",
    ):
        assert words in text
    saved = [float(one) for one in re.findall(r"At most ([\d.]+) ms", text)]
    assert saved == sorted(saved, reverse=True)


def test_without_anything_else_a_section_says_how_to_get_it(tmp_path: Path) -> None:
    log = FIXTURES / "benchdnn-3.7.2-matmul.log"
    page = tmp_path / "page.html"
    assert report(log, "--peaks", "none", "--out", page) == 0
    sections = Page(page).sections
    for name, command in (
        ("phases", "python train.py profile.onednn.steps=20-22"),
        ("trace", "python train.py profile.trace.steps=20-22"),
        ("could-be", "python -m profiling peaks --json peaks.json"),
        ("efficiency", f"python -m profiling benchdnn {log} --out replay"),
        ("comparison", "--reference OTHER.log"),
        ("ranks", "profile.perf=true"),
    ):
        assert command in sections[name]


def test_times_of_the_table_add_up_to_those_of_the_log(tmp_path: Path) -> None:
    caption = "oneDNN's problems, the costliest first"
    for log in (FIXTURES / "benchdnn-3.7.2-conv.log", FIXTURES / "benchdnn-3.7.2-softmax.log"):
        page = Page(written_page(tmp_path, log, "--overwrite"))
        assert sum(page.values[caption, 4]) == pytest.approx(plain_sum(log))
        assert float(page.tables[caption][-1][3].replace(",", "")) == pytest.approx(
            plain_sum(log), rel=0.005, abs=0.0005
        )


def test_of_many_problems_the_costliest_have_rows_and_the_rest_one(tmp_path: Path) -> None:
    log = tmp_path / "many.log"
    log.write_text("".join(convolution(place, channels=16 * place) for place in range(1, 621)))
    page = Page(written_page(tmp_path, log))
    rows = page.tables["oneDNN's problems, the costliest first"][1:]
    assert len(rows) == 502
    assert (rows[0][3], rows[499][3]) == ("620", "121")
    assert rows[500][0] == "120 other problems"
    assert rows[500][2:4] == ["120", "7,260"]  # 1 + 2 + … + 120
    assert rows[501][2:4] == ["620", "192,510"]
    assert "the 500 costliest of 620 problems" in page.sections["problems"]
    assert "profiling stats" in page.sections["problems"]


def test_harmful_names_are_shown_as_they_are(tmp_path: Path) -> None:
    page = Page(written_page(tmp_path, hostile_log(tmp_path / "a.log")))
    shown = page.sections["problems"]
    assert "<img src=x onerror=alert(1)>" in shown
    assert "</script><script>alert(2)</script>" in shown
    assert "<b onclick=alert(6)>" in shown
    assert "{{ 7 * 7 }}${alert(4)}" in shown
    assert "1 of 9 lines look like oneDNN's" in page.sections["next"]


def test_a_log_without_a_whole_step_says_so(tmp_path: Path) -> None:
    lines = rank_log(0).splitlines(keepends=True)
    marks = [line for line in lines if line.startswith("profilednn_mark")]
    other = [line for line in lines if not line.startswith("profilednn_mark")]
    log = tmp_path / "a.log"
    log.write_text("".join([*marks, *other]))  # every execution lies after the steps
    page = Page(written_page(tmp_path, log))
    assert "no whole step with primitives" in page.sections["kinds"]


def test_nothing_is_overwritten_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, page = hostile_log(tmp_path / "a.log"), tmp_path / "page.html"
    page.write_text("mine")
    assert report(log, "--peaks", "none", "--out", page) == 2
    assert capsys.readouterr().err == f"error: {page}: exists; give --overwrite or another --out\n"
    assert page.read_text() == "mine"
    assert report(log, "--peaks", "none", "--out", page, "--overwrite", "--title", "A < B") == 0
    assert "<title>A &lt; B</title>" in page.read_text(encoding="utf-8")
    assert f"page: {page}, 0." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "content", "message"),
    [
        ("--environment", "[1]", "holds no JSON object"),
        ("--environment", "{", "is not JSON"),
        ("--replay", "{}", "holds no replay"),
        ("--trace", "{}", ""),
        ("--peaks", "{}", "matrix_gflop_per_s is missing"),
        ("--reference", "nothing\n", "holds no line of oneDNN's"),
    ],
)
def test_a_wrong_file_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    option: str,
    content: str,
    message: str,
) -> None:
    log, wrong = hostile_log(tmp_path / "a.log"), tmp_path / "wrong.json"
    wrong.write_text(content)
    words = [option, wrong] if option == "--peaks" else [option, wrong, "--peaks", "none"]
    assert report(log, *words, "--out", tmp_path / "page.html") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {wrong}") and error.count("\n") == 1
    assert message in error
    assert not (tmp_path / "page.html").exists()


def test_damaged_counters_name_their_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path)
    (run / "perf").mkdir()
    file = run / "perf" / "rank0.json"
    for content in ("{", "[]", '{"steps": []}', '{"steps": [1], "rank": 0}'):
        file.write_text(content)
        assert report(run, "--peaks", "none", "--out", tmp_path / "page.html") == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {file}: ") and error.count("\n") == 1
