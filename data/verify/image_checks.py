"""What the image files' faults mean to a run, as findings."""

from collections.abc import Sequence

from data.verify.kinds import KINDS, Severity
from data.verify.split_check import CheckedSplit, Contents
from retinanet.config import DataConfig


def add_image_findings(checked: Sequence[CheckedSplit], settings: DataConfig) -> None:
    """Add the faults of the splits' image files to their findings; what is bad is no more good.

    With `data.on_bad_image=skip` bad images stop nothing, unless there are too many.
    """
    with_contents = [(one, one.contents) for one in checked if one.contents is not None]
    are_replaced = settings.on_bad_image == "skip" and can_be_replaced(with_contents, settings)
    for one, contents in with_contents:
        for fault in one.file_faults:
            severity = KINDS[fault.kind].severity
            if severity is Severity.STOPS:
                contents.good.images[fault.row] = False
                # Opening a split asks for the first image's file, whether or not it is read later.
                is_first = fault.row == 0 and fault.kind == "image_missing"
                is_wanted = contents.is_read[fault.row] or (
                    is_first and settings.on_bad_image == "stop"
                )
                if are_replaced or not is_wanted:
                    severity = Severity.MENDED
            place = contents.entries.image_place(fault.row, "", fault.found)
            one.findings.add(fault.kind, place, severity=severity)


def can_be_replaced(splits: Sequence[tuple[CheckedSplit, Contents]], settings: DataConfig) -> bool:
    """Whether a run's bad images are within its limit, and some others are left to train on."""
    total = 0
    for one, contents in splits:
        bad = bad_images_read(one, contents)
        if one.name == "train" and bad >= contents.is_read.sum():
            return False
        total += bad
    return total <= settings.bad_image_limit


def bad_images_read(checked: CheckedSplit, contents: Contents) -> int:
    """How many of the images that the run reads cannot be used."""
    return sum(
        bool(contents.is_read[fault.row])
        for fault in checked.file_faults
        if KINDS[fault.kind].severity is Severity.STOPS
    )
