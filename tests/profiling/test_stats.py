"""`retinanet profile stats`: tables, files, charts, and the paper's parameters."""

import csv
import io
import json
import re
import sys
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from common.files import as_csv
from profiling import stats
from profiling.__main__ import main
from profiling.onednn_log.log import Calls, OneDnnLog, read_logs
from profiling.onednn_log.work import MemoryDescriptor, Problem
from profiling.peaks import Peaks, save
from profiling.sums import sum_by_kind, sum_by_problem
from tests.profiling.onednn_log.example_lines import DAMAGED, SPELLINGS, UNLIKE_OTHERS
from tests.profiling.onednn_log.logs import FIXTURES, plain_sum
from tests.profiling.report.example_logs import rank_log
from tests.support.commands import RunHere, error_line, run_program

LOG = FIXTURES / "benchdnn-3.7.2-conv.log"
MOST_BYTES = 1250
"""Upper bound of the memory per distinct problem, in the log and as a row; it needs about 850."""
HOSTILE = SPELLINGS["3.13"].replace("jit:avx2", "\x1b[2J[red]jit[/red]")


def convolution(direction: str, *, auxiliary: str = "alg:convolution_direct") -> Problem:
    memories = tuple(
        MemoryDescriptor(role, "bf16", tag=tag)
        for role, tag in (("src", "acdb"), ("wei", "Acdb16a"), ("bia", "a"), ("dst", "acdb"))
    )
    shape = "g4mb2_ic8oc16_ih5oh3kh3sh2dh0ph1_iw7ow4kw3sw2dw0pw1"
    return Problem(
        "primitive", "cpu", "convolution", "jit:avx2", direction, memories,
        "attr-scratchpad:user attr-post-ops:sum+eltwise_relu", auxiliary, shape,
    )  # fmt: skip


def test_row_has_numbers_of_one_call_and_of_all() -> None:
    forward, backward = convolution("forward_training"), convolution("backward_data")
    row, last = sum_by_problem({backward: Calls(1, 1.0), forward: Calls(4, 3.0)})
    assert (row.problem.direction, last.problem.direction) == ("forward_training", "backward_data")
    assert (row.calls, row.total_ms, row.mean_ms, row.share) == (4, 3.0, 0.75, 0.75)
    flop = 2 * 2 * 8 / 4 * 16 * 3 * 4 * 9
    size = 2 * (2 * 8 * 5 * 7 + 16 * 2 * 9 + 16 + 2 * 16 * 3 * 4)
    assert row.gflop == pytest.approx(flop / 1e9)
    assert row.gflop_per_s == pytest.approx(flop / 1e9 / 0.75e-3)
    assert row.flop_per_byte == pytest.approx(flop / size)


def test_problems_with_equal_columns_are_one_row() -> None:
    plain = convolution("forward_training")
    padded = Problem(
        plain.component, plain.engine, plain.kind, plain.implementation, plain.direction,
        tuple(MemoryDescriptor(m.role, m.type, "p", tag=m.tag) for m in plain.memories),
        plain.attributes, plain.auxiliary, plain.shape,
    )  # fmt: skip
    calls = {plain: Calls(1, 1.0), padded: Calls(2, 5.0)}
    (row,) = sum_by_problem(calls)
    assert (row.calls, row.total_ms) == (3, 6.0)
    assert calls[plain] == Calls(1, 1.0)  # The log itself is not modified


def test_tables_add_up_to_the_lines_of_the_log() -> None:
    for file in (LOG, FIXTURES / "benchdnn-3.7.2-matmul.log"):
        table = sum_by_problem(read_logs([file]).calls())
        text = as_csv(stats.COLUMNS, map(stats.problem_row, table))
        lines = list(csv.DictReader(io.StringIO(text)))
        assert ",".join(lines[0]) == (
            "kind,implementation,direction,types,layouts,attributes,algorithm,shape,"
            "calls,total_ms,mean_ms,share,gflop,gbyte,gflop_per_s,flop_per_byte"
        )
        assert sum(float(line["total_ms"]) for line in lines) == pytest.approx(plain_sum(file))
        assert sum(float(line["share"]) for line in lines) == pytest.approx(1)
        parts = sum_by_kind(table)
        assert sum(part.total_ms for part in parts) == pytest.approx(plain_sum(file))
        assert sum(part.calls for part in parts) == sum(int(line["calls"]) for line in lines)


