"""Who takes part: each decoder alone, with resizing, and in the whole pipeline; and MLPerf's."""

from collections.abc import Sequence
from pathlib import Path

from profiling.bench.contestant import Contestant

RECIPES = "data.bench.recipes"
MLPERF = "mlperf"


def contestants_of_a_core(
    decoders: Sequence[str], *, photos: Path, batch_size: int
) -> list[Contestant]:
    """Those that run on one core, in the order of the table.

    Args:
        decoders: Those that work here, the fastest first.
        photos: The file that lists them.
        batch_size: Images joined into one batch.
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
    return [*alone, mlperf]


def loaders(decoder: str, *, photos: Path, batch_size: int, workers: int) -> list[Contestant]:
    """Loaders with 1 to `workers` processes, on all cores."""
    options = {"photos": str(photos), "batch_size": str(batch_size), "decoder": decoder}
    return [
        Contestant(
            name=f"loader-{count}",
            about="batches from worker processes, not normalized",
            recipe=f"{RECIPES}.loader",
            options={**options, "workers": str(count)},
        )
        for count in range(1, workers + 1)
    ]
