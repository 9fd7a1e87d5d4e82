"""`retinanet launch groups`: the whole command with fake trainings, and real ones under mpirun."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from common.errors import InputError
from launch.__main__ import main
from launch.hosts import Where
from profiling.studies import async_groups
from profiling.studies.async_groups import (
    COLD_START,
    GroupsOptions,
    Setting,
    Study,
    cold_start,
    probe,
    train,
    whole,
)
from retinanet.config_file import load_config
from tests.launch.ranks import REPOSITORY
from tests.support.commands import RunHere, error_line
from tests.support.processes import wait_until_gone

SMALL = (
    *("data.scenes={train: 16, validation: 2}", "data.image_size=64", "training.batch_size=1"),
    *("engine.precision=float32", "training.warmup_epochs=0"),
    *("launch.threads=1", "distributed.timeout_s=60"),
)


def study_in(folder: Path, *overrides: str) -> Study:
    settings = [*SMALL, *overrides]
    options = GroupsOptions(ranks=2, out=folder, overrides=settings, where=Where())
    return Study(options, load_config("demo.yaml", settings))


def nothing(done: int, note: str) -> None:
    """Show no progress."""


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, int]:
    """Run a cold start; return the study and the number of its steps."""
    study = study_in(tmp_path_factory.mktemp("groups"))
    return study, cold_start(study, seconds=1, advance=nothing)


@pytest.mark.exhaustive
@pytest.mark.whole_machine
def test_probe_continues_a_copy_of_the_cold_start(begun: tuple[Study, int]) -> None:
    study, step = begun
    assert step > 0
    before = (study.folder / "cold-start" / "metrics.jsonl").read_bytes()
    records = probe(study, Setting(2, 0.3, 0.1), seconds=1, after_step=step, advance=nothing)
    assert min(record["step"] for record in records) == step + 1
    assert {record["group"] for record in records} == {0, 1}
    assert [record["learning_rate"] for record in records] == [pytest.approx(3e-5)] * len(records)
    assert "beta1 0.3" in (study.folder / "groups2-beta0.3-rate0.1.log").read_text()
    assert not (study.folder / "groups2-beta0.3-rate0.1" / "checkpoints").exists()
    assert (study.folder / "cold-start" / "metrics.jsonl").read_bytes() == before
    assert cold_start(study, seconds=1, advance=nothing) == step  # not again


@pytest.mark.exhaustive
@pytest.mark.whole_machine
def test_whole_training_continues_the_cold_start_to_the_end(begun: tuple[Study, int]) -> None:
    study, cold = begun
    epochs = 2 * cold // 16 + 1  # a step of the cold start has two images, an epoch 16
    overrides = (f"training.epochs={epochs}", f"evaluation.every={epochs}")
    records = whole(study_in(study.folder, *overrides), Setting(2, 0.4), advance=nothing)
    steps = [record for record in records if record["kind"] == "step"]
    assert [step["step"] for step in steps if "group" not in step] == list(range(1, cold + 1))
    assert sum(step["images"] for step in steps) == 16 * epochs
    assert records[-1]["kind"] == "evaluation"


@pytest.mark.exhaustive
@pytest.mark.whole_machine
def test_ctrl_c_stops_the_training_after_a_checkpoint(tmp_path: Path) -> None:
    command = ["-m", "launch", "groups", "--np", "2", "--out", str(tmp_path), *SMALL]
    started = subprocess.Popen(
        [sys.executable, *command], cwd=REPOSITORY, stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 90
    metrics = tmp_path / "cold-start" / "metrics.jsonl"
    while not metrics.exists() or '"kind": "step"' not in metrics.read_text():
        assert time.monotonic() < end and started.poll() is None
        time.sleep(0.1)
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=60)
    assert started.returncode == 130 and "Traceback" not in errors
    assert "stopping; the training finishes its step" in errors
    wait_until_gone(f"run.root={tmp_path}")
    assert (tmp_path / "cold-start" / "checkpoints" / "last").exists()


def test_failed_training_is_named_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "print('epoch 1'); print('error: data.root: nowhere'); raise SystemExit(2)"
    monkeypatch.setattr(Study, "launcher", lambda *_: [sys.executable, "-c", program])
    with pytest.raises(InputError, match=r"^data\.root: nowhere$"):
        train(study_in(tmp_path), tmp_path / "run", (), is_enough=lambda records: False)


@pytest.fixture
def fake_trainings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Replace trainings by records of steps whose loss depends on momentum and learning rate."""
    trainings: list[tuple[str, ...]] = []

    def fake_train(study: Study, run: Path, options: tuple[str, ...], **_: Any) -> None:
        trainings.append(tuple(options))
        settings = dict(option.partition("=")[::2] for option in options)
        groups = int(settings.get("distributed.groups", 1))
        loss = 1.0 + float(settings.get("training.beta1", 0.9)) / groups
        loss += abs(float(settings.get("training.learning_rate", 3e-4)) - 9e-5) * 1e3
        file = run / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        first = len(lines) + 1
        for step in range(first, first + 20):
            record = {"kind": "step", "step": step, "epoch": 1, "loss": loss, "images": 2}
            record |= {"seconds": 1.0}
            if groups > 1:
                record |= {"group": step % groups, "staleness": 1}
            lines.append(json.dumps(record))
        if "--auto-resume" in options and run.name != COLD_START:
            evaluation = {"kind": "evaluation", "epoch": 2, "seconds": 5.0, "step": first}
            lines.append(json.dumps(evaluation | {"map": 0.7 / groups, "map_50": 0.9}))
        run.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines) + "\n")

    monkeypatch.setattr(async_groups, "train", fake_train)
    return trainings


