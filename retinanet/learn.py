"""`retinanet learn`: from photos and labels to a detector, by the parts of other commands."""

import json
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Literal

from rich.console import Console

from common.console import clock, make_console, print_line
from common.errors import FINISHED, STOPPED_BY_SIGNAL, STOPPED_TOO_EARLY, InputError, printable
from common.files import read_text, removed_on_failure, write_atomically
from common.locks import locked_folder
from common.options import option_values
from common.program import train_command
from common.walk import real_path
from data.annotations import SPLITS, Split, count_pixels
from data.convert import READERS
from data.decoding import resolve_decoder
from data.formats.convert import DEFAULT_RULES, format_paths, write_splits
from data.split import SplitOptions, run_split
from data.verify.objects import Examined, examine
from data.verify.report import format_example, print_shared, print_split
from data.verify.splits import check_splits
from launch.limits import free_memory
from launch.run import run_with_graceful_stop
from retinanet.commands import ReportOptions
from retinanet.config_file import load_config
from retinanet.config_types import COCO_DETECTORS, DEFAULT_ARCHITECTURE, TORCHVISION
from retinanet.learn_command import LearnOptions
from retinanet.memory import images_that_fit
from retinanet.report.command import report
from retinanet.training.detector_weights import read_detector
from retinanet.training.published import COCO, IMAGENET, cached_file, published_weights
from retinanet.training.run_folder import REPORT
from retinanet.training_job import train_until
from retinanet.verify_command import anchor_rule

Resize = Literal["square", "letterbox"]
STEPS, WARM = 8, 3  # Measured steps, the first of which are slower
EVALUATIONS = 10  # At most
BATCHES = ((8, 320**2), (4, 640**2), (2, 1600**2))
"""Images, up to so many pixels of each; fewer where memory is short."""
FORMATS = {".json": "coco", ".xml": "voc", ".yaml": "yolo", ".yml": "yolo", ".txt": "yolo"}
"""The formats that a file with such a name may be of; other names say nothing."""
GIVEN = "the given detector"
WORK = "learn"  # The name of the lock on the folder
RATE = 3e-4 / 8  # The learning rate for each image of a batch
SETTINGS = """\
# {given}
# For others: retinanet train --config {file} run.name=NEW section.field=value

run: {run}
data:
{paths}
  image_size: {size}
  resize: {resize}
  augmentation: [flip, photometric]
# Start: {meaning}
model: {model}
training:
  batch_size: {batch}
  epochs: {epochs}  # {pace}
  max_steps: {steps}
  learning_rate: {rate:g}
  warmup_epochs: {warmup:g}
  schedule: cosine
  clip_gradient_norm: {clip}
evaluation: {{every: {every}}}
"""


def learn(options: LearnOptions) -> int:
    """Prepare a run unless an earlier call did, train, write the page, and return the exit code.

    Raises:
        InputError: The labels or photos cannot be used, or the folder is not of such a call.
    """
    source, console = options.labels.source, make_console()
    out = options.out or Path("runs", real_path(source if source.is_dir() else source.parent).name)
    file, run = out / "my-photos.yaml", out / "detector"
    chosen = {each.name: value for each, value in option_values(options) if each.name != "out"}
    given = printable("retinanet learn: " + ", ".join(f"{k} {v}" for k, v in chosen.items() if v))
    # What is new is found before the lock makes the folder, and removed only by the lock's holder.
    is_new, removed = not out.exists(), removed_on_failure([out])
    with locked_folder(out, WORK):
        if file.exists():
            if read_text(file).partition("\n")[0] != f"# {given}":
                raise InputError(
                    f"{file}: not of {given}; give the options that it names, or another --out"
                )
            print_line(console, f"{file}: goes on with it; another --out reads the labels anew")
        elif is_new:
            with removed:
                prepare(options, file, given, console)
        else:
            raise InputError(
                f"{out}: exists, without {file.name} of a call; remove it, or set another --out"
            )
        print_line(console, f"\n{file}:\n{read_text(file)}")
        command = [*train_command(), "--config", str(file), "--auto-resume"]
        status = run_with_graceful_stop(command, stop_signal=signal.SIGTERM)
        if status == FINISHED and not (run / REPORT).exists():
            status = report(ReportOptions(checkpoint=run))
    if status in (STOPPED_BY_SIGNAL, STOPPED_TOO_EARLY):
        print_line(console, "or repeat this command, which goes on from there")
    return status


