"""What the pages' commands find in place: data sets, runs, logs, measurements, all of them small.

Each thing has the name by which commands name it. It is made when a command first names it, once
for all tests of a process, and put into the folder of each command that names it.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file
from torchvision.models import resnext50_32x4d

from data.synthetic import make_scenes
from profiling.peaks import Peaks, save
from profiling.studies.tune.measurements import write_measurements
from retinanet.model.retinanet import RetinaNet
from tests.data.download.datasets import openimages
from tests.docs.pages import REPOSITORY, commands_of
from tests.docs.rules import (
    BACKBONE,
    COPIED,
    LOGGED,
    OWN_PHOTOS,
    PATCH,
    QUICK_REPLAY,
    SCENES,
    SMALL,
)
from tests.docs.running import run_by_bash, run_in_process
from tests.launch.hosts_by_hand import TWO_SOCKETS
from tests.profiling.studies.tune.by_hand import measurements, probes
from tests.support.mlperf_runs import closed_config, write_run

LARGE = 1_000_000
"""Bytes: files from here on are linked and not copied. They are replaced whole, never changed."""

CODE = (
    *("common", "configs", "data", "docs", "launch", "profiling", "retinanet", "tests"),
    *("train.py", "setup.sh", "Makefile", "pyproject.toml", ".ci", ".pre-commit-config.yaml"),
)
"""What a user's checkout holds."""

DEMOS = tuple(f"runs/{name}" for name in ("profiled", "five", "step", "size800"))
"""Runs whose logs the pages look at."""

CLOSED_RUNS = tuple(f"runs/{name}" for name in "abc") + tuple(
    f"runs/{name}" for name in ("first", "second", "third", "fourth", "fifth")
)
"""Of MLPerf's closed division."""


def checkout(folder: Path) -> None:
    """The repository as a user has it, in which a command may write."""
    for name in CODE:
        (folder / name).symlink_to(REPOSITORY / name)
    (folder / ".venv").symlink_to(sys.prefix)


def put_in_place(name: str, made: Path, folder: Path) -> None:
    """Put a thing into a command's folder; make it first if no command has named it yet."""
    source, target = made_once(name, made), folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    copy(source, target)


def made_once(name: str, made: Path) -> Path:
    """The thing itself, in the folder of those that were made."""
    path = made / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        THINGS[name](path)
    return path


def copy(source: Path, target: Path) -> None:
    """A file, or a folder with all that is in it."""
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, copy_function=link_or_copy)
    else:
        link_or_copy(source, target)


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """A large file has two names; a small one is two files, of which one may be written."""
    if Path(source).stat().st_size < LARGE:
        shutil.copy2(source, target)
    else:
        os.link(source, target)


def draw_openimages(folder: Path) -> None:
    """Drawn scenes in MLPerf's tree."""
    make_scenes(folder, seed=0, train=6, validation=2)


def draw_coco(folder: Path) -> None:
    """The same in COCO's tree."""
    draw_openimages(folder)
    (folder / "annotations").mkdir()
    for split, name in (("train", "train2017"), ("validation", "val2017")):
        labels = folder / split / "labels" / "openimages-mlperf.json"
        labels.rename(folder / "annotations" / f"instances_{name}.json")
        (folder / split / "data").rename(folder / name)
        shutil.rmtree(folder / split)


def write_annotations(file: Path) -> None:
    """Those of the pictures in `photos`."""
    with TemporaryDirectory() as folder:
        draw_openimages(Path(folder) / "scenes")
        shutil.copy(Path(folder) / "scenes" / "train" / "labels" / "openimages-mlperf.json", file)


def draw_photos(folder: Path) -> None:
    """Pictures without annotations beside them."""
    with TemporaryDirectory() as scenes:
        draw_openimages(Path(scenes) / "scenes")
        shutil.copytree(Path(scenes) / "scenes" / "train" / "data", folder)


def draw_own_photos(part: Path) -> None:
    """A part of what a labelling tool exports and `data split` makes of it."""
    name, annotations = "my-photos", "my-photos/annotations/instances_default.json"
    with TemporaryDirectory(dir=part.parents[1]) as work:
        run_ours(f"data scenes --out {name} --images 10", Path(work))
        run_ours(f"data split {annotations} --out {name}", Path(work))
        (Path(work) / name / part.name).rename(part)


def draw_new_photos(folder: Path) -> None:
    """As the tutorial has them drawn."""
    run_ours(f"data scenes --out {folder.name} --images 3 --seed 7", folder.parent)


def run_ours(words: str, folder: Path) -> None:
    """A command that has to succeed."""
    done = run_in_process(words.split(), folder)
    assert done.returncode == 0, done.stderr


