"""`python -m retinanet export`: a checkpoint's detector as one file for other programs."""

import json
from pathlib import Path
from typing import Any

from retinanet.errors import InputError
from retinanet.evaluation.refusals import refuse_what_is_no_checkpoint
from retinanet.exit_codes import FINISHED
from retinanet.export.check_images import check_images
from retinanet.export.comparison import (
    BOX_TOLERANCE,
    SCORE_TOLERANCE,
    Comparison,
    compare_program,
)
from retinanet.export.description import description_of
from retinanet.export.formats import format_of
from retinanet.output_files import require_free_outputs, write_whole
from retinanet.terminal import make_console
from retinanet.training.checkpoint import read_checkpoint


def export(
    *, checkpoint: Path, out: Path, score_threshold: float, image: Path | None, overwrite: bool
) -> int:
    """Write the file, and keep it only if it finds what the checkpoint finds.

    Args:
        checkpoint: See `find_checkpoint`.
        out: `.onnx` or `.pt2`; what it says of itself goes beside it, with `.json` behind.
        score_threshold: Detections are surer than this.
        image: A picture to check it on; None: validation images of the run.
        overwrite: Whether files that exist may be replaced.

    Raises:
        InputError: A file is missing or not what it should be, packages are missing, an output
            exists, or the program finds something else.
    """
    chosen = format_of(out)
    beside = out.with_name(f"{out.name}.json")
    require_free_outputs([out, beside], overwrite=overwrite)
    refuse_what_is_no_checkpoint(checkpoint)
    found = read_checkpoint(checkpoint)
    images, what = check_images(found, image)
    model = found.build_model().eval()
    description = description_of(found, score_threshold=score_threshold)
    console = make_console()
    partial = out.with_name(f".{out.stem}.partial{out.suffix}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        chosen.write(
            model,
            partial,
            image_size=found.model.image_size,
            score_threshold=score_threshold,
            classes=found.model.num_classes,
            description=description,
        )
        run = chosen.load(partial)
        comparison = compare_program(model, run, images, score_threshold=score_threshold)
        require_same(comparison, out, chosen.runs_by, what)
        partial.replace(out)
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror}; set --out") from error
    finally:
        partial.unlink(missing_ok=True)
    write_whole(beside, json.dumps(description, ensure_ascii=False, indent=1))
    size = f"{out.stat().st_size / 1e6:.0f} MB"
    console.print(
        f"{found.folder}, {said_of(description)} → {out} ({size}), {beside.name}", soft_wrap=True
    )
    checked = f"checked by {chosen.runs_by} on {what}: {said_of_comparison(comparison)}"
    console.print(checked, soft_wrap=True)
    return FINISHED


def require_same(comparison: Comparison, out: Path, runtime: str, what: str) -> None:
    """Refuse a program that finds something else.

    Raises:
        InputError: Says how many boxes differ.
    """
    if comparison.differing:
        raise InputError(
            f"{out}: not kept: run by {runtime} on {what} it does not find what the checkpoint "
            f"finds: {comparison.differing} boxes differ by more than {BOX_TOLERANCE} pixels or "
            f"{SCORE_TOLERANCE} of a score, {comparison.same} are the same; try the other format"
        )


def said_of(description: dict[str, Any]) -> str:
    """The step, and the mAP if it is known."""
    value = description["map"]
    return f"step {description['step']}, " + ("no mAP" if value is None else f"mAP {value:.3f}")


def said_of_comparison(comparison: Comparison) -> str:
    """How near the two are, in a line."""
    if not comparison.same:
        return (
            "neither it nor the checkpoint finds a box there, which says little; give --image a "
            "picture with objects, or a lower --score"
        )
    boxes = "box" if comparison.same == 1 else "boxes"
    text = (
        f"the same {comparison.same} {boxes}, at most {comparison.box_difference:.1g} pixels "
        f"({BOX_TOLERANCE} allowed) and {comparison.score_difference:.1g} of a score "
        f"({SCORE_TOLERANCE} allowed) apart"
    )
    if comparison.at_the_edge:
        text += f"; {comparison.at_the_edge} more at the edge of what is kept differ by rounding"
    return text
