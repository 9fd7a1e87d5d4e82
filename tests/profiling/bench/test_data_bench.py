"""`retinanet data bench`: photos, decoders, recipes and the whole command."""

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from common.errors import InputError
from data.__main__ import main
from data.dataset import SampleKey
from data.transforms import IMAGENET_STD
from profiling.bench.data_bench import (
    DataBenchOptions,
    Source,
    data_findings,
    describe_decoders,
    find_source,
    photos_in,
)
from profiling.bench.recipes import images
from profiling.bench.recipes.images import Stopwatch
from profiling.bench.results import Results
from profiling.bench.variant import Run, Variant, Workload
from tests.support.commands import RunHere, error_line, error_message

QUIET = Console(quiet=True)


def make_folder(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        Image.new("RGB", (8, 8)).save(folder / name)
    return folder


def find(scratch: Path, *overrides: str, **options: Any) -> Source:
    given = DataBenchOptions(overrides=list(overrides), limit=3, **options)
    return find_source(scratch, given, console=QUIET)


def test_limit_selects_images_from_the_whole_folder(tmp_path: Path) -> None:
    names = [*(f"{number:02}.png" for number in range(18)), "a.JPG", "b.webp"]
    folder = make_folder(tmp_path / "photos", *names)
    (folder / "notes.txt").write_text("no image")
    os.mkfifo(folder / "pipe.jpg")  # nobody writes to it
    assert [photo.name for photo in photos_in(folder, limit=4)] == names[::5]
    assert [photo.name for photo in photos_in(folder, limit=100)] == names
    for wrong in (tmp_path / "none", make_folder(tmp_path / "empty")):
        assert error_message(photos_in, wrong, limit=1).startswith(f"--images: {wrong} ")


def test_configuration_gives_images_and_size(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "photos", "a.png")
    annotations = tmp_path / "train.json"
    annotations.write_text(json.dumps({}))
    overrides = (f"data.train_images={folder}", f"data.train_annotations={annotations}")
    source = find(tmp_path, *overrides, "data.image_size=320", config="coco.yaml")
    assert source.photos == [folder.resolve() / "a.png"]
    assert source.image_size == 320 and not source.is_synthetic
    assert find(tmp_path, *overrides, config="coco.yaml", image_size=64).image_size == 64


@pytest.mark.slow
def test_synthetic_images_without_photos(tmp_path: Path) -> None:
    source = find(tmp_path)
    assert source.is_synthetic and source.image_size == 800
    assert len(source.photos) == 3 and all(photo.is_file() for photo in source.photos)
    demo = find(tmp_path, config="demo.yaml")
    assert demo.is_synthetic and demo.image_size < 800


def test_missing_decoders_are_skipped_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("simplejpeg", "accimage"):
        monkeypatch.setitem(sys.modules, name, None)
    output = io.StringIO()
    descriptions = describe_decoders(None, console=Console(file=output, width=40))
    assert list(descriptions) == ["torchvision", "pillow"]
    names = [line.split()[0] for line in output.getvalue().splitlines()]
    assert names == ["simplejpeg", "accimage"]
    with pytest.raises(InputError, match="--decoders: simplejpeg is not installed"):
        describe_decoders("pillow,simplejpeg", console=QUIET)
    assert list(describe_decoders("pillow,torchvision", console=QUIET)) == ["pillow", "torchvision"]


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Four photos of different sizes and modes, none symmetric."""
    paths = []
    for number, (height, width) in enumerate([(60, 90), (90, 60), (64, 64), (30, 120)]):
        rows, columns = np.mgrid[:height, :width]
        ramp = np.dstack([columns * 2, rows + columns, 255 - columns]).clip(0, 255)
        image = Image.fromarray(ramp.astype(np.uint8))
        path = tmp_path / "photos" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        (image.convert("L") if number == 2 else image).save(path)
        paths.append(path)
    return paths


@pytest.mark.parametrize("decoder", ["simplejpeg", "torchvision", "pillow"])
def test_both_pipelines_make_the_same_batch_up_to_rounding(
    photos: list[Path], decoder: str
) -> None:
    seeds = range(4)
    mirrored = [np.random.default_rng(seed).random() < 0.5 for seed in seeds]
    assert set(mirrored) == {True, False}
    dataset = images.photo_dataset(photos, image_size=96, decoder=decoder)
    keys = [SampleKey(index, seed=index) for index in seeds]
    ours, theirs = Stopwatch(), Stopwatch()
    batch = images.make_batch(dataset, keys, stopwatch=ours)
    expected = images.make_mlperf_batch(photos, first_seed=0, image_size=96, stopwatch=theirs)
    assert batch.shape == expected.shape == (4, 3, 96, 96)
    assert batch.dtype == expected.dtype == torch.float32
    level = 1 / (255 * min(IMAGENET_STD))
    assert (batch - expected).abs().max() <= 1.5 * level
    assert min(*ours.seconds.values(), *theirs.seconds.values()) > 0


def test_share_of_a_step_is_that_of_one_core_between_two_steps() -> None:
    runs = [Run(seconds=0.2, page_faults=0, rss_mb=1.0, peak_rss_mb=1.0, details={})]
    for size, shares in ((800, ["1.1%"]), (64, [])):
        measured = Results(
            workload=Workload(images=10, image_size=size),
            variants=[Variant("strong-a", "", "")],
            runs={"strong-a": runs},
        )
        # 20 ms an image: 40 ms before a step of 3.72 s
        assert [finding.shown for finding in data_findings(measured)] == shares


@pytest.mark.exhaustive
def test_all_variants_are_measured_printed_and_written(
    run_here: RunHere, photos: list[Path], tmp_path: Path
) -> None:
    file = tmp_path / "numbers.json"
    sizes = ("--image-size=64", "--rounds=2", "--limit=4", "--batch-size=3", "--workers=1")
    options = (f"--images={photos[0].parent}", "--decoders=pillow", f"--json={file}")
    done = run_here(main, "bench", *options, *sizes)
    assert done.returncode == 0, done.stderr
    assert "4 images of" in done.stdout and "64×64; 2 rounds" in done.stdout
    assert "pipeline-pillow against mlperf" in done.stdout
    assert "at least 2" not in done.stdout  # the target is for 800×800
    content = json.loads(file.read_text())
    assert list(content["decoders"]) == ["pillow"]
    variants = content["contestants"]
    stages = ("decode-pillow", "resize-pillow", "pipeline-pillow")
    assert list(variants) == [*stages, "strong-pillow", "mlperf", "loader-1"]
    assert "share of a step" not in done.stdout
    for variant in variants.values():
        for seconds, rate in zip(variant["runs_s"], variant["images_per_s_of_runs"], strict=True):
            assert rate == pytest.approx(4 / seconds)
        assert len(variant["runs_s"]) == 2
    assert variants["loader-1"]["details"]["images"] == 4
    stages = variants["mlperf"]["stages_ms"]
    whole = 1000 / variants["mlperf"]["images_per_s"]
    assert sum(stages.values()) == pytest.approx(whole, rel=0.5)
    assert content["findings"][0]["target"] == "at least 2"
    assert content["environment"]["cores"] == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--images=docs/images", "--decoders=opencv"], "--decoders: unknown decoder 'opencv'"),
        (["--images=none"], "--images: none is not a folder"),
        (["data.root=x"], "data.root=x: changes a configuration; name one with --config"),
        (["--config=coco.yaml", "data.root=none"], "data.root: none is not a folder"),
        (["--json=README.md"], "README.md: exists"),
    ],
)
def test_wrong_arguments_are_one_line(arguments: list[str], error: str, run_here: RunHere) -> None:
    assert error_line(run_here(main, "bench", *arguments)).startswith(f"error: {error}")
