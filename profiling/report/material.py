"""Everything that a report is made from, once it is read."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiling.compare.comparison import Comparison
from profiling.efficiency.efficiency import Efficiency
from profiling.onednn_log.log import OneDnnLog
from profiling.peaks.cautions import cautions_of_peaks
from profiling.peaks.peaks import Peaks
from profiling.report.counters import Counters
from profiling.report.measured import Measured
from profiling.trace.analysis import Analysis
from profiling.trace.beside_log import BesideLog
from profiling.trace.trace import Trace


@dataclass(frozen=True)
class Traced:
    """A trace, and what it comes to."""

    trace: Trace
    analysis: Analysis
    beside: BesideLog | None
    """The log's part of the same steps, where they fit."""


@dataclass(frozen=True)
class Material:
    """A log, and what was given beside it; None: was not."""

    log: OneDnnLog
    measured: Measured
    peaks: Peaks | None
    environment: Mapping[str, Any] | None
    counters: Sequence[Counters]
    efficiency: Efficiency | None
    comparison: Comparison | None
    traced: Traced | None

    @property
    def cautions(self) -> list[str]:
        """What speaks against the numbers of peaks and replay."""
        of_peaks = cautions_of_peaks(self.peaks, self.log)
        return list(
            dict.fromkeys([*of_peaks, *(self.efficiency.cautions if self.efficiency else [])])
        )

    @property
    def log_words(self) -> str:
        """The log as it would be typed after a command."""
        files = self.log.files
        if len(files) == 1:
            return shlex.quote(files[0])
        return f"{shlex.quote(str(Path(files[0]).parent))}/*.log"
