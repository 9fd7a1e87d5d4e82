"""`python -m retinanet predict`: boxes in a user's pictures and videos, drawn and as JSON."""

from collections.abc import Sequence
from pathlib import Path

from common.console import make_console
from common.errors import BAD_INPUT, FINISHED, INTERRUPTED
from common.files import require_free
from common.machine import require_packages
from retinanet.predict.files import BoxFile, Sources, find_sources, numbered
from retinanet.predict.images import (
    DetectionCounter,
    PictureDetector,
    Search,
    counted,
    detect_in_pictures,
)
from retinanet.predict.video import detect_in_video
from retinanet.training.build import refuse_what_is_no_checkpoint
from retinanet.training.checkpoint import read_checkpoint
from retinanet.training.signals import StopRequest

DEFAULT_OUT = Path("predictions")


def predict(
    *,
    checkpoint: Path,
    pictures: Sequence[Path],
    out: Path | None,
    draws: bool,
    least_score: float,
    only: Sequence[str],
    batch_size: int,
    every: int,
    json_file: Path | None,
    overwrite: bool,
) -> int:
    """Find a checkpoint's classes in pictures and videos.

    Args:
        checkpoint: See `find_checkpoint`.
        pictures: Files, folders, videos and cameras; a photo is turned upright as its EXIF
            orientation says. See `find_sources` for the names of the drawn copies.
        out: Folder for the drawn copies; None: `predictions`, where copies get a number rather
            than replace files, so that the same command works twice.
        draws: Whether there are any.
        least_score: Boxes below it are left out.
        only: Names of the classes that are wanted; none given: all.
        batch_size: Pictures or frames at once.
        every: Of a video, every how many frames are looked at.
        json_file: Where boxes go as JSON: `bbox` as xywh in pixels of the upright picture.
        overwrite: Whether files that exist may be replaced.

    Returns:
        2 if a picture or video could not be read, 130 if a signal came before the end.

    Raises:
        InputError: A file is missing, or an output exists or cannot be written.
    """
    folder = out or DEFAULT_OUT
    sources = find_sources(pictures, out=folder)
    if out is None and draws and not overwrite:
        sources = numbered(sources)
    if sources.videos:
        require_packages("av", purpose=str(sources.videos[0].file))
    require_outputs(sources, json_file, draws=draws, overwrite=overwrite)
    refuse_what_is_no_checkpoint(checkpoint)
    detector = PictureDetector(read_checkpoint(checkpoint), least_score=least_score, only=only)
    console = make_console()
    tally = DetectionCounter(make_console(stderr=True))
    with StopRequest() as stop, BoxFile(json_file) as box_file:
        search = Search(
            detector=detector,
            batch_size=batch_size,
            draws=draws,
            box_file=box_file,
            tally=tally,
            console=console,
            stop=stop,
        )
        detect_in_pictures(sources.pictures, search)
        for video in sources.videos:
            if not stop.received:
                detect_in_video(video, search, every=every)
    outputs = [*([folder] if draws else []), *([json_file] if json_file else [])]
    where = f" → {', '.join(map(str, outputs))}" if outputs else ""
    console.print(f"{tally.described()}{where}{said_of_rest(sources, tally)}", soft_wrap=True)
    if stop.received:
        console.print(f"{stop.received}: ended before all was looked at; what is written is whole")
        return INTERRUPTED
    return BAD_INPUT if tally.problems else FINISHED


def require_outputs(
    sources: Sources, json_file: Path | None, *, draws: bool, overwrite: bool
) -> None:
    """Refuse what would fail half-way or lose something.

    Raises:
        InputError: An output exists, or two have one name.
    """
    drawn = [source.drawn for source in sources.all] if draws else []
    outputs = [*drawn, *([json_file] if json_file else [])]
    require_free(outputs, overwrite=overwrite, advice="give --overwrite or another --out")


def said_of_rest(sources: Sources, tally: DetectionCounter) -> str:
    """What was not looked at, and why."""
    text = ""
    if sources.passed_over:
        text += f"; {counted(sources.passed_over, 'other file')} passed over"
    if tally.problems:
        text += f"; {tally.problems} could not be read, see above"
    return text
