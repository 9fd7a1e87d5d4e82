"""The files that the pages' commands name: small data sets, runs, logs and measurements.

Each has the path by which commands name it. It is made when a command first names it, once per
process, and copied into the folder of each command that names it.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from torchvision.models import resnext50_32x4d

from data.annotations import TextColumn
from data.synthetic import make_synthetic_data
from profiling.peaks import Peaks, save
from profiling.studies.rounds import Shape
from profiling.studies.tune.measurements import HostPeaks, write_measurements
from profiling.studies.tune.model import StepTime
from retinanet.model.retinanet import RetinaNet
from tests.data.download.samples import openimages
from tests.data.formats.written import (
    random_annotations,
    write_data_yaml,
    write_photos,
    write_voc,
    write_yolo,
)
from tests.docs.pages import REPOSITORY, python_programs
from tests.docs.rules import (
    BACKBONE,
    CONVERTED,
    COPIED,
    LOGGED,
    NAMED_BY,
    OWN_PHOTOS,
    PATCH,
    QUICK_REPLAY,
    SCENES,
    SMALL,
)
from tests.docs.runner import run_by_bash, run_in_process
from tests.launch.topologies import TWO_SOCKETS
from tests.profiling.studies.tune.samples import STEP, measurements, probes
from tests.retinanet.predict.test_video import write_video
from tests.support.mlperf_runs import closed_config, write_run

PHOTOS_EXAMPLE = REPOSITORY / "docs" / "examples" / "photos"
LARGE = 1_000_000  # Bytes; larger files are linked, not copied: commands never change them in place

CODE = (
    *("common", "configs", "data", "docs", "launch", "profiling", "retinanet", "tests"),
    *("train.py", "setup.sh", "Makefile", "pyproject.toml", ".ci", ".pre-commit-config.yaml"),
)
"""The content of a user's checkout."""

Make = Callable[[Path, Path], None]
"""Makes a path, given the folder of all that was made."""


def checkout(folder: Path) -> None:
    """Link the repository's content into a folder in which a command may write."""
    for name in CODE:
        (folder / name).symlink_to(REPOSITORY / name)
    (folder / ".venv").symlink_to(sys.prefix)


def put_in_place(name: str, made: Path, folder: Path) -> None:
    """Copy a file or folder into a command's folder; make it first if no command named it yet."""
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    copy(make_once(name, made), target)


def make_once(name: str, made: Path) -> Path:
    """Return the path within `made`; make it if it does not exist."""
    path = made / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        FIXTURES[name](path, made)
    return path


def copy(source: Path, target: Path) -> None:
    """Copy a file, or a folder with its content."""
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, copy_function=link_or_copy)
    else:
        link_or_copy(source, target)


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """Link a large file, copy a small one."""
    if Path(source).stat().st_size < LARGE:
        shutil.copy2(source, target)
    else:
        os.link(source, target)


def copy_fixture(name: str) -> Make:
    """Return a function that copies another fixture, or a part of it."""

    def make(path: Path, made: Path) -> None:
        root = next(known for known in FIXTURES if name == known or name.startswith(f"{known}/"))
        make_once(root, made)
        copy(made / name, path)

    return make


def run_ours(command: str, folder: Path) -> None:
    """Run a command of ours that has to succeed."""
    done = run_in_process(command.split(), folder)
    assert done.returncode == 0, done.stderr


def run_shell(command: str, folder: Path) -> None:
    """Run a shell's command that has to succeed."""
    done = run_by_bash(command, folder)
    assert done.returncode == 0, done.stderr


# Data sets


def make_other_format(path: Path, _: Path) -> None:
    """Write a data set in the format that its folder names: `yolo-photos` or `voc-photos`."""
    for split, seed in (("train", 0), ("val", 1)):
        names = ("person", "dog", "cat")
        annotations = random_annotations(images=6, boxes=20, seed=seed, names=names)
        if path.name == "yolo-photos":
            write_photos(path / "images" / split, annotations)
            write_yolo(path, annotations, split=split)
            write_data_yaml(path, names, train="images/train", val="images/val")
        else:
            write_photos(path / "JPEGImages", annotations)
            write_voc(path, annotations, split=split)


