"""Follow a training by `metrics.jsonl`: where its records begin, for the writer and the reader.

A run that is resumed or replaced has records of earlier trainings in the file until it begins to
write. So the caller gives the training an id by an environment variable, and the training writes
it as a record before its own. A process without the variable writes no such record.
"""

import json
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.files import open_regular

START = "RETINANET_START"
SECONDS_BETWEEN_LOOKS = 0.2


def start_id() -> dict[str, str]:
    """Return the last field of the record of kind `start`; empty if nobody follows."""
    return {"id": os.environ[START]} if os.environ.get(START) else {}


class MetricsReader:
    """Reads the records that a training adds to the file `metrics.jsonl`.

    The training is started with the variables of `environment`.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset = 0  # Of the first byte that was not read; 0 until the training has begun
        self.environment = {START: secrets.token_hex(8)}

    def follow(self, process: "subprocess.Popen[Any]") -> Iterator[dict[str, Any]]:
        """Yield records as they are written, until the process has ended.

        What was not taken, as a loop was left, comes first in the next call.
        """
        while True:
            # Before the records are read: they may be its last ones.
            is_running = process.poll() is None
            yield from self.read()
            if not is_running:
                return
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the records that were added since the last call."""
        try:
            with open_regular(self._file) as stream:
                stream.seek(self._offset)
                added = stream.read()
        except OSError:  # not yet
            return
        if not self._offset:
            own = json.dumps({"id": self.environment[START]})[1:].encode() + b"\n"
            before, own, added = added.partition(own)
            if not own:
                return
            self._offset = len(before) + len(own)
        for line in added.splitlines(keepends=True):
            if not line.endswith(b"\n"):  # written in part
                return
            self._offset += len(line)
            yield json.loads(line)