def write_table(file: Path) -> None:
    """One of OpenImages' CSV files."""
    file.write_bytes(openimages(train=6, validation=2)[f"/{file.name}"])


def write_table_images(folder: Path) -> None:
    """The images of the table of boxes."""
    folder.mkdir()
    for path, content in openimages(train=6, validation=2).items():
        if path.startswith("/train/"):
            (folder / Path(path).name).write_bytes(content)


def write_pth(file: Path) -> None:
    """A backbone as scripts of several ranks save it."""
    tensors = {f"module.{name}": one for name, one in resnext50_32x4d().state_dict().items()}
    torch.save({"model": tensors, "optimizer": {}, "epoch": 1, "args": "--lr 0.1"}, file)


def write_detector_pth(file: Path) -> None:
    """A detector of 264 classes as torchvision's and MLPerf's scripts save it."""
    state = RetinaNet(num_classes=264).state_dict()
    tensors = {f"module.{name}": one for name, one in state.items()}
    settings = argparse.Namespace(lr=1e-4, epochs=8)
    torch.save({"model": tensors, "optimizer": {}, "args": settings, "epoch": 3}, file)


def write_classes(file: Path) -> None:
    """Categories alone, with the ids of MLPerf's JSON."""
    entries = [{"id": number, "name": f"class {number}"} for number in range(264)]
    file.write_text(json.dumps({"categories": entries}))


def write_backbone(file: Path) -> None:
    """A backbone, random."""
    save_file(resnext50_32x4d().state_dict(), file)


def write_topology(file: Path) -> None:
    """What lscpu prints on a host of 2 sockets of 28 cores."""
    rows = [f"{cpu.cpu},{cpu.core},{cpu.socket},{cpu.node}" for cpu in TWO_SOCKETS.cpus]
    file.write_text("\n".join(["# CPU,Core,Socket,Node", *rows, ""]))


def write_hosts(file: Path) -> None:
    """A hostfile of this host alone."""
    file.write_text("localhost:2\n")


def write_plan(file: Path) -> None:
    """What `launch tune` has measured, with the network between two hosts."""
    write_measurements(file, measurements())


def write_probed_plan(file: Path) -> None:
    """The same of drawn scenes, with probe runs."""
    ours = ("data.scenes={train: 1000, validation: 100}", "training.epochs=8")
    demo = replace(measurements(), data="demo.yaml", config="demo.yaml", overrides=ours)
    write_measurements(file, replace(demo, images=1000, evaluated_images=100, probes=probes()))


def write_peaks(file: Path) -> None:
    """A machine's peaks."""
    peaks = Peaks({"f32": 100.0, "bf16": 200.0}, 10.0, threads=1, cpu="a CPU", versions={})
    save(peaks, file)


def write_closed_run(folder: Path) -> None:
    """A run that converged as MLPerf's reference does."""
    seed = sum(map(ord, folder.name))
    write_run(folder, closed_config(f"run.seed={seed}"), accuracies=[0.2, 0.25, 0.3, 0.35])


def copy_kept_results(folder: Path) -> None:
    """The ablations whose results are kept in docs, without their report."""
    kept = REPOSITORY / "docs" / "ablations" / folder.name
    shutil.copytree(kept, folder, ignore=shutil.ignore_patterns("ablations.*", "pictures"))


def train(folder: Path) -> None:
    """A finished run of the demo in small, with log, trace and counters of its last steps."""
    words = ["train.py", f"run.root={folder.parent}", f"run.name={folder.name}", *SCENES, *SMALL]
    windows = ("training.max_steps=4", "profile.onednn.steps=3-4", "profile.trace.steps=3-4")
    done = run_in_process([*words, *windows, "profile.perf=true"], folder.parent)
    assert done.returncode == 0, done.stderr


def copy_of_the_demo(folder: Path) -> None:
    """The same under another name."""
    copy(made_once("runs/demo", folder.parents[1]), folder)


def leave_out_calls(folder: Path) -> None:
    """The same, of which the log has fewer calls: those of layers that are frozen."""
    copy_of_the_demo(folder)
    log = folder / "onednn" / "rank0.log"
    lines = log.read_text().splitlines(keepends=True)
    frozen = ("backward_weights", "kh3")
    log.write_text("".join(line for line in lines if not all(word in line for word in frozen)))


def stop_early(folder: Path) -> None:
    """A run of the configuration of its name that ended after its first step."""
    work, name = folder.with_name("work"), folder.name
    for thing in (f"sets/{name}", "backbone.safetensors"):
        put_in_place(thing, folder.parents[1], work)
    words = ["train.py", "--config", name, f"data.root=sets/{name}", *SMALL, BACKBONE]
    done = run_in_process([*words, "training.max_steps=1", "profile.onednn.steps=1"], work)
    assert done.returncode == 0, done.stderr
    (work / "runs" / name).rename(folder)
    shutil.rmtree(work)


