"""Measure images per second on one core: decoders, the whole pipeline, and MLPerf's pipeline.

All contestants read the same photos, each in its own process on one core with one thread. They run
in turn, so that a temporary slowdown of the machine affects all of them. Ratios are computed in
each round, and the median is reported. Run it on an otherwise idle machine.

  decode-NAME    decode files to uint8 arrays with one decoder (data.decoder=NAME)
  resize-NAME    decode, then resize to uint8 squares
  pipeline-NAME  as in training: decode, resize, mirror, collate, normalize
  strong-NAME    the same with data.augmentation=strong, by the fastest decoder
  mlperf         as in MLPerf's reference: decode by Pillow, convert to float, normalize, resize
  loader-N       batches from N worker processes on all cores (with --workers)

  python -m data bench --images /data/coco/train2017
  python -m data bench --config coco.yaml data.root=/data/coco --workers 4
  python -m data bench                          synthetic images, if you have no photos
"""

import argparse
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from rich import table as rich_table
from rich.console import Console

from common.charts import Table, text_column
from common.cli import add_command, positive
from common.console import make_console, progress
from common.errors import FINISHED, InputError
from common.files import write_atomically, write_json
from common.machine import environment
from common.options import json_option, option, overrides_argument
from common.walk import LeftOut, Reach, walk_files
from data.decoding import DECODERS, SUFFIXES, decoder_fault, describe_decoder
from data.synthetic import make_synthetic_data
from profiling.bench.report import PIPE_WIDTH, findings_json, findings_table, variant_json
from profiling.bench.results import (
    Benchmark,
    Finding,
    Results,
    disturbance,
    measure,
    speed_up,
)
from profiling.bench.variant import Variant, Workload
from retinanet.config_file import configured_split, load_config

RECIPES = "data.bench.recipes"
MLPERF = "mlperf"
STANDARD_SIZE = 800  # The size of MLPerf's images, for which the target is given. [pixels]
TARGET = 2.0
"""Times as many images a second of a core as MLPerf's recipe; for photos at 800×800 pixels."""
ROUNDS = 5
STRONG = "strong"  # The augmentation that costs most, and the beginning of its contestant's name
STEP_S, STEP_IMAGES = 3.72, 2
STEP = "a BF16 step of 2 images of 800×800 on 2 cores of an AMD EPYC (Zen 4): 3.72 s, docs/speed.md"
LARGEST_SHARE = 0.05
"""Of the time of a step, if the training process itself loads the images, on one core."""


@dataclass(frozen=True, kw_only=True)
class DataBenchOptions:
    """The options of `python -m data bench`."""

    images: Path | None = option(
        "read the images of a folder", default=None, metavar="DIR", exclusive="source"
    )
    config: str | None = option(
        "read the training images of a configuration",
        default=None,
        metavar="NAME",
        exclusive="source",
    )
    overrides: list[str] = overrides_argument()
    image_size: int | None = option(
        f"side of the square in pixels (default: the configuration's, else {STANDARD_SIZE})",
        default=None,
        parse=positive,
        metavar="N",
    )
    decoders: str | None = option(
        "decoders to measure (default: all installed)", default=None, metavar="A,B"
    )
    limit: int = option(
        "number of images to read, spread evenly over the folder",
        default=128,
        parse=positive,
        metavar="N",
    )
    batch_size: int = option("images per batch", default=8, parse=positive, metavar="N")
    rounds: int = option(
        "measured runs of each contestant, after one warm-up run",
        default=ROUNDS,
        parse=positive,
        metavar="N",
    )
    workers: int | None = option(
        "also measure loaders with 1 to N worker processes",
        default=None,
        parse=positive,
        metavar="N",
    )
    json: Path | None = json_option()