def make_coco128(path: Path, _: Path) -> None:
    """Write a data set in the layout of coco128, with the lists that the example makes."""
    annotations = random_annotations(images=8, boxes=30, names=("person",) * 80)
    numbers = (9, 25, 30, 34, 72, 74, 81, 92)
    names = TextColumn.of(f"{number:012}.jpg" for number in numbers)
    annotations = replace(annotations, file_names=names)
    write_photos(path / "images/train2017", annotations)
    write_yolo(path, annotations, split="train2017")
    shutil.copy(PHOTOS_EXAMPLE / "data.yaml", path)
    for number, split in enumerate(("first", "others")):
        listed = (f"./images/train2017/{name}\n" for name in [*names][number::2])
        (path / f"{split}.txt").write_text("".join(listed))


def convert_coco128(path: Path, made: Path) -> None:
    """Convert the data set of the example, and take one of the files that this writes."""
    make_once("coco128", made)
    work = made / "converted-coco128"
    if not work.exists():
        run_ours(f"retinanet data convert coco128 --from yolo --out {work.name}", made)
    copy(work / path.name, path)


def make_strange_set(path: Path, _: Path) -> None:
    """Write a data set that describes the whole machine as its images."""
    path.mkdir()
    (path / "data.yaml").write_text("names: [cat]\ntrain: /\n")


def make_openimages(path: Path, _: Path) -> None:
    """Write synthetic data in MLPerf's layout."""
    make_synthetic_data(path, seed=0, train=6, validation=2)


def make_coco(path: Path, made: Path) -> None:
    """Write synthetic data in COCO's layout."""
    make_openimages(path, made)
    (path / "annotations").mkdir()
    for split, name in (("train", "train2017"), ("validation", "val2017")):
        labels = path / split / "labels" / "openimages-mlperf.json"
        labels.rename(path / "annotations" / f"instances_{name}.json")
        (path / split / "data").rename(path / name)
        shutil.rmtree(path / split)


def make_own_photos(part: Path, made: Path) -> None:
    """Write a part of a labelling tool's export, or of the files of `data split`."""
    name, annotations = "my-photos", "my-photos/annotations/instances_default.json"
    work = made / "work"
    if not work.exists():
        work.mkdir()
        run_ours(f"data scenes --out {name} --images 10", work)
        run_ours(f"data split {annotations} --out {name}", work)
    copy(work / name / part.name, part)


def make_shapes(path: Path, _: Path, *, images: int) -> None:
    run_ours(f"data scenes --out {path.name} --images {images}", path.parent)


def write_next_list(path: Path, made: Path) -> None:
    make_once("runs/my-photos", made)
    path.write_text("more-photos/images/photo-00000.jpg\nmore-photos/images/photo-00002.jpg\n")


def write_table(path: Path, _: Path) -> None:
    """Write one of OpenImages' CSV files."""
    path.write_bytes(openimages(train=6, validation=2)[f"/{path.name}"])


def write_table_images(path: Path, _: Path) -> None:
    """Write the images of the table of boxes."""
    path.mkdir()
    for name, content in openimages(train=6, validation=2).items():
        if name.startswith("/train/"):
            (path / Path(name).name).write_bytes(content)


# Weights and measurements


def write_backbone(path: Path, _: Path) -> None:
    save_file(resnext50_32x4d().state_dict(), path)


def write_backbone_pth(path: Path, _: Path) -> None:
    """Write a backbone as scripts of several ranks save it."""
    state = resnext50_32x4d().state_dict()
    tensors = {f"module.{name}": tensor for name, tensor in state.items()}
    torch.save({"model": tensors, "optimizer": {}, "epoch": 1, "args": "--lr 0.1"}, path)


def write_detector_pth(path: Path, _: Path) -> None:
    """Write a detector of 264 classes as torchvision's and MLPerf's scripts save it."""
    state = RetinaNet(num_classes=264).state_dict()
    tensors = {f"module.{name}": tensor for name, tensor in state.items()}
    settings = argparse.Namespace(lr=1e-4, epochs=8)
    torch.save({"model": tensors, "optimizer": {}, "args": settings, "epoch": 3}, path)


def write_topology(path: Path, _: Path) -> None:
    """Write the output of lscpu on a host of 2 sockets of 28 cores."""
    rows = [f"{cpu.cpu},{cpu.core},{cpu.socket},{cpu.node}" for cpu in TWO_SOCKETS.cpus]
    path.write_text("\n".join(["# CPU,Core,Socket,Node", *rows, ""]))


def write_hosts(path: Path, _: Path) -> None:
    path.write_text("localhost:2\n")