def choose_start(weights: str | None) -> tuple[dict[str, Any], int, int, str]:
    """Return settings of the model, the least and the most epochs, and the meaning of this start.

    It is the detector, else a file of torchvision that is here, else random numbers. Raises
    InputError for a detector that is missing.
    """
    here = [each for each in COCO_DETECTORS if cached_file(published_weights(each, COCO)).is_file()]
    name = weights or (here[-1] if here else None)  # the best one is last
    if name in (TORCHVISION, *COCO_DETECTORS):
        return {"weights": name}, 10, 60, "a detector of COCO's classes"
    if name is not None:
        if not Path(name).exists():
            raise InputError(f"--weights: {name} does not exist; give a run, or torchvision")
        return {"weights": str(Path(name).absolute())}, 10, 60, GIVEN
    if cached_file(published_weights(DEFAULT_ARCHITECTURE.backbone, IMAGENET)).is_file():
        return {"pretrained_backbone": TORCHVISION}, 20, 120, "a backbone trained on ImageNet"
    meaning = (
        "random numbers, as no trained weights are here. Some hundred real photos then give poor "
        "results; --weights torchvision downloads a detector"
    )
    return {"norm": "batch", "trainable_layers": 5}, 30, 300, meaning


def read_photos(options: LearnOptions, out: Path, console: Console) -> dict[str, Split]:
    """Write the labels in COCO's format, divided for training and validation; return the paths."""
    labels, there, faults, read = options.labels, set(), {}, {}
    one = options.from_format
    if one is None and labels.source.is_file():
        one = FORMATS.get(labels.source.suffix.lower())
    for kind in [one] if one else READERS:
        try:
            read[kind] = READERS[kind](labels, lambda *_, kind=kind: there.add(kind), console)
        except InputError as fault:
            faults[kind] = f"as {kind}: {fault}"
    # Of labels that are there; the other formats are not in the folder.
    known = [fault for kind, fault in faults.items() if kind in there or not (there or read)]
    if len(read) != 1:
        several = f"{labels.source}: has labels of {' and '.join(read)}; choose with --from"
        raise InputError(several if read else "; ".join(known))
    [(kind, splits)] = read.items()
    if sum(len(split.annotations) for split in splits) < 2:
        raise InputError(f"{labels.source}: one photo; training and validation need one each")
    for note in [*known, f"the labels are of {kind}"]:
        print_line(console, f"note: {note}")
    for note in [note for split in splits for note in split.notes]:
        print_line(console, f"note: {note}")
    written = write_splits(splits, out, copy_images=False, console=console)
    if not set(SPLITS) <= written.keys():
        whole, divided = next(iter(written.values())), out / "divided"
        run_split(SplitOptions(annotations=whole.annotations, out=divided))
        written = {each: Split(divided / f"{each}.json", whole.images) for each in SPLITS}
    return {each: written[each] for each in SPLITS}


def check_photos(written: Mapping[str, Split], resize: Resize, console: Console) -> Examined:
    """Decode every photo, print what `data verify` finds, and return sizes of the objects.

    Raises:
        InputError: Training would stop (names the first place), or nothing could be validated.
    """
    rules = replace(DEFAULT_RULES, image_size=320, resize=resize, decoder=resolve_decoder("auto"))
    checked = check_splits(written, rules, sample=None, console=console)
    for each in checked:
        print_split(console, each)
        for finding in each.findings.stopping():
            place = f"{each.split.images}: {finding.name}: {finding.count:,}, first"
            raise InputError(f"{place} {format_example(finding)}")
    print_shared(console, checked)
    found = {each.name: each.entries for each in checked if each.entries is not None}
    examined = examine(found, anchor_rule, rules)
    if examined is None or "validation" not in examined.entries:
        raise InputError(f"{written['validation'].images}: no box to validate with; label more")
    return examined


