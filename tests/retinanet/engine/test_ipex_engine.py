import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.optim import SGD

from common.errors import InputError
from retinanet.engine.engines import PACKAGE, chosen_engine, import_ipex, prepare_training
from retinanet.model.retinanet import RetinaNet
from retinanet.training.checkpoint import read_checkpoint
from tests.launch.ranks import TrainHere
from tests.support.commands import run_program
from tests.support.fast_precision import needs_bf16

REPOSITORY = Path(__file__).resolve().parents[3]
SETTINGS = [
    "engine=ipex",
    "data.scenes={train: 6, validation: 2}",
    "data.image_size=96",
    "training.batch_size=2",
    "training.warmup_epochs=0",
    "training.schedule=constant",
    "evaluation.every=9",
    "evaluation.pictures=0",
]


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}
    return run_program(sys.executable, *arguments, env=environment, timeout=240)


@pytest.fixture(scope="module")
def steps() -> dict[str, Any]:
    """Return the output of `compare_engines.py`."""
    outcome = run_python(str(Path(__file__).with_name("compare_engines.py")))
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)


def assert_equal_but_for_rounding(errors: dict[str, float]) -> None:
    """An activation rounded to the other side of zero changes a few gradients."""
    assert len(errors) > 50
    assert median(errors.values()) < 3e-4  # 1.6e-4 with oneDNN's kernels for AVX2
    assert not {name: error for name, error in errors.items() if not error < 0.03}


FLOAT32 = ["frozen-4-float32", "batch-4-float32"]
BF16 = ["frozen-4-bf16", "frozen-3-bf16"]


@pytest.mark.ipex
@pytest.mark.parametrize("case", FLOAT32)
def test_float32_losses_and_gradients_are_the_torch_engines(
    case: str, steps: dict[str, Any]
) -> None:
    step = steps[case]
    assert step["losses"] == pytest.approx(step["torch_losses"], rel=1e-5)
    assert_equal_but_for_rounding(step["gradients"])


@pytest.mark.ipex
@needs_bf16
@pytest.mark.parametrize("case", BF16)
def test_bf16_is_as_near_to_float32_as_the_torch_engines(case: str, steps: dict[str, Any]) -> None:
    step = steps[case]
    assert step["losses"] == pytest.approx(step["torch_losses"], rel=5e-3)
    assert 1e-4 < step["from_float32"] < 2 * step["torch_from_float32"] < 0.2


@pytest.mark.ipex
@pytest.mark.parametrize(
    ("name", "slots"),
    [
        ("adam", {"exp_avg", "exp_avg_sq", "step"}),
        ("lamb", {"exp_avg", "exp_avg_sq", "step"}),
        ("sgd", {"momentum_buffer"}),
    ],
)
def test_an_optimizer_keeps_the_moments_of_the_torch_engine(
    name: str, slots: set[str], steps: dict[str, Any]
) -> None:
    assert {key.rpartition("/")[2] for key in steps[name]} == slots
    assert_equal_but_for_rounding(steps[name])


@pytest.mark.ipex
def test_evaluating_in_between_changes_no_loss(steps: dict[str, Any]) -> None:
    before, while_evaluating, after = steps["evaluating"]
    assert before == after
    assert while_evaluating == pytest.approx(before, rel=1e-3)