def write_plan(path: Path, _: Path) -> None:
    """Write measurements of `launch tune`, with peak rates and ranks of fewer threads."""
    peaks, plan = HostPeaks(core_gflops=100, memory_gb_per_s=400), measurements()
    few = (Shape(ranks=1, threads=14, batch_size=images) for images in (1, 2, 4))
    steps = (*plan.steps, *(StepTime(shape=shape, seconds=STEP.seconds(shape)) for shape in few))
    write_measurements(path, replace(plan, peaks=peaks, steps=steps))


def write_probed_plan(path: Path, _: Path) -> None:
    """Write measurements on synthetic data, with probe runs."""
    overrides = ("data.scenes={train: 1000, validation: 100}", "training.epochs=8")
    demo = replace(measurements(), data="demo.yaml", config="demo.yaml", overrides=overrides)
    write_measurements(path, replace(demo, images=1000, evaluated_images=100, probes=probes()))


def write_peaks(path: Path, _: Path) -> None:
    peaks = Peaks({"f32": 100.0, "bf16": 200.0}, 10.0, threads=1, cpu="a CPU", versions={})
    save(peaks, path)


# Runs


def write_closed_run(path: Path, _: Path) -> None:
    """Write a run of MLPerf's closed division that converged like its reference."""
    seed = sum(map(ord, path.name))
    write_run(path, closed_config(f"run.seed={seed}"), accuracies=[0.2, 0.25, 0.3, 0.35])


def copy_published_log(path: Path, _: Path) -> None:
    """Copy the parts of a published log, by the name of its submitter."""
    [file] = (REPOSITORY / "tests" / "fixtures" / "mlperf").glob(f"{path.stem}-*.txt")
    shutil.copy(file, path)


def copy_ablation_results(path: Path, _: Path) -> None:
    """Copy the results of ablations in docs, without their report."""
    results = REPOSITORY / "docs" / "ablations" / path.name
    shutil.copytree(results, path, ignore=shutil.ignore_patterns("ablations.*", "pictures"))


def log_resnet18(path: Path, made: Path) -> None:
    """Log two passes of the example of a program; both sides of a comparison have the same."""
    path.mkdir(parents=True)
    program = REPOSITORY / "docs/examples/time_resnet18.py"
    command = f"ONEDNN_VERBOSE=1 python {program} 2"
    if path.name == "old":
        make_once("logs/new", made)
        command = f"cat {path.with_name('new')}/1.log"
    run_shell(f"{command} > {path}/1.log", made)


def train_demo(path: Path, _: Path) -> None:
    """Train a small version of the demo, with log, trace and counters of its last steps."""
    settings = [*SCENES, *SMALL, "training.max_steps=4", "profile.perf=true"]
    settings += ["profile.onednn.steps=3-4", "profile.trace.steps=3-4"]
    settings += [f"run.root={path.parent}", f"run.name={path.name}"]
    run_ours(f"retinanet train {' '.join(settings)}", path.parent)


def remove_calls(path: Path, made: Path) -> None:
    """Copy the demo, without the log's calls of layers that another run may freeze."""
    copy_fixture("runs/demo")(path, made)
    log = path / "onednn" / "rank0.log"
    lines = log.read_text().splitlines(keepends=True)
    frozen = ("backward_weights", "kh3")
    log.write_text("".join(line for line in lines if not all(text in line for text in frozen)))


def train_one_step(path: Path, made: Path) -> None:
    """Train one step of the configuration named like the run."""
    work, name = path.with_name("work"), path.name
    for fixture in (f"sets/{name}", "backbone.safetensors"):
        put_in_place(fixture, made, work)
    settings = [f"data.root=sets/{name}", *SMALL, BACKBONE, "training.max_steps=1"]
    run_ours(f"retinanet train --config {name} {' '.join(settings)} profile.onednn.steps=1", work)
    (work / "runs" / name).rename(path)
    shutil.rmtree(work)


def train_on_photos(_: Path, made: Path, *, config: str) -> None:
    """Train a small version of an example's run."""
    for part in NAMED_BY[config]:
        make_once(part, made)
    run_ours(f"retinanet train --config {REPOSITORY / config} {' '.join(SMALL)}", made)


def train_the_example(path: Path, made: Path) -> None:
    """Train a small version of the worked example."""
    config = REPOSITORY / "docs/examples/profiled.yaml"
    run_ours(f"retinanet train --config {config} run.name={path.name} {LOGGED}", made)


