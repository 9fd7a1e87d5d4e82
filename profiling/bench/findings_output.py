"""The end of a benchmark that has no contestants: a table of findings, and JSON if asked for."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from profiling.bench.environment import environment
from profiling.bench.finding import Finding
from profiling.bench.json_file import findings_json
from profiling.bench.report import PIPE_WIDTH, findings_table
from retinanet.output_files import write_whole
from retinanet.terminal import make_console


def put_out(
    findings: Sequence[Finding],
    *,
    benchmark: str,
    workload: Mapping[str, Any],
    with_targets: bool,
    json_file: Path | None,
) -> None:
    """Print the findings, and write them with what they are of."""
    console = make_console(pipe_width=PIPE_WIDTH)
    console.print(findings_table(findings, with_targets=with_targets))
    if json_file is not None:
        content = {
            "benchmark": benchmark,
            "workload": dict(workload),
            "environment": environment(),
            "findings": findings_json(findings),
        }
        write_whole(json_file, json.dumps(content, indent=1, ensure_ascii=False))