def train(folder: Path, *settings: str) -> Path:
    """Train in BF16 by `train.py`, and return the last checkpoint."""
    # One thread, so that sums are in one order.
    arguments = ("train.py", *SETTINGS, f"run.root={folder.parent}", *settings)
    outcome = run_python(*arguments, OMP_NUM_THREADS="1")
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stderr == "", "IPEX talks at every start"
    assert "engine ipex" in " ".join(outcome.stdout.split())
    return folder / "checkpoints" / "last"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The last checkpoint of a run of three steps."""
    root = tmp_path_factory.mktemp("runs")
    yield train(root / "whole", "run.name=whole", "training.max_steps=3")
    shutil.rmtree(root)  # a checkpoint has 400 MB


@pytest.mark.ipex
def test_a_checkpoint_loads_into_the_torch_engine(undisturbed: Path) -> None:
    checkpoint = read_checkpoint(undisturbed)
    model = checkpoint.build_model()  # strict: every name and shape
    stored = load_file(undisturbed / "model.safetensors")
    floating = [tensor for tensor in stored.values() if tensor.is_floating_point()]
    assert {tensor.dtype for tensor in floating} == {torch.float32}
    # Trained weights have more digits than BF16 holds.
    weight = stored["head.regression_head.bbox_reg.weight"]
    assert not torch.equal(weight, weight.bfloat16().float())
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trainable, fused=True)
    checkpoint.load_training_state(model, optimizer)
    prepared = prepare_training(model, optimizer, engine="torch", precision="bf16")
    assert torch.isfinite(prepared.forward(torch.zeros(1, 3, 96, 96)).cls_logits[0]).all()


@pytest.mark.ipex
def test_a_resumed_run_ends_with_the_weights_of_an_undisturbed_one(undisturbed: Path) -> None:
    folder = undisturbed.parents[2] / "pieces"
    train(folder, "run.name=pieces", "training.max_steps=1")
    pieces = train(folder, "run.name=pieces", "training.max_steps=3", "--resume")
    for file in ("model.safetensors", "optimizer.safetensors"):
        expected, resumed = load_file(undisturbed / file), load_file(pieces / file)
        assert resumed.keys() == expected.keys()
        differing = {name for name in resumed if not torch.equal(resumed[name], expected[name])}
        assert not differing, file
    assert resumed["head.regression_head.bbox_reg.weight/step"] == 3


def test_auto_is_the_torch_engine_without_ipex() -> None:
    assert chosen_engine("auto") == "torch"
    with torch.device("meta"):
        model = RetinaNet(num_classes=2, norm="batch", trainable_layers=5)
    optimizer = SGD(model.parameters(), lr=0.0)
    prepared = prepare_training(model, optimizer, engine=chosen_engine("auto"), precision="float32")
    assert prepared.model is model and prepared.optimizer is optimizer
    assert PACKAGE not in sys.modules


@pytest.mark.parametrize("check", [(), ("--check",)])
def test_selecting_ipex_without_its_package_ends_with_status_2(
    check: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train_here: TrainHere
) -> None:
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    done = train_here(*SETTINGS, f"run.root={tmp_path}", *check)
    assert done.code == 2
    [said] = [line for line in (done.output + done.errors).splitlines() if "error: " in line]
    assert "engine.name: ipex is not installed beside torch" in said
    assert "`make ipex`" in said and "`.venv-ipex/bin/retinanet train" in said
    assert not list(tmp_path.iterdir())


@pytest.fixture
def other_ipex(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of IPEX's name, found before the real one; the folder that it lies in."""
    (tmp_path / PACKAGE).mkdir()
    (tmp_path / PACKAGE / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def install(folder: Path, *, release: str, code: str = "") -> None:
    (folder / PACKAGE / "__init__.py").write_text(code)
    metadata = folder / f"{PACKAGE}-{release}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {release}\n")
    importlib.invalidate_caches()


def test_a_release_for_another_torch_is_refused_without_importing_it(other_ipex: Path) -> None:
    install(other_ipex, release="1.13.0", code="raise SystemExit(127)")
    with pytest.raises(InputError, match=r"ipex 1\.13\.0 does not work with torch") as caught:
        chosen_engine("ipex")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "code", ["raise SystemExit('no AVX2 here')", "raise ImportError('no\\nAVX2 here')"]
)
def test_an_ipex_that_does_not_load_is_an_error_of_one_line(code: str, other_ipex: Path) -> None:
    install(other_ipex, release=torch.__version__.partition("+")[0], code=code)
    with pytest.raises(InputError, match="cannot be loaded: no AVX2 here; run") as caught:
        import_ipex()
    assert "\n" not in str(caught.value)