def test_parameters_are_those_of_the_papers_second_table() -> None:
    (row,) = stats.parameter_rows({convolution("backward_weights"): Calls(3, 1.0)})
    assert dict(zip(stats.PARAMETER_COLUMNS, row, strict=True)) == {
        "driver": "conv",
        "configuration": "bf16bf16bf16",
        "directory": "BWD_WB",
        "post_ops": "sum+eltwise_relu",
        "algorithm": "DIRECT",
        "problem_batchsize": "mb2",
        "problem_input": "ih5iw7",
        "problem_output": "oh3ow4",
        "problem_stride": "sh2sw2",
        "problem_kernel": "kh3kw3",
        "problem_padding": "ph1pw1",
        "problem_channel": "g4ic8oc16",
        "calls": 3,
    }


def test_log_of_skipped_implementations_alone(tmp_path: Path, run_here: RunHere) -> None:
    log = tmp_path / "dispatch.log"
    log.write_text("\n".join(UNLIKE_OTHERS), encoding="utf-8")
    done = run_here(main, "stats", log, "--json", tmp_path / "a.json")
    assert done.returncode == 0
    assert "no execution, so no times" in done.stdout
    assert "skipped implementations: 1 × unsupported isa" in done.stdout
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["total_ms"] == 0
    refused = run_here(main, "stats", log, "--out", tmp_path / "charts")
    assert "no execution" in error_line(refused)


def test_charts_of_a_log_whose_calls_take_no_time(tmp_path: Path, run_here: RunHere) -> None:
    log, out = tmp_path / "short.log", tmp_path / "charts"
    lines = LOG.read_text(encoding="utf-8").splitlines()
    log.write_text("\n".join(re.sub(r",[0-9.e-]+$", ",0", line) for line in lines))
    done = run_here(main, "stats", log, "--out", out, "--peaks", "none")
    assert done.returncode == 0 and (out / "distribution.png").is_file(), done.stderr


@pytest.mark.slow
def test_tables_and_charts_are_written_once(tmp_path: Path, run_here: RunHere) -> None:
    out, numbers = tmp_path / "stats", tmp_path / "a.json"
    command = ("stats", LOG, "--out", out, "--peaks", "none")
    assert run_here(main, *command, "--json", numbers).returncode == 0
    assert {file.name for file in out.iterdir()} == {
        "primitives.csv", "parameters.csv", "distribution.png", "distribution.svg",
        "roofline.png", "roofline.svg", "operators.csv", "fallbacks.csv",
    }  # fmt: skip
    for name in ("distribution", "roofline"):
        with Image.open(out / f"{name}.png") as picture:
            assert picture.width > 900
        assert "<svg" in (out / f"{name}.svg").read_text(encoding="utf-8")
    content = json.loads(numbers.read_text(encoding="utf-8"))
    assert content["total_ms"] == pytest.approx(plain_sum(LOG))
    assert numbers.read_text(encoding="utf-8") == json.dumps(content, indent=1)
    assert "primitives.csv: exists; give --overwrite" in error_line(run_here(main, *command))


def test_peaks_of_an_earlier_call_are_read_where_tables_are_written(
    tmp_path: Path, run_here: RunHere
) -> None:
    peaks = tmp_path / "peaks.json"
    save(Peaks({"f32": 123.0}, 78.0, threads=1, cpu="a CPU", versions={}, other_cores=0.0), peaks)
    before, command = peaks.read_bytes(), ("stats", LOG, "--peaks", peaks, "--out", tmp_path)
    assert "peaks.json: exists; give --overwrite" in error_line(run_here(main, *command))
    assert run_here(main, *command, "--overwrite").returncode == 0
    assert peaks.read_bytes() == before
    last = error_line(run_here(main, *command, "--overwrite", "--json", tmp_path / "operators.csv"))
    assert "operators.csv: two outputs have this name" in last


@pytest.mark.slow
def test_disturbed_peaks_are_drawn_with_a_caution(tmp_path: Path, run_here: RunHere) -> None:
    rates = {"f32": 123.0, "bf16": 456.0}
    peaks = Peaks(rates, 78.0, threads=77, cpu="a CPU", versions={}, other_cores=1.6)
    save(peaks, tmp_path / "peaks.json")
    log, out = tmp_path / "a.log", tmp_path / "stats"
    bf16 = SPELLINGS["3.13"].replace(":f32:", ":bf16:")
    log.write_text("\n".join([*UNLIKE_OTHERS[:2], SPELLINGS["3.13"], bf16]), encoding="utf-8")
    done = run_here(main, "stats", log, "--out", out, "--peaks", tmp_path / "peaks.json")
    assert done.returncode == 0, done.stderr
    first, second, *_ = done.stdout.splitlines()
    assert first.startswith("caution: peaks: disturbed") and "1.60 cores" in first
    assert second.startswith("caution: peaks: threads") and "77" in second
    chart = (out / "roofline.svg").read_text(encoding="utf-8")
    labels = ("f32 123 GFLOP/s", "bf16 456 GFLOP/s", "memory 78 GB/s", "77 threads of a CPU")
    assert all(text in chart for text in (*labels, "disturbed"))


