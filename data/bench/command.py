"""Images a second of a core: each decoder, the whole pipeline, and MLPerf's recipe beside it.

Everybody reads the same photos, in a process of its own on one core and one thread, and they take
turns: when the machine is slower for a while it is so for all. Ratios are taken round by round, and
their median counts. Use a machine on which nothing else runs.

  decode-NAME    files to uint8 arrays by one decoder (data.decoder=NAME)
  resize-NAME    the same, and resized to uint8 squares
  pipeline-NAME  what training does: decoded, resized, mirrored, joined to a batch, normalized
  mlperf         what MLPerf's reference does: decoded by Pillow, to float, normalized, resized
  loader-N       batches from N worker processes on all cores (with --workers)

  python -m data bench --images /data/coco/train2017
  python -m data bench --config coco.yaml data.root=/data/coco --workers 4
  python -m data bench                          drawn scenes, where there are no photos at hand
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from data.bench.measuring import describe_decoders, measure_photos
from data.bench.report import as_json, print_results
from data.bench.source import STANDARD_SIZE, find_source
from profiling.bench.worker_process import WorkerDiedError
from retinanet.command_line import add_json_option, add_overrides, positive
from retinanet.errors import InputError
from retinanet.exit_codes import FINISHED
from retinanet.output_files import require_free_json, write_whole
from retinanet.terminal import make_console

WORKER_DIED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m data bench`."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--images", type=Path, metavar="DIR", help="read the images of a folder")
    source.add_argument(
        "--config", metavar="NAME", help="read the training images of a configuration"
    )
    add_overrides(parser)
    parser.add_argument(
        "--image-size",
        type=positive,
        metavar="N",
        help=f"side of the square in pixels (default: the configuration's, else {STANDARD_SIZE})",
    )
    parser.add_argument(
        "--decoders", metavar="A,B", help="only these (default: all that are installed)"
    )
    for name, default, what in (
        ("--limit", 128, "read so many images, spread evenly over the folder"),
        ("--batch-size", 8, "images joined into one batch"),
        ("--rounds", 5, "turns of everybody that count, after one that does not"),
    ):
        help_text = f"{what} (default: {default})"
        parser.add_argument(name, type=positive, default=default, metavar="N", help=help_text)
    parser.add_argument(
        "--workers",
        type=positive,
        default=0,
        metavar="N",
        help="also time loaders with 1 to N worker processes",
    )
    add_json_option(parser)


def run(
    images: Path | None,
    *,
    config: str | None,
    overrides: list[str],
    image_size: int | None,
    decoders: str | None,
    limit: int,
    batch_size: int,
    rounds: int,
    workers: int,
    json_file: Path | None,
) -> int:
    """Run the benchmark, print it and write it; returns the exit code.

    Raises:
        InputError: There are no such photos, or the file cannot be written.
    """
    if overrides and config is None:
        raise InputError(f"{overrides[0]}: changes a configuration; name one with --config")
    require_free_json(json_file)
    console = make_console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="data-bench-") as scratch:
        source = find_source(
            Path(scratch),
            images=images,
            config=config,
            overrides=overrides,
            image_size=image_size,
            limit=limit,
            console=console,
        )
        described = describe_decoders(decoders, console=console)
        try:
            results = measure_photos(
                source,
                list(described),
                batch_size=batch_size,
                rounds=rounds,
                workers=workers,
                scratch=Path(scratch),
                console=console,
            )
        except WorkerDiedError as error:
            print(f"error: {error}", file=sys.stderr)
            return WORKER_DIED
    print_results(results, source=source, decoders=described)
    if json_file is not None:
        content = as_json(results, source=source, decoders=described, batch_size=batch_size)
        write_whole(json_file, json.dumps(content, indent=1, ensure_ascii=False))
    return FINISHED
