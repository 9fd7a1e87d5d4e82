"""A run's `metrics.jsonl`, read back; for this neither torch nor numpy is needed."""

import json
from pathlib import Path
from typing import Any


def read_metrics(file: Path) -> list[dict[str, Any]]:
    """The records of a metrics file; a last line cut short by a crash is left out."""
    if not file.exists():
        return []
    records = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


def drop_later_lines(file: Path, *, step: int) -> None:
    """Remove records of steps that come after `step`, at once."""
    if not file.exists():
        return
    kept = [record for record in read_metrics(file) if record["step"] <= step]
    partial = file.with_name(f".{file.name}.partial")
    partial.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
    partial.replace(file)