def test_phases_and_other_lines_are_printed(tmp_path: Path, run_here: RunHere) -> None:
    log = tmp_path / "rank0.log"
    skipped = UNLIKE_OTHERS[6].replace
    reasons = [skipped("unsupported isa", f"reason {number}") for number in range(7)]
    kernels = 'profilednn_facts,{"rank": 0, "own_kernels": "winograd"}'
    steps = rank_log(0) + rank_log(0).rpartition("profilednn_mark")[0]  # the last is incomplete
    log.write_text("\n".join([kernels, steps, *UNLIKE_OTHERS, *reasons, *DAMAGED[:1] * 23]))
    done = run_here(main, "stats", log)
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines()]
    assert ["forward", "40.0", "30.0", "10.0"] in cells
    assert ["whole step", "100.0", "75.0", "25.0"] in cells
    assert "convolutions (winograd)" in done.stdout
    assert "primitives created: 1 nested_cache_miss, 1 cache_miss; 2.0 ms" in done.stdout
    assert "skipped implementations: 5 more" in done.stdout
    assert "messages: 1 × " in done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith(f"  {log}:")]
    assert len(lines) == 20 and "and 3 more" in done.stdout  # Of 23 damaged lines


def test_rare_kinds_share_a_bar_and_empty_charts_have_a_text() -> None:
    parts = [
        stats.Part(f"kind{number}", "undef", 1, 20.0 - number, 0.05, 0.0, None, 0.0, 0.0, [])
        for number in range(15)
    ]
    figure = stats.draw_distribution(parts, title="")
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert len(names) == 13 and names[-1] == "3 other kinds"
    empty = stats.draw_roofline([], None, title="")
    assert all(axes.texts for axes in empty.axes)
    console = Console(file=io.StringIO())
    stats.print_phases(console, OneDnnLog())
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]


def write_distinct(file: Path, problems: int) -> Path:
    """Write a log in which no problem occurs twice."""
    head, tail = re.split(r"_ic\d+", SPELLINGS["3.13"], maxsplit=1)
    file.write_text("".join(f"{head}_ic{number + 1}{tail}\n" for number in range(problems)))
    return file


@pytest.mark.slow
def test_memory_per_distinct_problem(tmp_path: Path) -> None:
    program = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from profiling.onednn_log.log import read_logs\n"
        "from profiling.sums import sum_by_problem\n"
        "tables = []\nfor file in sys.argv[1:]:\n"
        "    log = read_logs([Path(file)])\n    tables.append((log, sum_by_problem(log.calls())))\n"
        "    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "    print(len(tables[-1][1]), memory)\n"
    )
    logs = [write_distinct(tmp_path / f"{number}.log", number) for number in (5_000, 25_000)]
    done = run_program(sys.executable, "-c", program, *logs, check=True)
    (few, first), (many, both) = (map(int, line.split()) for line in done.stdout.splitlines())
    assert (few, many) == (5_000, 25_000)
    assert (both - first) / many < MOST_BYTES


def test_damaged_and_hostile_lines_are_printed_safely(tmp_path: Path, run_here: RunHere) -> None:
    log = tmp_path / "a.log"
    log.write_text(f"{HOSTILE}\n{DAMAGED[0]}\n", encoding="utf-8")
    done = run_here(main, "stats", log)
    assert done.returncode == 0
    assert "in no table: 1" in done.stdout and f"{log}:2: " in done.stdout
    assert "\x1b" not in done.stdout and "[red]jit[/red]" in done.stdout


def test_invalid_log_is_one_line_and_status_2(tmp_path: Path, run_here: RunHere) -> None:
    log = tmp_path / "bad.log"
    for content in ("", "epoch 1\n", SPELLINGS["3.13"][:70]):
        log.write_text(content, encoding="utf-8")
        done = run_here(main, "stats", log, "--out", tmp_path / "out")
        assert error_line(done).startswith(f"error: {log}: ")
        assert not (tmp_path / "out").exists()
