"""Who takes part: each decoder alone, with resizing, and in the whole pipeline; and MLPerf's."""

from collections.abc import Sequence
from pathlib import Path

from profiling.bench.contestant import Contestant

RECIPES = "data.bench.recipes"
MLPERF = "mlperf"


def contestants(
    decoders: Sequence[str], *, photos: Path, batch_size: int, workers: int
) -> list[Contestant]:
    """All that take part, in the order of the table.

    Args:
        decoders: Those that work here, the fastest first.
        photos: The file that lists them.
        batch_size: Images joined into one batch.
        workers: Loaders with 1 to so many processes take part too.
    """
    listed = {"photos": str(photos)}
    batched = {**listed, "batch_size": str(batch_size)}
    alone = [
        Contestant(
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
    mlperf = Contestant(
        name=MLPERF,
        about="Pillow, to float, normalized, resized, joined",
        recipe=f"{RECIPES}.mlperf",
        options=batched,
    )
    loaders = [
        Contestant(
            name=f"loader-{count}",
            about=f"{count} worker processes on all cores, not normalized",
            recipe=f"{RECIPES}.loader",
            options={**batched, "decoder": decoders[0], "workers": str(count)},
        )
        for count in range(1, workers + 1)
    ]
    return [*alone, mlperf, *loaders]
