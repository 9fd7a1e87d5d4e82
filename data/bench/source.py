"""Which photos are read: a folder's, those of a configuration's training split, or drawn scenes."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from data.bench.photos import photos_in
from data.scenes.drawing import make_scenes
from retinanet.config_file import load_config
from retinanet.configured_splits import configured_split
from retinanet.progress import progress

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
