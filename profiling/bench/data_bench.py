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

  retinanet data bench --images /data/coco/train2017
  retinanet data bench --config coco.yaml data.root=/data/coco --workers 4
  retinanet data bench                          synthetic images, if you have no photos
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from common.charts import Column, Table, text_column
from common.cli import add_command, positive
from common.console import make_console, print_line, progress
from common.errors import FINISHED, InputError
from common.files import write_json
from common.machine import environment
from common.options import json_option, option, overrides_argument
from common.walk import LeftOut, Reach, real_path
from data.decoding import DECODERS, SUFFIXES, decoder_fault, describe_decoder
from data.packed import list_images
from data.synthetic import make_synthetic_data
from profiling.bench.report import PIPE_WIDTH, findings_json, findings_table, variant_json
from profiling.bench.results import (
    Benchmark,
    Finding,
    Results,
    disturbance,
    measure,
    speed_ups,
)
from profiling.bench.variant import Variant, Workload
from retinanet.config_file import configured_split, load_config, side_of_square

RECIPES = "data.bench.recipes"
MLPERF = "mlperf"
STANDARD_SIZE = 800  # The size of MLPerf's images, for which the target is given. [pixels]
TARGET = 2.0
"""Times as many images a second of a core as MLPerf's recipe; for photos at 800×800 pixels."""
STRONG = "strong"  # The augmentation that costs most, and the beginning of its contestant's name
STEP_S, STEP_IMAGES = 3.72, 2
STEP = "a BF16 step of 2 images of 800×800 on 2 cores of an AMD EPYC (Zen 4): 3.72 s, docs/speed.md"
LARGEST_SHARE = 0.05
"""Of the time of a step, if the training process itself loads the images, on one core."""


@dataclass(frozen=True, kw_only=True)
class DataBenchOptions:
    """The options of `retinanet data bench`."""

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
        default=5,
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

        def measured(variants: Sequence[Variant]) -> Results:
            return measure(DATA, variants, workload, rounds, DATA.warm_up, console=console)

        results = measured(on_a_core)
        if options.workers:
            # Separately: the CPU time of their worker processes would count as background load.
            # Decoders are in order of their speed.
            about = "batches from worker processes, not normalized"
            reading = {"photos": str(photos), "batch_size": str(batch_size)}
            reading["decoder"] = next(iter(descriptions))
            loading = [
                Variant(f"loader-{count}", about, f"{RECIPES}.loader",
                        options={**reading, "workers": str(count)})
                for count in range(1, options.workers + 1)
            ]  # fmt: skip
            others = measured(loading)
            results = replace(
                results,
                variants=[*on_a_core, *loading],
                runs={**results.runs, **others.runs},
                facts={**results.facts, **others.facts},
            )
    content = as_json(results, source=source, decoders=descriptions, batch_size=batch_size)
    print_results(results, content, source=source)
    if options.json is not None:
        write_json(options.json, content)
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
        size = options.image_size or side_of_square(settings, who="this benchmark")
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
    folder = real_path(folder)
    reach = Reach.of(folder, allow_outside=True)  # photos are read, not copied
    names = list_images(folder, reach, LeftOut(), suffixes=SUFFIXES, depth=0)
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


def data_findings(results: Results) -> list[Finding]:
    """Compare each decoder's pipeline with MLPerf's recipe; the first one has the target.

    At the standard size, also the share of `STEP` in which one core loads its images, strongly
    augmented.
    """
    pipelines = [name for name in results.names if name.startswith("pipeline-")]
    targets = dict.fromkeys(pipelines[:1], TARGET)
    findings = speed_ups(results, [(name, MLPERF, targets.get(name)) for name in pipelines])
    for name in results.names:
        if name.startswith(f"{STRONG}-") and results.workload.image_size == STANDARD_SIZE:
            share = STEP_IMAGES * results.seconds(name) / results.workload.images / STEP_S
            what = f"{name}: share of a step"
            findings.append(Finding(what, share, f"{share:.1%}", at_most=LARGEST_SHARE))
    return findings


