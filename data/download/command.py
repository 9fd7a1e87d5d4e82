"""Download COCO 2017 or OpenImages: annotations and images, over HTTPS, many images at a time.

Every file is checked before it gets its final name: its length, and that an image can be decoded
completely. After an interruption, run the same command again: it continues and ends with the same
files. Images that could not be downloaded are listed in DIR/missing.txt; the exit status is then 1.

  retinanet data download coco --out /data/coco --splits validation --limit 500
  retinanet data download openimages --out /data/openimages
  retinanet data download openimages --out cats --classes Cat Dog --limit 2000

coco        118,287 + 5,000 images, 27 GB with the annotations. DIR/train2017/, DIR/val2017/,
            DIR/annotations/instances_train2017.json and instances_val2017.json. With --limit or
            --classes these JSON files contain the selected images and boxes.
openimages  the images with a box of MLPerf's 264 classes: 1,170,301 + 24,781, 352 GB.
            DIR/train/data/, DIR/validation/data/, DIR/train/labels/openimages-mlperf.json and
            DIR/validation/labels/openimages-mlperf.json, OpenImages' tables in DIR/csv/.

A mirror is a server with these files below its URL:
  coco        annotations/annotations_trainval2017.zip, train2017/NAME.jpg, val2017/NAME.jpg
  openimages  class-descriptions-boxable.csv, oidv6-train-annotations-bbox.csv,
              validation-annotations-bbox.csv, train/ID.jpg, validation/ID.jpg
"""

import argparse
import shlex
import signal
import sys
from dataclasses import replace

from common.cli import add_command, installed_command
from common.console import make_console
from common.errors import FINISHED, INTERRUPTED, STOPPED_BY_SIGNAL, InputError, printable
from common.locks import locked_folder
from data.download.datasets import download_coco, download_openimages
from data.download.http import FetchError, MissingFileError
from data.download.images import MISSING_LIST, DownloadOptions, write_missing_list

INCOMPLETE = 1  # the exit status when files could not be downloaded


def run(options: DownloadOptions) -> int:
    """Run `download` and return the exit code."""
    dataset, out, mirror = options.dataset, options.out, options.mirror
    splits = list(dict.fromkeys(options.splits))
    classes = options.classes or ["all" if dataset == "coco" else "mlperf"]
    request = replace(options, splits=splits, classes=classes)
    words = sys.argv[1:]
    words = words[1:] if words[:1] == ["data"] else words  # `retinanet data download …`
    this_command = shlex.join([*installed_command("data"), *words])
    try:
        with locked_folder(out):
            return download(request, this_command=this_command)
    except MissingFileError as error:
        hint = "; see --help for the files of a mirror" if mirror else "; try again later"
        print(f"error: {error}{hint}", file=sys.stderr)
        return INCOMPLETE
    except FetchError as error:
        print(f"error: {error}; continue with: {this_command}", file=sys.stderr)
        return INCOMPLETE
    except KeyboardInterrupt as interruption:
        print(f"stopped; downloaded files are kept; continue with: {this_command}", file=sys.stderr)
        return STOPPED_BY_SIGNAL if interruption.args == (signal.SIGTERM,) else INTERRUPTED
    except OSError as error:
        raise InputError(
            f"{error.filename or out}: cannot be written: {error.strerror}; "
            f"fix this, then continue with: {this_command}"
        ) from error


def download(request: DownloadOptions, *, this_command: str) -> int:
    """Download, print what is missing and what to do next, and return the exit code."""
    dataset = request.dataset
    fetch = download_coco if dataset == "coco" else download_openimages
    failed = fetch(request, make_console())
    write_missing_list(request.out, failed)
    if failed:
        name, reason = next(iter(failed.items()))
        print(
            f"error: {len(failed)} images could not be downloaded, such as {printable(name)}: "
            f"{reason}; all are listed in {request.out / MISSING_LIST}; retry with: {this_command}",
            file=sys.stderr,
        )
        return INCOMPLETE
    data = f"--config {dataset}.yaml data.root={shlex.quote(str(request.out))}"
    verify = f"{shlex.join(installed_command('data'))} verify {data}"
    print(f"complete: {request.out}\nnext:")
    if len(request.splits) == 1:
        print(f"  {verify} --split {request.splits[0]}")
    else:
        print(f"  {verify}\n  {shlex.join(installed_command('train'))} {data}")
    return FINISHED


def add_download(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `download`."""
    add_command(commands, "download", about=__doc__ or "", options=DownloadOptions, run=run)
