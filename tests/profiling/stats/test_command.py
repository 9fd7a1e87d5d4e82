"""`python -m profiling stats` as a user has it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from common.cli import run_command
from profiling.__main__ import main
from profiling.peaks import Peaks, save
from tests.profiling.onednn_log.lines import DAMAGED, SPELLINGS
from tests.profiling.onednn_log.logs import plain_sum, shared_logs

REPOSITORY = Path(__file__).resolve().parents[3]
MOST_BYTES = 1250
"""Of a distinct problem, read and as a row; it takes about 850."""
HOSTILE = SPELLINGS["3.12"].replace("jit:avx2", "\x1b[2J[red]jit[/red]")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> "Run":
    return Run(monkeypatch)


class Run:
    """The command in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    def __call__(self, *words: object) -> int:
        self.monkeypatch.setattr("sys.argv", ["profiling", *map(str, words)])
        return run_command(main)


def test_tables_and_pictures_are_written_once(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, out = shared_logs()[0], tmp_path / "stats"
    assert run("stats", log, "--out", out, "--peaks", "none", "--json", tmp_path / "a.json") == 0
    assert {file.name for file in out.iterdir()} == {
        "primitives.csv", "parameters.csv", "distribution.png", "distribution.svg",
        "roofline.png", "roofline.svg",
    }  # fmt: skip
    for name in ("distribution", "roofline"):
        with Image.open(out / f"{name}.png") as picture:
            assert picture.width > 900
        assert "<svg" in (out / f"{name}.svg").read_text(encoding="utf-8")
    numbers = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert numbers["total_ms"] == pytest.approx(plain_sum(log))
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == json.dumps(numbers, indent=1)
    assert run("stats", log, "--out", out, "--peaks", "none") == 2
    assert "primitives.csv: exists; give --overwrite" in capsys.readouterr().err
    assert run("stats", log, "--out", out, "--peaks", "none", "--overwrite") == 0


def test_ceilings_are_those_of_the_file(run: Run, tmp_path: Path) -> None:
    rates = {"f32": 123.0, "bf16": 456.0}
    peaks = Peaks(rates, 78.0, threads=2, cpu="a CPU", versions={})
    save(peaks, tmp_path / "peaks.json")
    out = tmp_path / "stats"
    assert run("stats", shared_logs()[0], "--out", out, "--peaks", tmp_path / "peaks.json") == 0
    picture = (out / "roofline.svg").read_text(encoding="utf-8")
    for words in ("f32 123 GFLOP/s", "bf16 456 GFLOP/s", "memory 78 GB/s", "2 threads of a CPU"):
        assert words in picture


def test_disturbed_peaks_of_other_threads_are_named_first_and_in_the_chart(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peaks = Peaks({"f32": 1.0}, 1.0, threads=77, cpu="a CPU", versions={}, other_cores=1.6)
    save(peaks, tmp_path / "peaks.json")
    out = tmp_path / "stats"
    assert run("stats", shared_logs()[0], "--out", out, "--peaks", tmp_path / "peaks.json") == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("caution: peaks: disturbed") and "1.60 cores" in first
    assert second.startswith("caution: peaks: threads") and "77" in second
    assert "disturbed" in (out / "roofline.svg").read_text(encoding="utf-8")


def test_peaks_that_were_disturbed_now_are_used_and_not_kept(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disturbed(**_: object) -> Peaks:
        return Peaks({"f32": 1.0}, 1.0, threads=1, cpu="a CPU", versions={}, other_cores=1.6)

    monkeypatch.setattr("profiling.peaks.measure_peaks", disturbed)
    out = tmp_path / "stats"
    assert run("stats", shared_logs()[0], "--out", out) == 0
    assert (out / "roofline.svg").exists() and not (out / "peaks.json").exists()


def write_distinct(file: Path, problems: int) -> Path:
    """A log in which no problem comes twice."""
    line = next(
        one for one in shared_logs()[-1].read_text().splitlines()
        if ",exec,cpu,convolution," in one and "_ic" in one
    )  # fmt: skip
    head, tail = re.split(r"_ic\d+", line, maxsplit=1)
    file.write_text("".join(f"{head}_ic{number + 1}{tail}\n" for number in range(problems)))
    return file


def test_a_distinct_problem_takes_few_bytes(tmp_path: Path) -> None:
    """As resident memory of real processes, beyond that of a log of few problems."""
    program = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from profiling.onednn_log.log import read_logs\n"
        "from profiling.stats import rows_of\n"
        "table = rows_of(read_logs([Path(sys.argv[1])]).calls())\n"
        "print(len(table), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)\n"
    )
    taken = []
    for problems in (10_000, 40_000):
        log = write_distinct(tmp_path / "distinct.log", problems)
        done = subprocess.run([sys.executable, "-c", program, log], cwd=REPOSITORY,
                              capture_output=True, text=True, check=True)  # fmt: skip
        rows, size = map(int, done.stdout.split())
        assert rows == problems
        taken.append(size)
    assert (taken[1] - taken[0]) / 30_000 < MOST_BYTES


def test_lines_that_are_not_understood_are_shown_with_their_numbers(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "a.log"
    log.write_text(f"{SPELLINGS['3.12']}\n{DAMAGED[0]}\n", encoding="utf-8")
    assert run("stats", log) == 0
    printed = capsys.readouterr().out
    assert "1 lines look like oneDNN's and are not understood" in printed
    assert f"{log}:2: " in printed


def test_a_log_does_nothing_to_the_terminal(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "a.log"
    log.write_text(HOSTILE + "\n", encoding="utf-8")
    assert run("stats", log) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "[red]jit[/red]" in printed


@pytest.mark.parametrize("content", ["", "epoch 1\n", SPELLINGS["3.12"][:70]])
def test_bad_input_is_one_line_and_status_2(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    log = tmp_path / "bad.log"
    log.write_text(content, encoding="utf-8")
    assert run("stats", log, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {log}: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
