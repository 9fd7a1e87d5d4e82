"""The end of a benchmark that has no contestants: a table of findings, and JSON if asked for."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from profiling.bench.environment import environment
from profiling.bench.finding import Finding
from profiling.bench.json_file import findings_json
from profiling.bench.report import PIPE_WIDTH, findings_table
from retinanet.output_files import require_free, write_whole


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """`--json FILE`."""
    parser.add_argument(
        "--json", dest="json_file", type=Path, metavar="FILE", help="write the numbers here too"
    )


def require_free_json(json_file: Path | None) -> None:
    """Refuse, before the work, to write over a file."""
    if json_file is not None:
        require_free([json_file], overwrite=False, advice="give --json another file")


def put_out(
    findings: Sequence[Finding],
    *,
    benchmark: str,
    workload: Mapping[str, Any],
    with_targets: bool,
    json_file: Path | None,
) -> None:
    """Print the findings, and write them with what they are of."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH, highlight=False)
    console.print(findings_table(findings, with_targets=with_targets))
    if json_file is not None:
        content = {
            "benchmark": benchmark,
            "workload": dict(workload),
            "environment": environment(),
            "findings": findings_json(findings),
        }
        write_whole(json_file, json.dumps(content, indent=1, ensure_ascii=False))