def add_data_bench(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `bench`."""
    add_command(commands, "bench", about=str(__doc__), options=DataBenchOptions, run=run)


def run(options: DataBenchOptions) -> int:
    """Run the benchmark, print it and write it; return the exit code."""
    if options.overrides and options.config is None:
        raise InputError(f"{options.overrides[0]}: changes a configuration; name one with --config")
    batch_size, rounds = options.batch_size, options.rounds
    console = make_console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="data-bench-") as scratch:
        source = find_source(Path(scratch), options, console=console)
        descriptions = describe_decoders(options.decoders, console=console)
        photos = Path(scratch, "photos.json")
        write_list(source.photos, photos)
        workload = Workload(images=len(source.photos), image_size=source.image_size)
        on_a_core = variants_of_a_core(list(descriptions), photos=photos, batch_size=batch_size)
        results = measure(DATA, on_a_core, workload, rounds, DATA.warm_up, console=console)
        if options.workers:
            # Separately: the CPU time of their worker processes would count as background load.
            # Decoders are in order of their speed.
            fastest, workers = next(iter(descriptions)), options.workers
            loading = loaders(fastest, photos=photos, batch_size=batch_size, workers=workers)
            others = measure(DATA, loading, workload, rounds, DATA.warm_up, console=console)
            results = replace(
                results,
                variants=[*on_a_core, *loading],
                runs={**results.runs, **others.runs},
                facts={**results.facts, **others.facts},
            )
    print_results(results, source=source, decoders=descriptions)
    if options.json is not None:
        text = as_json(results, source=source, decoders=descriptions, batch_size=batch_size)
        write_atomically(options.json, text)
    return FINISHED


class Source(NamedTuple):
    """The photos to read, and the target size."""

    name: str
    photos: list[Path]
    image_size: int
    is_synthetic: bool


def find_source(scratch: Path, options: DataBenchOptions, *, console: Console) -> Source:
    """Return the photos of a folder, else of a configuration, else synthetic ones in `scratch`."""
    size, limit = options.image_size or STANDARD_SIZE, options.limit
    if options.images is not None:
        photos = photos_in(options.images, limit=limit)
        return Source(str(options.images), photos, size, is_synthetic=False)
    if options.config is not None:
        settings = load_config(options.config, options.overrides).data
        size = options.image_size or settings.image_size
        if settings.scenes is None:
            folder = configured_split(settings, "train", root=settings.root).images
            return Source(str(folder), photos_in(folder, limit=limit), size, is_synthetic=False)
    # Also for a configuration with synthetic data, which has no folder of images yet.
    folder = draw(scratch, count=limit, console=console)
    return Source("synthetic images", photos_in(folder, limit=limit), size, is_synthetic=True)


def draw(scratch: Path, *, count: int, console: Console) -> Path:
    """Draw synthetic images and show the progress; return their folder."""
    with progress(console, "generating images", total=count + 1) as advance:
        make_synthetic_data(scratch / "scenes", seed=0, train=count, validation=1, advance=advance)
    return scratch / "scenes" / "train" / "data"


def photos_in(folder: Path, *, limit: int, option: str = "--images") -> list[Path]:
    """Return absolute paths of up to `limit` images of a folder, spread evenly over its names.

    `option` is the one that names the folder, for messages.

    Raises:
        InputError: It is no folder, or it holds no image.
    """
    if not folder.is_dir():
        raise InputError(f"{option}: {folder} is not a folder; give a folder with images")
    folder = folder.resolve()
    reach = Reach.of(folder, allow_outside=True)  # photos are read, not copied
    names = walk_files(folder, reach, LeftOut(), suffixes=SUFFIXES, depth=0)
    photos = [folder / name for name in names]
    if not photos:
        raise InputError(
            f"{option}: {folder} has no {', '.join(SUFFIXES)} files; give another folder"
        )
    count = min(limit, len(photos))
    return [photos[place * len(photos) // count] for place in range(count)]


def write_list(photos: Sequence[Path], file: Path) -> None:
    """List photos in a file, for the processes of variants."""
    write_json(file, list(map(str, photos)))


def read_list(file: str) -> list[Path]:
    """Return the photos of `write_list`."""
    return list(map(Path, json.loads(Path(file).read_text(encoding="utf-8"))))


def describe_decoders(chosen: str | None, *, console: Console) -> dict[str, str]:
    """Return decoders with versions: the chosen, or all that work here; print why others do not."""
    descriptions = {}
    for name in DECODERS if chosen is None else chosen.split(","):
        if name not in DECODERS:
            raise InputError(
                f"--decoders: unknown decoder {name!r}; choose from {', '.join(DECODERS)}"
            )
        fault = decoder_fault(name)
        if fault is None:
            descriptions[name] = describe_decoder(name)
        elif chosen is None:
            console.print(f"{name} is skipped: it {fault}", soft_wrap=True)
        else:
            raise InputError(f"--decoders: {name} {fault}; or remove it from the list")
    return descriptions


def variants_of_a_core(decoders: Sequence[str], *, photos: Path, batch_size: int) -> list[Variant]:
    """Return the variants that run on one core, in the order of the table.

    `photos` is the file that lists the photos.
    """
    options = {"photos": str(photos)}
    batched = {**options, "batch_size": str(batch_size)}
    stages = (
        ("decode", "decode to uint8 arrays", options),
        ("resize", "decode, then resize to uint8 squares", options),
        ("pipeline", "training samples, collated and normalized", batched),
    )
    augmented = Variant(
        f"{STRONG}-{decoders[0]}",
        f"the pipeline with data.augmentation={STRONG}",
        f"{RECIPES}.pipeline",
        options={**batched, "decoder": decoders[0], "augmentation": STRONG},
    )
    variants = [
        Variant(
            f"{stage}-{decoder}",
            about,
            f"{RECIPES}.{stage}",
            options={**stage_options, "decoder": decoder},
        )
        for stage, about, stage_options in stages
        for decoder in decoders
    ]
    about = "Pillow, converted to float, normalized, resized, collated"
    return [*variants, augmented, Variant(MLPERF, about, f"{RECIPES}.mlperf", options=batched)]


def loaders(decoder: str, *, photos: Path, batch_size: int, workers: int) -> list[Variant]:
    """Return loaders with 1 to `workers` processes, on all cores."""
    about = "batches from worker processes, not normalized"
    options = {"photos": str(photos), "batch_size": str(batch_size), "decoder": decoder}
    return [
        Variant(
            f"loader-{count}",
            about,
            f"{RECIPES}.loader",
            options={**options, "workers": str(count)},
        )
        for count in range(1, workers + 1)
    ]


def keep_to_one_core() -> None:
    """Bind this process and its future threads to the last of its allowed cores.

    The last, because a machine's first core answers most of its interrupts.
    """
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def compare_with_mlperf(results: Results) -> list[Finding]:
    """Compare the pipeline of each decoder with MLPerf's recipe; the first one has the target."""
    pipelines = [name for name in results.names if name.startswith("pipeline-")]
    return [
        finding
        for place, name in enumerate(pipelines)
        for finding in speed_up(results, name, MLPERF, at_least=TARGET if place == 0 else None)
    ]


def share_of_a_step(results: Results) -> list[Finding]:
    """Return the share of `STEP` in which one core loads its images, strongly augmented."""
    return [
        Finding(
            f"{name}: share of a step",
            share := STEP_IMAGES / median_rate(results, name) / STEP_S,
            f"{share:.1%}",
            at_most=LARGEST_SHARE,
        )
        for name in results.names
        if name.startswith(f"{STRONG}-")
    ]


DATA = Benchmark(
    name="data",
    about="files to batches",
    variants=(),  # they depend on the options
    findings=compare_with_mlperf,
    rounds=ROUNDS,
    warm_up=1,
)


def print_results(results: Results, *, source: Source, decoders: Mapping[str, str]) -> None:
    """Print all rates, the time of the pipelines' stages, and the comparisons."""
    console = make_console(pipe_width=PIPE_WIDTH)
    side = source.image_size
    rounds = len(results.runs[MLPERF])
    title = f"{len(source.photos)} images of {source.name} to {side}×{side}; {rounds} rounds"
    console.print(title, soft_wrap=True)
    console.print(rates_table(results))
    console.print("time per image by stage:")
    stages = [(name, stage_milliseconds(results, name)) for name in results.names]
    rows = [
        (name, ", ".join(f"{stage} {ms:.2f} ms" for stage, ms in times.items()))
        for name, times in stages
        if times
    ]
    table = Table("", (text_column("contestant"), text_column("stages")), rows)
    console.print(table.for_console())
    console.print(f"decoders: {', '.join(decoders.values())}", soft_wrap=True)
    if source.is_synthetic:
        console.print(
            "synthetic images are smaller and simpler than photos; use --images DIR for photos",
            soft_wrap=True,
        )
    if disturbed := disturbance(results.other_cores):
        console.print(disturbed, soft_wrap=True)
    with_targets = side == STANDARD_SIZE and not source.is_synthetic
    findings = findings_table(all_findings(results, side=side), with_targets=with_targets)
    console.print(findings.for_console())
    if side == STANDARD_SIZE:
        console.print(f"share of a step: {STEP}", soft_wrap=True)


def all_findings(results: Results, *, side: int) -> list[Finding]:
    """Return the comparisons, and at the standard size the share of a step."""
    shares = share_of_a_step(results) if side == STANDARD_SIZE else []
    return [*compare_with_mlperf(results), *shares]


def rates_table(results: Results) -> rich_table.Table:
    """Return images a second by variant; of one core but for loaders."""
    table = rich_table.Table()
    table.add_column("contestant")
    headings = ("images/s", "lowest–highest", "ms/image", "page faults/image", "peak MB")
    for heading in headings:
        table.add_column(heading, justify="right")
    for _, kind in groupby(results.names, key=lambda name: name.split("-", maxsplit=1)[0]):
        for name in kind:
            rates, rate = image_rates(results, name), median_rate(results, name)
            table.add_row(
                name,
                f"{rate:.1f}",
                f"{min(rates):.1f}–{max(rates):.1f}",
                f"{1000 / rate:.2f}",
                f"{results.page_faults(name) / results.workload.images:,.0f}",
                f"{results.peak_mb(name):,.0f}",
            )
        table.add_section()
    return table


def stage_milliseconds(results: Results, name: str) -> dict[str, float]:
    """Return the time of an image by stage; empty for variants of one stage."""
    if name != MLPERF and not name.startswith(("pipeline-", f"{STRONG}-")):
        return {}
    details = results.details(name)
    return {stage: s / results.workload.images * 1000 for stage, s in details.items()}


def image_rates(results: Results, name: str) -> list[float]:
    """Return images a second in every round."""
    return [results.workload.images / run.seconds for run in results.runs[name]]


def median_rate(results: Results, name: str) -> float:
    """Return images a second in the median round."""
    return results.workload.images / results.seconds(name)


def as_json(
    results: Results, *, source: Source, decoders: Mapping[str, str], batch_size: int
) -> str:
    """Return rates in images a second, seconds of whole runs, MB of 10⁶ bytes."""
    contestants = {}
    for variant in results.variants:
        name = variant.name
        rates = {
            "images_per_s": median_rate(results, name),
            "images_per_s_of_runs": image_rates(results, name),
            "stages_ms": stage_milliseconds(results, name),
        }
        contestants[name] = rates | variant_json(results, variant)
    content = {
        "benchmark": "data",
        "source": source.name,
        "images": len(source.photos),
        "image_size": source.image_size,
        "batch_size": batch_size,
        "decoders": dict(decoders),
        "environment": {**environment(), "cores_busy_otherwise": results.other_cores},
        "contestants": contestants,
        "findings": findings_json(all_findings(results, side=source.image_size)),
    }
    return json.dumps(content, indent=1, ensure_ascii=False)
