"""`retinanet predict`: detect objects in pictures and videos; draw boxes, write JSON.

Pictures are processed in batches: the next batch is decoded and the last one drawn in threads.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from common.console import Advance, make_console, print_line, progress
from common.errors import BAD_INPUT, FINISHED, INTERRUPTED, InputError, printable
from common.files import require_free
from common.machine import require_packages
from common.outputs import require_no_input
from common.wording import counted, listed
from data.parts import read_ahead
from retinanet.commands import PredictOptions
from retinanet.detector import THREADS, Detector, read_picture
from retinanet.evaluation.command import noted_precision
from retinanet.evaluation.output import Pixels, draw_detections, save_picture
from retinanet.predict.labels import Labels
from retinanet.predict.search import (
    DetectionCounter,
    Search,
    Source,
    StoppedError,
    box_file,
    find_sources,
    number_outputs,
)
from retinanet.predict.video import detect_in_video
from retinanet.training.signals import StopRequest

DEFAULT_OUT = Path("predictions")
FEW = 10  # Up to this number each picture gets a line; for more, the progress is shown


def predict(options: PredictOptions) -> int:
    """Detect a checkpoint's classes in pictures and videos.

    Return 2 if a picture or video could not be read, 130 if a signal came before the end. A photo
    is rotated by its EXIF orientation; `bbox` in the JSON is xywh in its pixels. Without `out`,
    drawn copies go to `predictions` and get a number instead of replacing files, so that the same
    command works twice.

    Raises:
        InputError: A file is missing, or an output exists or cannot be written.
    """
    folder, draws = options.out or DEFAULT_OUT, not (options.no_pictures or options.labels)
    tiling = options.tiles.tiling()
    sources = find_sources(options.pictures, out=folder, allow_outside=options.allow_outside)
    if options.out is None and draws and not options.overwrite:
        sources = number_outputs(sources)
    labels = Labels(options, sources) if options.labels else None
    if sources.videos:
        require_packages("av", purpose=str(sources.videos[0].file))
    json_files = [options.json] if options.json else []
    outputs = [*(each.drawn for each in sources.all if draws), *json_files]
    outputs += labels.files if labels else []
    require_free(outputs, overwrite=options.overwrite, advice="give --overwrite or another --out")
    console = make_console()
    precision = noted_precision(options.precision, console)
    detector = Detector.load(options.checkpoint, precision=precision)
    require_no_input(outputs, [*(each.file for each in sources.all), *detector.path.iterdir()])
    detector.require_classes(options.only or (), option="--class")
    for note in sources.left_out.notes():
        print_line(console, f"note: {note}")
    counter = DetectionCounter(make_console(stderr=True))
    with StopRequest() as stop, box_file(options.json) as add_boxes:
        search = Search(
            detector=detector,
            least_score=options.score,
            only=options.only,
            batch_size=options.batch_size,
            draws=draws,
            add_boxes=add_boxes,
            counter=counter,
            console=console,
            stop=stop,
            tiling=tiling,
        )
        detect_in_pictures(sources.pictures, search, labels)
        for video in sources.videos:
            if not stop.received:
                detect_in_video(video, search, every=options.every)
    written = ", ".join(map(str, [*([folder] if draws or labels else []), *json_files]))
    line = f"{counter.summary()} in {precision}" + (f" → {written}" if written else "")
    if others := sources.left_out.others:
        line += f"; {counted(others, 'other file')} skipped"
    if counter.problems:
        line += f"; {counter.problems} could not be read (see above)"
    console.print(line, soft_wrap=True)
    if labels is not None:
        labels.write(console)
    if stop.received:
        console.print(f"{stop.received}: stopped before the end; written files are complete")
        return INTERRUPTED
    return BAD_INPUT if counter.problems else FINISHED


def detect_in_pictures(pictures: Sequence[Source], search: Search, labels: Labels | None) -> None:
    """Detect objects in all pictures, or until a signal; print an error for unreadable pictures.

    Raises:
        InputError: An output cannot be written.
    """
    drawing: list[Future[None]] = []
    done = 0
    total = len(pictures)
    shown: AbstractContextManager[Advance] = nullcontext(lambda done, note: None)
    if total > FEW or search.tiling:
        shown = progress(search.console, "pictures", total=total)
    with ThreadPoolExecutor(THREADS) as pool, shown as advance:
        for batch in read_ahead(pictures, read, pool, batch_size=search.at_once):
            if search.stop.received:
                break
            readable = []
            for source, pixels in batch:
                if isinstance(pixels, InputError):
                    search.counter.problem(str(pixels))
                else:
                    readable.append((source, pixels))
            try:
                decoded = [pixels for _, pixels in readable]
                results = search.detect(decoded, partial(advance, done))
            except StoppedError:
                break
            # Drawings of the batch before: slow compression must not fill the memory.
            wait_for_drawings(drawing)
            for (source, pixels), detections in zip(readable, results, strict=True):
                records = search.record(source.file, detections)
                if labels is not None:
                    labels.add(source.file, (pixels.shape[1], pixels.shape[0]), detections)
                if search.draws:
                    drawn = draw_detections(
                        pixels, detections, names=search.detector.names, least_score=0
                    )
                    drawing.append(pool.submit(save_picture, drawn, source.drawn))
                if total <= FEW:
                    where = f" → {source.drawn}" if search.draws else ""
                    boxes = [(record["category"], record["score"]) for record in records]
                    line = printable(f"{source.file}{where}: {format_boxes(boxes)}")
                    search.console.print(line, soft_wrap=True)
            search.counter.pictures += len(readable)
            done += len(batch)
            advance(done, "")
        wait_for_drawings(drawing)


def read(source: Source) -> Pixels | InputError:
    """Return a picture, rotated by its EXIF orientation, or the error of an unreadable one."""
    try:
        return read_picture(source.file)
    except InputError as error:
        # Returned instead of raised: an unreadable picture must not end its batch.
        return error


def wait_for_drawings(drawing: list[Future[None]]) -> None:
    """Wait for drawn copies; raise InputError if one could not be written."""
    while drawing:
        drawing.pop().result()


def format_boxes(boxes: Sequence[tuple[str, float]]) -> str:
    """Return class and score of a picture's five best boxes on one line."""
    if not boxes:
        return "no boxes; a lower --score shows less certain ones"
    return listed((f"{printable(name)} {score:.2f}" for name, score in boxes), 5)
