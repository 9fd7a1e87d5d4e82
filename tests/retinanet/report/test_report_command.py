"""`retinanet report`: the page, its numbers, what it reads, and wrong input."""

import base64
import io
import json
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from common.cli import installed
from common.console import ignore_progress
from common.files import write_parts
from retinanet.__main__ import main
from retinanet.config import config_to_tree
from retinanet.config_file import load_config, parse_run_arguments
from retinanet.evaluation.matching import SplitDetections
from retinanet.evaluation.metric import coco_metric
from retinanet.evaluation.output import detections_as_json
from retinanet.report.material import read_detections, read_material
from retinanet.report.pictures import MOST_BYTES, as_jpeg
from retinanet.report.sections import continuing_command
from retinanet.training.detector_weights import ClassMatch, DetectorStart, SourceDetector
from retinanet.training.progress import START
from retinanet.training.schedule import StepPlan
from retinanet.training.trainer import Trainer
from tests.retinanet.report.samples import predictions, split, write_split
from tests.support.commands import RunHere, error_message, run_program
from tests.support.random_detectors import NAMES

ONE, TWO, THREE = IDS = (7, 8, 44)
LEFT, RIGHT, LOW = (5, 5, 60, 60), (110, 5, 180, 60), (60, 65, 110, 95)
TRUTH = split(
    [(ONE, LEFT), (TWO, RIGHT)],
    [(ONE, LEFT)],
    [(TWO, RIGHT), (THREE, LEFT)],
    [],
    names=NAMES,
    ids=IDS,
)
FOUND = predictions(
    [(ONE, LEFT, 0.9), (TWO, RIGHT, 0.8), (THREE, LOW, 0.75)],
    [(TWO, LEFT, 0.7)],  # Taken for another class
    [(TWO, RIGHT, 0.6)],  # One object is missed
    [],
)


def write_config(run: Path, *overrides: str) -> None:
    """Write the configuration of the run's last start."""
    place = (f"run.root={run.parent}", f"run.name={run.name}")
    config = load_config("demo.yaml", [*place, *overrides])
    (run / "config.yaml").write_text(json.dumps(config_to_tree(config), default=str))


def write_records(run: Path, *, last_map: float, first_map: float = 0.0) -> None:
    """Write the metrics of a run that has done six epochs."""
    steps = [{"kind": "step", "step": step, "epoch": step, "loss": 2 / step} for step in (1, 6)]
    evaluations = [
        {"kind": "evaluation", "step": step, "epoch": 6 * step / 7, "map": value, "map_50": value}
        for step, value in ((6, first_map or last_map / 2), (7, last_map))
    ]
    lines = [json.dumps(record) for record in (*steps, *evaluations)]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture
def run(detector: Path, tmp_path: Path) -> Path:
    """A run with kept detections, whose checkpoint has no weights: nothing can be detected."""
    run = tmp_path / "my runs" / "first"
    best = run / "checkpoints" / "best"
    best.mkdir(parents=True)
    shutil.copy(detector / "state.json", best)
    write_config(run)
    write_split(run / "scenes" / "validation", TRUTH)
    keep(run, FOUND)
    write_records(run, last_map=coco_metric(TRUTH, FOUND).map)
    return run


def keep(run: Path, detections: SplitDetections) -> None:
    """Write the detections of an evaluation as a training does."""
    (run / "eval").mkdir(exist_ok=True)
    write_parts(run / "eval" / "step-000007.json", detections_as_json(detections))


