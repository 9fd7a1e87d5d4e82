"""What reading a long oneDNN log costs."""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

from profiling.bench.finding import Finding
from profiling.bench.findings_output import put_out
from profiling.bench.generated_log import write_log
from retinanet.command_line import add_json_option, positive
from retinanet.exit_codes import FINISHED, OUR_BUG
from retinanet.output_files import require_free_json
from retinanet.progress import MEGABYTE
from retinanet.terminal import make_console

LINES, PROBLEMS = 1_000_000, 1000

ABOUT = """\
Writes a log with time stamps and other programs' lines in between to a temporary folder, and reads
it in a process of its own. The sum that is read must be the sum that was written."""

READ = """\
import json, sys, time
from pathlib import Path
from launch.resources import peak_resident_mb
from profiling.onednn_log.read import read_logs
began = time.perf_counter()
log = read_logs([Path(sys.argv[1])])
seconds = time.perf_counter() - began
print(json.dumps({"seconds": seconds, "peak_mb": peak_resident_mb(), "total_ms": log.total_ms,
                  "problems": len(log.calls()), "not_understood": log.not_understood_count}))
"""


def add_log_benchmark(kinds: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `log` to the benchmarks of a command line."""
    about = "reading a long oneDNN log"
    parser = kinds.add_parser("log", help=about, description=f"Time {about}.\n\n{ABOUT}")
    for name, default, what in (
        ("--lines", LINES, "executions in the log"),
        ("--problems", PROBLEMS, "distinct problems among them"),
    ):
        help_text = f"{what} (default: {default:,})"
        parser.add_argument(name, type=positive, default=default, metavar="N", help=help_text)
    add_json_option(parser)
    parser.set_defaults(run=log_command)


def log_command(*, lines: int, problems: int, json_file: Path | None) -> int:
    """Run the benchmark; returns the exit code."""
    require_free_json(json_file)
    console = make_console()
    with tempfile.TemporaryDirectory(prefix="log-benchmark-") as folder:
        file = Path(folder, "onednn.log")
        written_ms = write_log(file, lines=lines, problems=problems)
        size = file.stat().st_size / MEGABYTE
        console.print(f"{lines:,} executions of {problems:,} problems: {size:,.0f} MB")
        command = [sys.executable, "-c", READ, str(file)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    read = json.loads(output)
    standard = lines == LINES
    put_out(
        describe(read, with_targets=standard),
        benchmark="log",
        workload={"lines": lines, "problems": problems},
        with_targets=standard,
        json_file=json_file,
    )
    if not math.isclose(read["total_ms"], written_ms, rel_tol=1e-12) or read["not_understood"]:
        console.print(f"WRONG: {written_ms} ms were written: {read}", soft_wrap=True)
        return OUR_BUG
    return FINISHED


def describe(read: dict[str, float], *, with_targets: bool) -> list[Finding]:
    """The numbers beside what is wanted."""
    seconds, peak_mb = read["seconds"], read["peak_mb"]
    return [
        Finding(
            what="reading, seconds",
            value=seconds,
            shown=f"{seconds:.1f} s",
            at_most=12 if with_targets else None,
        ),
        Finding(
            what="reading, memory at the most",
            value=peak_mb,
            shown=f"{peak_mb:.0f} MB",
            at_most=300 if with_targets else None,
        ),
    ]
