"""Get COCO 2017 or OpenImages: annotations and images, over HTTPS, many images at a time.

Every file is checked before it gets its name: its length, and that an image decodes to its very
end. Call the same command again after an interruption: it goes on, and ends with the same files.
What could not be had is listed in DIR/missing.txt, and the exit status is 1.

  python -m data download coco --out /data/coco --splits validation --limit 500
  python -m data download openimages --out /data/openimages
  python -m data download openimages --out cats --classes Cat Dog --limit 2000

coco        118,287 + 5,000 images, 27 GB with the annotations. DIR/train2017/, DIR/val2017/,
            DIR/annotations/instances_train2017.json and instances_val2017.json. With --limit or
            --classes these JSON files hold the chosen images, and boxes of the chosen classes.
openimages  the images with a box of MLPerf's 264 classes: 1,170,301 + 24,781, 352 GB.
            DIR/train/data/, DIR/validation/data/, DIR/train/labels/openimages-mlperf.json and
            DIR/validation/labels/openimages-mlperf.json, OpenImages' tables in DIR/csv/.

A mirror is a server that holds, below its URL,
  coco        annotations/annotations_trainval2017.zip, train2017/NAME.jpg, val2017/NAME.jpg
  openimages  class-descriptions-boxable.csv, oidv6-train-annotations-bbox.csv,
              validation-annotations-bbox.csv, train/ID.jpg, validation/ID.jpg
"""

import shlex
import signal
import sys
from pathlib import Path

from data.download.coco import download_coco
from data.download.failures import FetchError, MissingFileError
from data.download.fetching import Patience
from data.download.folder import MISSING_LIST, one_download, write_missing_list
from data.download.images import Manners
from data.download.openimages import download_openimages
from data.download.options import add_arguments
from data.download.request import Request
from data.download.stopping import sigterm_interrupts
from data.sources import SplitName
from retinanet.command_line import installed
from retinanet.errors import InputError
from retinanet.exit_codes import FINISHED, INTERRUPTED, STOPPED_BY_SIGNAL
from retinanet.printable import printable
from retinanet.terminal import make_console

INCOMPLETE = 1
"""The exit status when files could not be had."""

DATASETS = {"coco": download_coco, "openimages": download_openimages}
DEFAULT_CLASSES = {"coco": "all", "openimages": "mlperf"}
CONFIGS = {"coco": "coco.yaml", "openimages": "openimages.yaml"}

__all__ = ["add_arguments", "run"]


def run(
    *,
    dataset: str,
    out: Path,
    splits: list[SplitName],
    limit: int | None,
    classes: list[str] | None,
    mirror: str | None,
    workers: int,
    attempts: int,
    pause: float,
    timeout: float,
) -> int:
    """Run the command; returns the exit code."""
    patience = Patience(attempts=attempts, first_pause=pause)
    request = Request(
        out=out,
        splits=tuple(dict.fromkeys(splits)),
        limit=limit,
        classes=tuple(classes or [DEFAULT_CLASSES[dataset]]),
        mirror=mirror,
        manners=Manners(workers=workers, timeout=timeout, patience=patience),
    )
    try:
        with sigterm_interrupts(), one_download(out):
            return download(dataset, request)
    except MissingFileError as error:
        hint = "; --help says what a mirror holds" if mirror else "; call again later"
        print(f"error: {error}{hint}", file=sys.stderr)
        return INCOMPLETE
    except FetchError as error:
        print(f"error: {error}; go on with: {this_command()}", file=sys.stderr)
        return INCOMPLETE
    except KeyboardInterrupt as interruption:
        print(f"stopped; what is there stays. Go on with: {this_command()}", file=sys.stderr)
        return STOPPED_BY_SIGNAL if interruption.args == (signal.SIGTERM,) else INTERRUPTED
    except OSError as error:
        raise InputError(
            f"{error.filename or out}: cannot be written: {error.strerror}; "
            f"mend it, then go on with: {this_command()}"
        ) from error


def download(dataset: str, request: Request) -> int:
    """Download, say what is missing and what to do next; returns the exit code."""
    console = make_console()
    failed = DATASETS[dataset](request, console)
    write_missing_list(request.out, failed)
    if failed:
        name, reason = next(iter(failed.items()))
        print(
            f"error: {len(failed)} images could not be had, such as {printable(name)}: {reason}; "
            f"they are listed in {request.out / MISSING_LIST}; try again with: {this_command()}",
            file=sys.stderr,
        )
        return INCOMPLETE
    print(f"complete: {request.out}\nnext:")
    for command in next_commands(dataset, request):
        print(f"  {command}")
    return FINISHED


def next_commands(dataset: str, request: Request) -> list[str]:
    """What to do with the data set: check it, and train on it if both splits are there."""
    data = f"--config {CONFIGS[dataset]} data.root={shlex.quote(str(request.out))}"
    verify = f"{installed('python')} -m data verify {data}"
    if len(request.splits) == 1:
        return [f"{verify} --split {request.splits[0]}"]
    return [verify, f"{installed('python')} train.py {data}"]


def this_command() -> str:
    """The command that this process runs, to be typed again."""
    return shlex.join([installed("python"), "-m", "data", *sys.argv[1:]])
