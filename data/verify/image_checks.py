"""What the image files' faults mean to a run, as findings."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data.verify.entries import Entries, Good
from data.verify.findings import Findings
from data.verify.image_files import FileFault
from data.verify.kinds import KINDS, Severity

UNREADABLE = ("image_missing", "image_damaged", "image_other_format", "image_too_large")


def add_file_faults(
    faults: Sequence[FileFault],
    entries: Entries,
    findings: Findings,
    good: Good,
    *,
    is_read: NDArray[np.bool_],
    may_skip: int,
) -> None:
    """Add the faults of image files to the findings.

    Args:
        faults: In the order of images.
        entries: The images.
        findings: Added to.
        good: Images that cannot be used are cleared.
        is_read: Whether the run reads an image [I]; the faults of others stop nothing.
        may_skip: Images that cannot be read, and that the run leaves out before it stops.
    """
    unreadable = sum(bool(is_read[one.row]) for one in faults if one.kind in UNREADABLE)
    is_skipped = 0 < unreadable <= may_skip
    for fault in faults:
        severity = KINDS[fault.kind].severity
        if severity is Severity.STOPS:
            good.images[fault.row] = False
            # Opening a split asks for the first image's file, whether or not it is read later.
            is_wanted = is_read[fault.row] or (fault.row == 0 and fault.kind == "image_missing")
            if not is_wanted or (is_skipped and fault.kind in UNREADABLE):
                severity = Severity.MENDED
        place = entries.image_place(fault.row, "", fault.found)
        findings.add(fault.kind, place, severity=severity)