@pytest.mark.slow
def test_search_chooses_trains_and_continues(
    run_here: RunHere, tmp_path: Path, fake_trainings: list[tuple[str, ...]]
) -> None:
    seconds = ("--seconds", "10", "--cold-start", "10")
    options = ("--np", "2", "--out", tmp_path, *seconds, "--whole", "training.target_map=0.6")
    done = run_here(main, "groups", *options)
    assert done.returncode == 0, done.stderr
    # The cold start, 4 learning rates of plain training, 4 × 4 of two groups, 3 whole trainings.
    assert len(fake_trainings) == 1 + 4 + 16 + 3
    assert "best: 2 groups, beta1 0, learning rate × 0.3" in done.stdout
    assert "fastest to the target: 1 group, beta1 0.9" in done.stdout
    assert "2 groups, beta1 0: target not reached, best mAP 0.350" in done.stdout
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("probes.png", "trained.png"))
    stored = json.loads((tmp_path / "probes.json").read_text())
    assert len(stored["probes"]) == 20 and len(stored["trained"]) == 3
    assert run_here(main, "groups", *options).stdout == done.stdout
    assert len(fake_trainings) == 24  # nothing is repeated


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--np", "1", "--out", "{folder}"], "groups need at least 2 ranks"),
        (["--np", "2"], "the following arguments are required: --out"),
        (["--np", "2", "--out", "{folder}", "trainig.epochs=1"], "did you mean training"),
        (["--np", "2", "--out", "{folder}", "--mpirun", "/nowhere"], "/nowhere"),
    ],
)
def test_wrong_arguments_are_refused(
    run_here: RunHere, tmp_path: Path, arguments: list[str], error: str
) -> None:
    done = run_here(main, "groups", *(text.format(folder=tmp_path) for text in arguments))
    assert done.returncode == 2
    assert error in done.stderr.strip().splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        (
            "out/probes.json",
            '{"about": {"config": "coco.yaml"}, "probes": [], "trained": []}',
            "/probes.json: config was coco.yaml, is now demo.yaml; give another --out",
        ),
        ("out/photos", "", ": contains photos, but no probes.json; give another --out"),
        ("out", "mine", "/probes.json: cannot be written: "),
    ],
)
def test_folder_of_others_is_refused(
    name: str, content: str, error: str, run_here: RunHere, tmp_path: Path
) -> None:
    file, out = tmp_path / name, tmp_path / "out"
    file.parent.mkdir(exist_ok=True)
    file.write_text(content)
    line = error_line(run_here(main, "groups", "--np", "2", "--out", out))
    assert line.startswith(f"error: {out}{error}")
    assert file.read_text() == content and (out.is_file() or [*out.iterdir()] == [file])
