"""Read what a training writes while it runs, and wait for its steps."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any


def read_records(run: Path, *, kind: str) -> list[dict[str, Any]]:
    """Return the whole lines of one kind in a run's metrics.jsonl, which may not exist yet."""
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return [record for record in records if record["kind"] == kind]


def wait_for_steps(run: Path, job: subprocess.Popen[str], *, count: int) -> None:
    """Wait until a run has recorded `count` steps; fail after two minutes, or if it ends before."""
    end = time.monotonic() + 120
    while True:
        running = job.poll() is None  # before the records are read: they may be its last ones
        if len(read_records(run, kind="step")) >= count:
            return
        assert running and time.monotonic() < end, f"{run}: fewer than {count} steps"
        time.sleep(0.01)


def read_weights(run: Path, *, checkpoint: str = "last") -> dict[str, bytes]:
    """Return the content of a checkpoint's model and optimizer files, to compare bit for bit."""
    folder = run / "checkpoints" / checkpoint
    return {
        name: (folder / name).read_bytes()
        for name in ("model.safetensors", "optimizer.safetensors")
    }
