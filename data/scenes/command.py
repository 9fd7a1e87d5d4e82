"""Draw scenes in place of photos, with their boxes in COCO's JSON.

For trying things out where no labelled photos are at hand: a folder as a labelling tool exports it,
DIR/images and DIR/annotations/instances_default.json. Six classes, with names of OpenImages'.

  python -m data scenes --out my-photos
  python -m data scenes --out my-photos --images 1000 --seed 7
"""

import argparse
import shutil
from pathlib import Path

from data.scenes.drawing import write_scenes
from retinanet.command_line import positive
from retinanet.errors import InputError
from retinanet.progress import progress
from retinanet.terminal import make_console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m data scenes`."""
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder to make; not there yet"
    )
    parser.add_argument(
        "--images", type=positive, default=300, metavar="N", help="scenes to draw (default: 300)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="another one draws others (default: 0)"
    )


def run(out: Path, *, images: int, seed: int) -> int:
    """Draw them, all or none; returns the exit code.

    Raises:
        InputError: The folder is there already, or cannot be written.
    """
    if out.exists() or out.is_symlink():
        raise InputError(f"--out: {out} exists; name a folder that is not there yet")
    console = make_console()
    partial = out.with_name(f".{out.name}.partial")
    labels = Path("annotations") / "instances_default.json"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        (partial / "images").mkdir(parents=True)
        (partial / labels.parent).mkdir()
        with progress(console, "drawing scenes", total=images) as advance:
            write_scenes(
                partial / "images",
                partial / labels,
                name="photo",
                seed=seed,
                count=images,
                advance=advance,
            )
        partial.rename(out)
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    console.print(f"{images:,} images in {out / 'images'}, their boxes in {out / labels}")
    return 0