def train_the_patched_example(path: Path, _: Path) -> None:
    """Train the worked example with the patched program."""
    work = path.with_name("patched")
    work.mkdir()
    checkout(work)
    train = f"python runs/changed/train.py --config docs/examples/profiled.yaml {LOGGED}"
    run_shell(f"{COPIED}{PATCH} && {train} run.name={path.name}", work)
    (work / "runs" / path.name).rename(path)
    shutil.rmtree(work)


def make_video(path: Path, _: Path) -> None:
    write_video(path)


def write_my_train(path: Path, _: Path) -> None:
    """Write the program of the page about profiling one's own, with smaller images."""
    [program] = python_programs("profile-your-model.md")
    path.write_text(program.replace("128, 128", "64, 64"), encoding="utf-8")


def capture_my_train(path: Path, made: Path) -> None:
    """Record that program."""
    make_once("my_train.py", made)
    run_shell(
        f"retinanet profile capture --steps 3-4 --out {path.name} -- python my_train.py", made
    )


def detect(path: Path, made: Path) -> None:
    """Write the detections in the demo's validation images."""
    make_once("runs/demo", made)
    images = "runs/demo/scenes/validation/data"
    options = f"--no-pictures --score 0.01 --json {path.relative_to(made)}"
    run_ours(f"retinanet predict --checkpoint runs/demo {images} {options}", made)


def replay_log(path: Path, made: Path, *, run: str) -> None:
    """Run the costliest problems of a run's log again."""
    make_once(run, made)
    out = path.parent.relative_to(made)
    run_ours(f"profiling benchdnn {run}/onednn/rank0.log --out {out} {QUICK_REPLAY}", made)


DEMOS = tuple(f"runs/{name}" for name in ("profiled", "five", "step", "size800"))
CLOSED_RUNS = tuple(
    f"runs/{name}" for name in ("a", "b", "c", "first", "second", "third", "fourth", "fifth")
)
LABELS = "sets/openimages/train/labels/openimages-mlperf.json"

FIXTURES: dict[str, Make] = {
    "sets/openimages": make_openimages,
    "sets/coco": make_coco,
    "logs/new": log_resnet18,
    "logs/old": log_resnet18,
    "photos": copy_fixture("sets/openimages/train/data"),
    "train.json": copy_fixture(LABELS),
    "val.json": copy_fixture(LABELS),
    "oidv6-train-annotations-bbox.csv": write_table,
    "class-descriptions-boxable.csv": write_table,
    **dict.fromkeys((*OWN_PHOTOS, "my-photos/annotations"), make_own_photos),
    "shapes": partial(make_shapes, images=10),
    **dict.fromkeys(("new-photos", "more-photos"), partial(make_shapes, images=3)),
    "coco128": make_coco128,
    **dict.fromkeys(CONVERTED, convert_coco128),
    "yolo-photos": make_other_format,
    "voc-photos": make_other_format,
    "strange-set": make_strange_set,
    "train/data": write_table_images,
    "backbone.pth": write_backbone_pth,
    "model_3.pth": write_detector_pth,
    "retinanet_model_10.pth": write_detector_pth,
    "backbone.safetensors": write_backbone,
    "node.txt": write_topology,
    "my-hosts": write_hosts,
    "node.json": write_plan,
    "scenes.json": write_probed_plan,
    "peaks.json": write_peaks,
    "replay/replay.json": partial(replay_log, run="runs/demo"),
    "runs/demo": train_demo,
    "runs/shapes/detector": copy_fixture("runs/demo"),
    "runs/coco": train_one_step,
    "runs/openimages": train_one_step,
    "runs/my-photos": partial(train_on_photos, config="docs/examples/my-photos.yaml"),
    "runs/photos": partial(train_on_photos, config="docs/examples/photos/photos.yaml"),
    "runs/my-photos/report.next.txt": write_next_list,
    "runs/before": train_the_example,
    "runs/after": train_the_patched_example,
    "runs/mended": copy_fixture("runs/before"),  # the mended program is the one before the patch
    "runs/efficiency/replay.json": partial(replay_log, run="runs/after"),
    "my_train.py": write_my_train,
    **dict.fromkeys(("captured", "captured-2"), capture_my_train),
    "predictions/scenes.mp4": make_video,
    "predictions/found.json": detect,
    "runs/three": remove_calls,
    **dict.fromkeys(DEMOS, copy_fixture("runs/demo")),
    **dict.fromkeys(CLOSED_RUNS, write_closed_run),
    **dict.fromkeys(("published/intel.txt", "published/nvidia.txt"), copy_published_log),
    "runs/ablations/quick": copy_ablation_results,
}