def test_page_of_kept_detections(run: Path, tmp_path: Path, run_here: RunHere) -> None:
    numbers = tmp_path / "numbers.json"
    done = run_here(main, "report", run, "--json", numbers)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"page: {run}/report.html" in done.stdout and "4 images with 5 labelled" in done.stdout
    page = (run / "report.html").read_text("utf-8")
    assert page.count("<h2") == 6 and "mAP was still rising" in page
    assert not re.search(r'(?:src|href)="(?!data:|#|[\w%./-]+")', page)
    assert len(re.findall(r'src="data:image/jpeg', page)) == 3
    for link in ("checkpoints/best", "config.yaml", "metrics.jsonl", "eval"):
        assert f'<a href="{link}">' in page and (run / link).exists()
    best = re.search(r"predict --checkpoint &#39;(.*?)&#39; --score (\S+) photo.jpg", page)
    assert best and best[1] == str(run / "checkpoints" / "best")

    content = json.loads(numbers.read_text())
    assert float(best[2]) == content["best"]["threshold"]
    assert content["confusion"]["boxes"] == [[1, 1, 0, 0], [0, 2, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
    assert content["pairs"] == [{"true": "one", "predicted": "two", "boxes": 1, "share": 0.5}]
    assert (content["missed"], content["images_with_mistakes"]) == (1, 3)
    assert content["metrics"]["map"] == pytest.approx(coco_metric(TRUTH, FOUND).map)
    one, two, three = content["classes"]
    assert (one["best"]["precision"], one["best"]["recall"], one["true_boxes"]) == (1.0, 0.5, 2)
    assert two["best"]["recall"] == 1.0 and three["best"] is None
    assert [image["file_name"] for image in content["worst_images"]][:1] == ["0.png"]


def test_kept_detections_are_in_the_precision_of_the_training(
    run: Path, run_here: RunHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.machine.cpu_flags", lambda: {"avx512_bf16"})
    numbers = tmp_path / "numbers.json"
    done = run_here(main, "report", run, "--json", numbers)
    assert "Measured in float32 on 4 images" in done.stdout
    assert json.loads(numbers.read_text())["precision"] == "float32"
    assert run_here(main, "report", run, "--overwrite", "--precision=float32").returncode == 0
    other = run_here(main, "report", run, "--overwrite", "--precision=bf16")
    assert other.returncode == 2 and "model.safetensors" in other.stderr  # It has to detect


def words_to_continue(run: Path) -> list[str]:
    """Return the arguments of the page's command that continues the training."""
    material = read_material(run, annotations=None, images=None, console=Console(quiet=True))
    assert material.run is not None
    _, line = continuing_command(material, material.run)
    return shlex.split(line.partition("retinanet train ")[2])


def test_start_from_a_detector_is_named(run: Path, run_here: RunHere) -> None:
    source = ClassMatch(outputs=(0, None, None), kept=(("one", "one"),), new=("two", "three"),
                        dropped=("bus",))  # fmt: skip
    detector = SourceDetector(
        file=Path("runs/coco"), names=(), tensors={}, sha256="ab" * 32, step=90, map=0.371
    )
    start = DetectorStart(detector=detector, match=source)
    (run / "weights.json").write_text(json.dumps(start.to_dict()))
    assert run_here(main, "report", run).returncode == 0
    page = (run / "report.html").read_text("utf-8")
    assert "random weights" not in page
    assert "runs/coco, step 90, mAP 0.371, SHA-256 abababababababab…" in page
    assert "1 of 3 classes kept, 2 new, 1 of the detector&#39;s dropped" in page


def test_page_says_what_was_done_for_rare_classes(run: Path, run_here: RunHere) -> None:
    write_config(run, "training.class_weights={Bus: 3}", "data.repeat_rare=0.02")
    assert run_here(main, "report", run).returncode == 0
    page = (run / "report.html").read_text("utf-8")
    assert re.search(r">class weights<.{,40}Bus.{,9}: 3\.0", page)
    assert re.search(r">repeat_rare<.{,20}>0\.02<", page)


@pytest.mark.parametrize(
    ("settings", "limits"),
    [
        (("training.epochs=9",), []),  # Not finished
        (("training.epochs=6",), ["training.epochs=12"]),
        # The checkpoint is of a start with fewer epochs than the run has now.
        (("training.epochs=3",), ["training.epochs=12"]),
        (("training.epochs=40", "training.max_steps=7"), ["training.max_steps=14"]),
        (("training.epochs=7", "training.max_steps=7"),
         ["training.max_steps=14", "training.epochs=12"]),
        (("training.epochs=40", "training.patience=1"), ["training.patience=null"]),
        (("training.epochs=6", "training.patience=1"),
         ["training.epochs=12", "training.patience=null"]),
        (("training.epochs=6", "training.patience=9"), ["training.epochs=12"]),
        (("training.epochs=40", "training.target_map=0.1"), ["training.target_map=null"]),
        (("training.epochs=40", "training.target_map=0.1", "training.patience=1"),
         ["training.target_map=null", "training.patience=null"]),
    ],
)  # fmt: skip
def test_printed_command_continues_the_run(
    settings: tuple[str, ...], limits: list[str], run: Path
) -> None:
    """By the rules of the trainer, from the state that the records give."""
    write_config(run, "training.target_map=null", *settings)
    value = coco_metric(TRUTH, FOUND).map
    write_records(run, first_map=2 * value, last_map=value)
    words = words_to_continue(run)
    assert words[2:-1] == limits
    arguments = parse_run_arguments("", prog="train.py", words=words)
    assert arguments.resume
    config = load_config(arguments.config, arguments.overrides)
    trainer = object.__new__(Trainer)
    trainer.config = config
    trainer.progress = replace(
        START, step=7, epoch=6, map_here=value, best_map=2 * value, evaluations_since_best=1
    )
    plan = StepPlan(
        images_per_epoch=1, images_per_batch=1, gradient_accumulation=1, evaluate_every=1,
        epochs=config.training.epochs, max_steps=config.training.max_steps,
        start=trainer.progress,
    )  # fmt: skip
    trainer.run = SimpleNamespace(plan=plan, evaluation=None)  # type: ignore[assignment]
    assert not trainer.is_done()


def test_images_in_both_splits_are_counted(run: Path, run_here: RunHere, tmp_path: Path) -> None:
    """Copies of the annotations, a link to the folder of images, and a run without its training."""
    numbers = tmp_path / "numbers.json"

    def trained_images() -> int | None:
        done = run_here(main, "report", run, "--overwrite", "--json", numbers)
        assert (done.returncode, done.stderr) == (0, "")
        counted: int | None = json.loads(numbers.read_text())["trained_images"]
        numbers.unlink()
        return counted

    assert trained_images() is None
    validation, train = run / "scenes" / "validation", run / "scenes" / "train"
    write_split(train, TRUTH)
    assert trained_images() == 0  # Other files of the same names
    shutil.rmtree(train / "data")
    (train / "data").symlink_to(validation / "data")
    # Training skips the image without a box.
    assert trained_images() == 3
    write_config(run, "data.images_without_boxes=train")
    assert trained_images() == 4
    assert "the pictures it was trained on" in (run / "report.html").read_text("utf-8")


def test_moved_run_is_continued_where_it_is(run: Path) -> None:
    moved = run.rename(run.with_name("moved"))
    words = words_to_continue(moved)
    assert words[-3:] == [f"run.root={moved.parent}", "run.name=moved", "--resume"]


def test_commands_of_the_page_in_another_folder(
    run: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run)
    assert run_here(main, "report", ".").returncode == 0
    page = (run / "report.html").read_text("utf-8")
    assert f"Commands, to be run in <code>{run}</code>" in page
    assert f"{installed('retinanet')} train --config config.yaml" in page


def test_existing_page_is_kept_without_overwrite(run: Path, run_here: RunHere) -> None:
    (run / "report.html").write_text("mine")
    done = run_here(main, "report", run)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--overwrite" in done.stderr
    assert (run / "report.html").read_text() == "mine"
    assert run_here(main, "report", run, "--overwrite").returncode == 0
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    assert run_here(main, "report", run, "--out", run / "other" / "a.html").returncode == 0
    assert '<a href="../checkpoints/best">' in (run / "other" / "a.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("content", "note"),
    [("", "the run recorded 0.9000"), ("[{", "step-000007.json: line 1, column 3: not JSON")],
    ids=["of other data", "damaged"],
)
def test_detections_that_do_not_fit_are_not_used(
    content: str, note: str, run: Path, run_here: RunHere
) -> None:
    write_records(run, last_map=0.9)
    if content:
        (run / "eval" / "step-000007.json").write_text(content)
    done = run_here(main, "report", run)
    assert note in done.stdout and "; the images are searched again" in done.stdout
    assert done.returncode == 2 and "model.safetensors" in done.stderr  # It has to detect


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"a": 1}', "expected a list"),
        ('[{"image_id": 10}]', "not in COCO's result format"),
        ('[{"image_id": 1, "category_id": 7, "bbox": [1, 2, 3, 4], "score": 1}]', "image_id 1 is"),
        ('[{"image_id": 10, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 1}]', "category_id 1"),
        ('[{"image_id": 10, "category_id": 7, "bbox": [1, 2, 3], "score": 1}]', "result format"),
    ],
)
def test_damaged_detections_are_refused(content: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "boxes.json"
    file.write_text(content)
    message = error_message(read_detections, file, TRUTH, advance=ignore_progress)
    assert message.startswith(str(file)) and problem in message


def test_run_without_detections_gets_a_page(run: Path, run_here: RunHere) -> None:
    """A detector that finds nothing at all is a result."""
    keep(run, predictions([], [], [], []))
    write_records(run, last_map=0.0)
    done = run_here(main, "report", run)
    assert (done.returncode, done.stderr) == (0, "")
    page = (run / "report.html").read_text("utf-8")
    assert "The detector finds nothing yet" in page and "--score 0.4 photo.jpg" in page


def test_names_of_classes_and_files_are_escaped(run: Path, run_here: RunHere) -> None:
    file = run / "scenes" / "validation" / "labels" / "openimages-mlperf.json"
    harm = "<b onclick=alert(1)>.png"
    (run / "scenes" / "validation" / "data" / "0.png").rename(
        run / "scenes" / "validation" / "data" / harm
    )
    file.write_text(file.read_text().replace('"0.png"', json.dumps(harm)))
    assert run_here(main, "report", run).returncode == 0
    page = (run / "report.html").read_text("utf-8")
    assert "<b onclick" not in page and "&lt;b onclick=alert(1)&gt;.png" in page


@pytest.mark.parametrize("kind", ["missing", "empty folder", "foreign folder", "file", "pickle"])
def test_what_is_no_run_is_refused_in_one_line(
    kind: str, tmp_path: Path, run_here: RunHere
) -> None:
    path = tmp_path / ("weights.pth" if kind == "pickle" else "thing")
    if kind.endswith("folder"):
        path.mkdir()
    if kind == "foreign folder":
        (path / "metrics.jsonl").write_text("{}\n")
    if kind in ("file", "pickle"):
        path.write_text("text")
    done = run_here(main, "report", path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert str(path) in done.stderr and "checkpoint" in done.stderr
    assert not list(tmp_path.rglob("*.html"))


@pytest.mark.parametrize("words", [["report"], ["evaluate", "--checkpoint"]])
def test_wrong_path_is_refused_before_torch_is_loaded(words: list[str], tmp_path: Path) -> None:
    command = (sys.executable, "-m", "retinanet", *words, str(tmp_path))
    done = run_program(*command, PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 2 and f"{tmp_path}: contains no checkpoint" in done.stderr
    assert " pathlib\n" in done.stderr
    assert [name for name in (" torch\n", " numpy\n") if name in done.stderr] == []


def test_annotations_need_images(run: Path, run_here: RunHere) -> None:
    done = run_here(main, "report", run, "--annotations", "a.json", "--out", run / "b.html")
    assert done.returncode == 2 and "--images" in done.stderr


@pytest.mark.slow
def test_detector_runs_on_other_images(detector: Path, tmp_path: Path, run_here: RunHere) -> None:
    write_split(tmp_path / "mine", TRUTH)
    page, numbers = tmp_path / "page.html", tmp_path / "page.json"
    annotations = tmp_path / "mine" / "labels" / "openimages-mlperf.json"
    options = ["--annotations", annotations, "--images", tmp_path / "mine" / "data"]
    done = run_here(main, "report", detector, *options, "--out", page, "--json", numbers)
    assert (done.returncode, done.stderr) == (0, "")
    assert "evaluation, images 4/4" in done.stdout and "that were given" in done.stdout
    content = json.loads(numbers.read_text())
    evaluated = tmp_path / "map.json"
    evaluate = ["--checkpoint", detector, *options, "--json", evaluated]
    assert run_here(main, "evaluate", *evaluate).returncode == 0
    metric = json.loads(evaluated.read_text())
    assert content["metrics"] == {name: metric[name] for name in content["metrics"]}
    assert sum(content["boxes"].values()) > 0 and content["true_boxes"] == 5


def test_picture_stays_below_its_limit() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (700, 900, 3), dtype=np.uint8)
    content, size = as_jpeg(noise)
    assert len(content) <= MOST_BYTES and size[0] < 900
    with Image.open(io.BytesIO(content)) as picture:
        assert picture.size == size
    flat, size = as_jpeg(np.full((480, 640, 3), 200, np.uint8))
    assert size == (640, 480) and len(base64.b64encode(flat)) < 10_000
