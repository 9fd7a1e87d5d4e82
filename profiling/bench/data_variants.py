"""Who takes part: each decoder alone, with resizing, and in the whole pipeline; and MLPerf's.

TODO-DOC Which photos are read: a folder's, those of a configuration's training split, or drawn scenes.

TODO-DOC The image files that a benchmark reads.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from common.console import progress
from common.errors import InputError
from data.decoding import SUFFIXES
from data.synthetic import make_scenes
from profiling.bench.variant import Variant
from retinanet.config_file import configured_split, load_config

RECIPES = "data.bench.recipes"
MLPERF = "mlperf"


def contestants_of_a_core(
    decoders: Sequence[str], *, photos: Path, batch_size: int
) -> list[Variant]:
    """Those that run on one core, in the order of the table.

    Args:
        decoders: Those that work here, the fastest first.
        photos: The file that lists them.
        batch_size: Images joined into one batch.
    """
    listed = {"photos": str(photos)}
    batched = {**listed, "batch_size": str(batch_size)}
    alone = [
        Variant(
            name=f"{stage}-{decoder}",
            about=about,
            recipe=f"{RECIPES}.{stage}",
            options={**options, "decoder": decoder},
        )
        for stage, about, options in (
            ("decode", "files to uint8 arrays", listed),
            ("resize", "the same, and resized to uint8 squares", listed),
            ("pipeline", "training samples, joined and normalized", batched),
        )
        for decoder in decoders
    ]
    mlperf = Variant(
        name=MLPERF,
        about="Pillow, to float, normalized, resized, joined",
        recipe=f"{RECIPES}.mlperf",
        options=batched,
    )
    return [*alone, mlperf]


def loaders(decoder: str, *, photos: Path, batch_size: int, workers: int) -> list[Variant]:
    """Loaders with 1 to `workers` processes, on all cores."""
    options = {"photos": str(photos), "batch_size": str(batch_size), "decoder": decoder}
    return [
        Variant(
            name=f"loader-{count}",
            about="batches from worker processes, not normalized",
            recipe=f"{RECIPES}.loader",
            options={**options, "workers": str(count)},
        )
        for count in range(1, workers + 1)
    ]


STANDARD_SIZE = 800
"""MLPerf's, for which the target is. [pixels]"""


class Source(NamedTuple):
    """What is read, and to what size."""

    name: str
    """For people."""
    photos: list[Path]
    image_size: int
    is_drawn: bool


def find_source(
    scratch: Path,
    *,
    images: Path | None,
    config: str | None,
    overrides: Sequence[str],
    image_size: int | None,
    limit: int,
    console: Console,
) -> Source:
    """Find the photos.

    Args:
        scratch: A folder for drawn scenes.
        images: A folder; goes before `config`.
        config: A configuration whose training split is read.
        overrides: `section.field=value` on top of it.
        image_size: None takes the configuration's, else 800. [pixels]
        limit: No more images than this.
        console: Shows the progress of drawing.

    Raises:
        InputError: The configuration or the folder does not exist, or holds no image.
    """
    size = image_size or STANDARD_SIZE
    if images is not None:
        return Source(str(images), photos_in(images, limit=limit), size, is_drawn=False)
    if config is not None:
        settings = load_config(config, overrides).data
        size = image_size or settings.image_size
        if settings.scenes is None:
            folder = configured_split(settings, "train", root=settings.root).images
            return Source(str(folder), photos_in(folder, limit=limit), size, is_drawn=False)
    folder = draw(scratch, count=limit, console=console)
    return Source("drawn scenes", photos_in(folder, limit=limit), size, is_drawn=True)


def draw(scratch: Path, *, count: int, console: Console) -> Path:
    """Draw scenes and show the progress; returns the folder of their images."""
    with progress(console, "drawing scenes", total=count + 1) as advance:
        make_scenes(scratch / "scenes", seed=0, train=count, validation=1, advance=advance)
    return scratch / "scenes" / "train" / "data"


def photos_in(folder: Path, *, limit: int, option: str = "--images") -> list[Path]:
    """Up to `limit` images of a folder, spread evenly over its names in order; absolute paths.

    `option` is the one that names the folder, for messages.

    Raises:
        InputError: It is no folder, or it holds no image.
    """
    if not folder.is_dir():
        raise InputError(f"{option}: {folder} is not a folder; give one with images")
    photos = sorted(file for file in folder.resolve().iterdir() if file.suffix.lower() in SUFFIXES)
    if not photos:
        raise InputError(f"{option}: {folder} holds no {', '.join(SUFFIXES)}; give another folder")
    count = min(limit, len(photos))
    return [photos[place * len(photos) // count] for place in range(count)]


def write_list(photos: Sequence[Path], file: Path) -> None:
    """List photos in a file, for the processes of contestants."""
    file.write_text(json.dumps([str(photo) for photo in photos]), encoding="utf-8")


def read_list(file: str) -> list[Path]:
    """The photos of `write_list`."""
    return [Path(photo) for photo in json.loads(Path(file).read_text(encoding="utf-8"))]