def train_on_own_photos(folder: Path) -> None:
    """The tutorial's run in small."""
    root = folder.parents[1]
    for part in OWN_PHOTOS:
        made_once(part, root)
    ours = (REPOSITORY / "docs/examples/my-photos.yaml", *SMALL)
    run_ours(f"train.py --config {' '.join(map(str, ours))}", root)


def train_the_example(folder: Path) -> None:
    """The worked example's run, in small, by the program as it is."""
    config = REPOSITORY / "docs/examples/profiled.yaml"
    run_ours(f"train.py --config {config} run.name={folder.name} {LOGGED}", folder.parents[1])


def train_the_changed_example(folder: Path) -> None:
    """The same by the program with the patch."""
    work = folder.with_name("patched")
    work.mkdir()
    checkout(work)
    train = f"python runs/changed/train.py --config docs/examples/profiled.yaml {LOGGED}"
    done = run_by_bash(f"{COPIED}{PATCH} && {train} run.name={folder.name}", work)
    assert done.returncode == 0, done.stderr
    (work / "runs" / folder.name).rename(folder)
    shutil.rmtree(work)


def copy_of_the_example(folder: Path) -> None:
    """The mended program is the one before the patch."""
    copy(made_once("runs/before", folder.parents[1]), folder)


def film(file: Path) -> None:
    """By the program of the page."""
    page = (REPOSITORY / "docs" / "serving.md").read_text("utf-8")
    made_once("runs/demo", file.parents[1])
    program = next(one.text for one in commands_of(page, "serving.md") if file.name in one.text)
    done = run_by_bash(program.replace(".venv/bin/", ""), file.parents[1])
    assert done.returncode == 0, done.stderr


def find_boxes(file: Path) -> None:
    """What the detector finds, in pictures or in a video."""
    seen = {
        "found.json": "runs/demo/scenes/validation/data",
        "video.json": "predictions/scenes.mp4",
    }
    root, source = file.parents[1], seen[file.name]
    made_once("runs/demo", root)
    if source in THINGS:
        made_once(source, root)
    words = f"retinanet predict --checkpoint runs/demo {source} --no-pictures"
    run_ours(f"{words} --score 0.01 --json {file.relative_to(root)}", root)


def replay_after(file: Path) -> None:
    """What `efficiency` keeps of the worked example."""
    made_once("runs/after", file.parents[2])
    log = "runs/after/onednn/rank0.log"
    words = f"profiling benchdnn {log} --out runs/efficiency {QUICK_REPLAY}"
    run_ours(words, file.parents[2])


def replay_file(file: Path) -> None:
    """Of the demo's log the costliest primitives, run again alone."""
    root = file.parents[1]
    made_once("runs/demo", root)
    words = ["python", "-m", "profiling", "benchdnn", "runs/demo/onednn/rank0.log"]
    done = run_in_process([*words, "--out", "replay", *QUICK_REPLAY.split()], root)
    assert done.returncode == 0, done.stderr


THINGS: dict[str, Callable[[Path], None]] = {
    "sets/openimages": draw_openimages,
    "sets/coco": draw_coco,
    "coco128": draw_coco,
    "photos": draw_photos,
    "train.json": write_annotations,
    "val.json": write_annotations,
    "oidv6-train-annotations-bbox.csv": write_table,
    "class-descriptions-boxable.csv": write_table,
    **dict.fromkeys((*OWN_PHOTOS, "my-photos/annotations"), draw_own_photos),
    "new-photos": draw_new_photos,
    "train/data": write_table_images,
    "backbone.pth": write_pth,
    "model_3.pth": write_detector_pth,
    "classes.json": write_classes,
    "backbone.safetensors": write_backbone,
    "node.txt": write_topology,
    "my-hosts": write_hosts,
    "node.json": write_plan,
    "scenes.json": write_probed_plan,
    "peaks.json": write_peaks,
    "replay/replay.json": replay_file,
    "runs/demo": train,
    "runs/coco": stop_early,
    "runs/openimages": stop_early,
    "runs/my-photos": train_on_own_photos,
    "runs/before": train_the_example,
    "runs/after": train_the_changed_example,
    "runs/mended": copy_of_the_example,
    "runs/efficiency/replay.json": replay_after,
    "predictions/scenes.mp4": film,
    "predictions/found.json": find_boxes,
    "predictions/video.json": find_boxes,
    "runs/three": leave_out_calls,
    **dict.fromkeys(DEMOS, copy_of_the_demo),
    **dict.fromkeys(CLOSED_RUNS, write_closed_run),
    "runs/ablations/quick": copy_kept_results,
}