def prepare(options: LearnOptions, file: Path, given: str, console: Console) -> None:
    """Read and check labels and photos, measure some steps, and write the configuration."""
    model, least, most, meaning = choose_start(options.weights)
    is_random, draft = "norm" in model, file.with_suffix(".draft")
    # Norms that train learn badly from batches of both orientations.
    resize: Resize = "square" if is_random else "letterbox"
    written = read_photos(options, file.parent, console)
    examined = check_photos(written, resize, console)
    # Torch may begin threads only now, after the processes that have decoded the photos.
    if meaning == GIVEN:
        model |= read_detector(model["weights"]).architecture._asdict()
    validation, proposal = len(examined.entries["validation"].image_ids), examined.proposal
    values: dict[str, Any] = dict.fromkeys(
        ("epochs", "steps", "rate", "warmup", "every", "pace"), 1
    ) | {
        "given": given,
        "file": printable(str(file)),
        "run": json.dumps({"root": str(file.parent.absolute()), "name": "detector"}),
        "paths": format_paths(written),
        "resize": resize,
        "model": json.dumps(model),
        "meaning": meaning,
        "clip": 15 if is_random else "null",
    }
    print_line(console, "\nmeasuring some steps on this machine …")
    sizes = proposal.affordable[: proposal.affordable.index(proposal.image_size) + 1]
    while True:
        pixels = count_pixels(sizes[-1])
        batch = next(images for images, largest in BATCHES if pixels <= largest)
        values |= {"size": json.dumps(sizes[-1]), "batch": 1}
        write_atomically(draft, SETTINGS.format_map(values))
        fitting = images_that_fit(
            load_config(str(draft)),
            num_classes=len(examined.entries["train"].category_ids),
            engine="torch",
            local_ranks=1,
            available=free_memory(),
        )
        batch = min(batch, fitting or batch)
        values |= {"batch": batch, "rate": RATE * batch}
        write_atomically(draft, SETTINGS.format_map(values))
        seconds, steps = measure_steps(draft)
        # An evaluation takes less, and is not after every epoch: time is left for the rest.
        epoch = seconds * (steps + validation / batch)
        possible = options.hours * 3600 / epoch
        smaller = [size for size in sizes if count_pixels(size) <= pixels * possible / least]
        if len(smaller) == len(sizes) or len(sizes) == 1:
            break
        sizes = smaller or sizes[:1]
    epochs = min(max(1, int(possible)), most)
    time = f"{clock(min(epochs, possible) * epoch)} of {options.hours:g} h"
    values |= {
        "epochs": epochs,
        "steps": max(1, int(possible * steps)) if possible < 1 else "null",
        "warmup": min(1, epochs / 10),
        "every": -(-epochs // EVALUATIONS),
        "pace": f"at most about {time}: {steps} steps and an evaluation, {seconds:.2g} s a step",
    }
    draft.unlink()
    write_atomically(file, SETTINGS.format_map(values))


def measure_steps(file: Path) -> tuple[float, int]:
    """Return the seconds of a step and the steps of an epoch, by a run that leaves nothing."""
    records: list[Mapping[str, Any]] = []

    def is_enough(record: Mapping[str, Any]) -> bool:
        records.extend([record] if record["kind"] == "step" else [])
        return len(records) >= STEPS

    # One step more, after which the run would evaluate.
    length = ("training.epochs", "training.max_steps", "evaluation.every")
    options = ["--config", str(file), *(f"{name}={STEPS + 1}" for name in length)]
    with TemporaryDirectory(dir=file.parent) as scratch:
        train_until(is_enough, Path(scratch, "run"), options)
    seconds = median(record["seconds"] for record in records[WARM:])
    return seconds, round(records[-1]["step"] / records[-1]["epoch"])  # they have few digits