DATA = Benchmark(
    name="data",
    about="files to batches",
    variants=(),  # they depend on the options
    findings=data_findings,
    rounds=5,
    warm_up=1,
)

RATE_COLUMNS = (
    text_column("contestant"),
    Column("images/s", ".1f", name="images_per_s"),
    Column("lowest–highest"),
    Column("ms/image", ".2f"),
    Column("page faults/image", ",.0f"),
    Column("peak MB", ",.0f", name="peak_rss_mb"),
)


def as_json(
    results: Results, *, source: Source, decoders: Mapping[str, str], batch_size: int
) -> dict[str, Any]:
    """Return rates in images a second, seconds of whole runs, MB of 10⁶ bytes."""
    contestants, images = {}, len(source.photos)
    for variant in results.variants:
        name, stages = variant.name, {}
        if name == MLPERF or name.startswith(("pipeline-", f"{STRONG}-")):
            stages = results.details(name)  # of other variants it is no time
        rates = {
            "images_per_s": images / results.seconds(name),
            "images_per_s_of_runs": [images / run.seconds for run in results.runs[name]],
            "stages_ms": {stage: s / images * 1000 for stage, s in stages.items()},
        }
        contestants[name] = rates | variant_json(results, variant)
    return {
        "benchmark": "data",
        "source": source.name,
        "images": images,
        "image_size": source.image_size,
        "batch_size": batch_size,
        "decoders": dict(decoders),
        "environment": {**environment(), "cores_busy_otherwise": results.other_cores},
        "contestants": contestants,
        "findings": findings_json(data_findings(results)),
    }


def print_results(results: Results, content: Mapping[str, Any], *, source: Source) -> None:
    """Print all rates, the time of the pipelines' stages, and the comparisons.

    `content` is that of `as_json`.
    """
    console = make_console(pipe_width=PIPE_WIDTH)
    side, contestants = source.image_size, content["contestants"]
    rounds = len(results.runs[MLPERF])
    title = f"{content['images']} images of {source.name} to {side}×{side}; {rounds} rounds"
    print_line(console, title)
    rows, stages = [], []
    for name, numbers in contestants.items():
        rates, rate = numbers["images_per_s_of_runs"], numbers["images_per_s"]
        faults = numbers["page_faults"] / content["images"]
        shown = (name, rate, f"{min(rates):.1f}–{max(rates):.1f}", 1000 / rate, faults)
        rows.append((*shown, numbers["peak_rss_mb"]))
        if times := numbers["stages_ms"]:
            stages.append((name, ", ".join(f"{stage} {ms:.2f} ms" for stage, ms in times.items())))
    rates_table = Table("", RATE_COLUMNS, rows).for_console()
    kinds = [name.split("-", maxsplit=1)[0] for name in contestants]
    for row, kind, following in zip(rates_table.rows, kinds, kinds[1:], strict=False):
        row.end_section = kind != following
    console.print(rates_table)
    console.print("time per image by stage:")
    columns = (text_column("contestant"), text_column("stages"))
    console.print(Table("", columns, stages).for_console())
    print_line(console, f"decoders: {', '.join(content['decoders'].values())}")
    if source.is_synthetic:
        print_line(
            console,
            "synthetic images are smaller and simpler than photos; use --images DIR for photos",
        )
    if disturbed := disturbance(results.other_cores):
        print_line(console, disturbed)
    with_targets = side == STANDARD_SIZE and not source.is_synthetic
    findings = findings_table(data_findings(results), with_targets=with_targets)
    console.print(findings.for_console())
    if side == STANDARD_SIZE:
        print_line(console, f"share of a step: {STEP}")


add_data_bench = partial(
    add_command, name="bench", about=str(__doc__), options=DataBenchOptions, run=run
)
