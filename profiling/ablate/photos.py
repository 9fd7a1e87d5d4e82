"""The photos that decoders read."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from data.bench.photos import photos_in, read_list, write_list
from data.bench.source import draw
from profiling.ablate.plan import READS_PHOTOS, Plan
from profiling.bench.contestant import Contestant

COUNT = 128


@dataclass
class Photos:
    """Found, or drawn, when the first decoder asks for them."""

    folder: Path | None
    """Of a user's photos; None: drawn scenes."""
    scratch: Path
    """Where the list goes, and drawn scenes."""
    console: Console

    def listed(self) -> Path:
        """The file that lists them.

        Raises:
            InputError: The folder holds no image.
        """
        file = self.scratch / "photos.json"
        if not file.exists():
            folder = self.folder
            if folder is None:
                folder = draw(self.scratch / "drawn", count=COUNT, console=self.console)
            write_list(photos_in(folder, limit=COUNT, option="--photos"), file)
        return file

    def words(self) -> str:
        """How many they are, their size and a digest, which tells them from others anywhere.

        Raises:
            InputError: The folder holds no image.
        """
        contents = [photo.read_bytes() for photo in read_list(str(self.listed()))]
        digest = hashlib.sha256(b"".join(contents)).hexdigest()
        megabytes = sum(map(len, contents)) / 1e6
        what = "drawn scenes" if self.folder is None else "photos"
        return f"{len(contents)} {what}, {megabytes:.1f} MB, SHA-256 {digest[:12]}…"


def with_photos_told(plan: Plan, photos: Photos) -> Plan:
    """A plan that says what its decoders read; one without decoders as it is."""
    if not any(one.recipe.startswith(READS_PHOTOS) for one in plan.contestants.values()):
        return plan
    return replace(plan, photos=photos.words())


def with_photos(contestant: Contestant, photos: Photos) -> Contestant:
    """A contestant that reads photos, told where they are listed; others as they are."""
    if not contestant.recipe.startswith(READS_PHOTOS):
        return contestant
    return replace(contestant, options={**contestant.options, "photos": str(photos.listed())})
