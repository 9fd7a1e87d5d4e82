import dataclasses
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from common.errors import InputError
from data.annotations import ClassMap
from launch.process_group import ProcessGroup
from retinanet.config_types import find_checkpoint
from retinanet.engine.optimizers import make_optimizer
from retinanet.model.retinanet import RetinaNet
from retinanet.training.checkpoint import (
    Contents,
    copies,
    file_digest,
    newest_valid,
    optimizer_state,
    optimizer_tensors,
    point_to,
    read_checkpoint,
    write_checkpoint,
)
from retinanet.training.checkpointer import gathered
from retinanet.training.progress import Progress
from retinanet.training.train_state import (
    Part,
    digest,
    load_rank_state_dict,
    random_states,
    read_state,
    restore_random_states,
    seed_everything,
    state_text,
)
from tests.support import states
from tests.support.commands import error_message
from tests.support.states import MODEL

CLASSES = ClassMap((7, 3), ("seven", "three"))
DESCRIPTION = dataclasses.replace(MODEL, num_classes=2, classes=CLASSES.to_json())
POSITION = Progress(step=12, epoch=2, images=4, images_per_epoch=10, map_here=None, best_map=0.25)
STATE = dataclasses.replace(
    states.STATE, model=DESCRIPTION, position=POSITION, config={"run": {"name": "a run"}}
)


SLOTS = {
    "adam": {"step", "exp_avg", "exp_avg_sq"},
    "adamw": {"step", "exp_avg", "exp_avg_sq"},
    "lamb": {"step", "exp_avg", "exp_avg_sq"},
    "sgd": set[str](),
    "sgd with momentum": {"momentum_buffer"},
}
"""Tensors of each parameter in a checkpoint."""


class Saved(NamedTuple):
    """A checkpoint, its model and optimizer, and the next random numbers."""

    folder: Path
    model: RetinaNet
    optimizer: Optimizer
    drawn: Tensor


def new_model(*, num_classes: int = 2, trainable_layers: int = 0) -> tuple[RetinaNet, Optimizer]:
    model = RetinaNet(num_classes=num_classes, norm="frozen", trainable_layers=trainable_layers)
    # As runs have it; the optimizer's state must come back in the same layout.
    model = model.to(memory_format=torch.channels_last)
    return model, make_optimizer(model, name="adam", learning_rate=1e-4)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Saved]:
    """Return a checkpoint after two steps with generated gradients."""
    root = tmp_path_factory.mktemp("run")
    before = random_states()
    seed_everything(5)
    model, optimizer = new_model()
    for _ in range(2):
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    optimizer.zero_grad()
    folder = root / "checkpoints" / "step-000012"
    folder.parent.mkdir()
    contents = gathered(ProcessGroup(), model, optimizer, STATE)
    assert contents is not None
    write_checkpoint(folder, contents)
    point_to(folder.parent / "last", folder)
    drawn = torch.rand(4)
    restore_random_states(before)
    yield Saved(folder, model, optimizer, drawn)
    shutil.rmtree(root)  # 260 MB


@pytest.fixture
def copy(saved: Saved, tmp_path: Path) -> Path:
    """A checkpoint whose files may be replaced, not written into: they are links."""
    shutil.copytree(saved.folder, tmp_path / "copy", copy_function=os.link)
    return tmp_path / "copy"


def replace(file: Path, content: bytes) -> None:
    file.unlink()
    file.write_bytes(content)


def state_with(copy: Path, **changes: Any) -> None:
    """Replace the state and its SHA-256, as a hostile or a newer writer would."""
    state = json.loads((copy / "state.json").read_text())
    del state["sha256"]
    state |= changes
    replace(copy / "state.json", json.dumps({"sha256": digest(state), **state}).encode())


def part_with(copy: Path, name: str, content: bytes) -> None:
    """Replace a part and its SHA-256."""
    replace(copy / name, content)
    state = read_state(copy)
    part = Part(sha256=file_digest(copy / name), bytes=len(content))
    text = state_text(dataclasses.replace(state, parts={**state.parts, name: part}))
    replace(copy / "state.json", text.encode())


def refusal(copy: Path, file: str) -> str:
    """Return the one-line error of reading everything, which names the file."""
    message = error_message(lambda: read_checkpoint(copy).load_training_state(*new_model()))
    assert message.startswith(f"{copy / file}: ")
    return message


@pytest.mark.slow
def test_weights_optimizer_and_random_states_are_restored_bit_for_bit(saved: Saved) -> None:
    torch.manual_seed(99)
    model, optimizer = new_model()
    before = random_states()
    checkpoint = read_checkpoint(saved.folder)
    checkpoint.load_training_state(model, optimizer)
    [state] = checkpoint.rank_states()
    load_rank_state_dict(state, model)
    drawn = torch.rand(4)
    restore_random_states(before)
    expected, restored = saved.model.state_dict(), model.state_dict()
    assert list(restored) == list(expected)
    assert all(torch.equal(restored[name], expected[name]) for name in expected)
    weight = model.backbone.body.layer1[0].conv1.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    slots = saved.optimizer.state_dict()["state"]
    restored_slots = optimizer.state_dict()["state"]
    assert slots.keys() == restored_slots.keys() and slots
    for index in slots:
        assert slots[index].keys() == restored_slots[index].keys() == SLOTS["adam"]
        for name, value in slots[index].items():
            assert torch.equal(value, restored_slots[index][name])
    assert torch.equal(drawn, saved.drawn)


def test_folder_that_has_gone_is_not_made_again(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_checkpoint(tmp_path / "run" / "checkpoints" / "step-000001", Contents({}, STATE))
    assert list(tmp_path.iterdir()) == []


def test_position_description_and_config_are_restored(saved: Saved) -> None:
    checkpoint = read_checkpoint(saved.folder)
    assert (checkpoint.model, checkpoint.position) == (DESCRIPTION, POSITION)
    assert (checkpoint.state.config, checkpoint.state.setup) == (STATE.config, STATE.setup)
    assert checkpoint.folder == saved.folder
    assert ClassMap.from_json(checkpoint.model.classes) == CLASSES
    names = {file.name for file in saved.folder.iterdir()}
    assert names == {"model.safetensors", "optimizer.safetensors", "state.json"}
    assert {file.name for file in saved.folder.parent.iterdir()} == {"step-000012", "last"}


@pytest.mark.slow
def test_model_is_built_from_the_checkpoint_alone(saved: Saved) -> None:
    model = read_checkpoint(saved.folder).build_model()
    weights, expected = model.state_dict(), saved.model.state_dict()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    weight = model.backbone.body.layer1[0].conv1.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_run_checkpoint_and_file_in_it_all_lead_to_the_checkpoint(
    saved: Saved, tmp_path: Path
) -> None:
    run = saved.folder.parent.parent
    for path in (
        run,
        run / "checkpoints",
        run / "checkpoints" / "last",
        saved.folder,
        saved.folder / "model.safetensors",
        saved.folder / "state.json",
    ):
        assert find_checkpoint(path).resolve() == saved.folder.resolve(), path


def test_best_checkpoint_comes_before_the_last(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    for step in (1, 2, 3):
        (checkpoints / f"step-{step}").mkdir(parents=True)
        (checkpoints / f"step-{step}" / "state.json").write_text("{}")
    point_to(checkpoints / "last", checkpoints / "step-3")
    assert find_checkpoint(tmp_path).resolve().name == "step-3"
    point_to(checkpoints / "best", checkpoints / "step-1")
    point_to(checkpoints / "best", checkpoints / "step-2")  # a link that is there is replaced
    assert find_checkpoint(tmp_path).resolve().name == "step-2"
    moved = tmp_path.rename(tmp_path.with_name("moved"))  # links are relative
    assert find_checkpoint(moved).resolve().name == "step-2"


def test_path_without_checkpoint_is_refused(tmp_path: Path) -> None:
    for path, reason in ((tmp_path, "contains no checkpoint"), (tmp_path / "no", "does not exist")):
        with pytest.raises(InputError, match=reason) as caught:
            read_checkpoint(path)
        assert str(caught.value).startswith(f"{path}: ")


def require_refusal(copy: Path, file: str) -> None:
    """Require that checking the parts, without building a model, shows the damage."""
    message = error_message(lambda: read_checkpoint(copy).require_complete())
    assert message.startswith(f"{copy / file}: ")


STEPS = (-1, 2**70, 1.5, "7", None, True)
FILES = ("model.safetensors", "optimizer.safetensors", "state.json")


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("share", [0, 0.3, 0.999999])
def test_damaged_file_is_named(copy: Path, file: str, share: float) -> None:
    content = (copy / file).read_bytes()
    place = min(int(len(content) * share), len(content) - 1)
    replace(copy / file, content[:place])
    require_refusal(copy, file)
    flipped = bytearray(content)
    flipped[place] ^= 4
    replace(copy / file, bytes(flipped))
    require_refusal(copy, file)
    if file != "state.json":  # without it there is no checkpoint
        (copy / file).unlink()
        require_refusal(copy, file)


@pytest.mark.slow
def test_part_that_is_not_safetensors_is_refused(copy: Path) -> None:
    part_with(copy, "optimizer.safetensors", b"something else")
    assert "cannot be read: " in refusal(copy, "optimizer.safetensors")


@pytest.mark.slow
def test_classes_are_compared_with_the_weights_before_a_model_is_built(copy: Path) -> None:
    description = json.loads((copy / "state.json").read_text())["model"]
    for count, named in ((99_999, "is not that of 99,999 classes"), (100_000, "num_classes: ")):
        names = [str(number) for number in range(count)]
        classes = {"category_ids": list(range(count)), "names": names}
        state_with(copy, model=description | {"num_classes": count, "classes": classes})
        message = error_message(lambda: read_checkpoint(copy).build_model())
        assert message.startswith(str(copy)) and named in message


def test_newest_whole_checkpoint_is_found_and_newer_ones_are_named(
    saved: Saved, tmp_path: Path
) -> None:
    for step in (9, 10, 11, 12):
        target = tmp_path / f"step-{step:06d}"
        shutil.copytree(saved.folder, target, copy_function=os.link)
    (tmp_path / "step-000012" / "state.json").unlink()
    replace(tmp_path / "step-000011" / "optimizer.safetensors", b"cut")
    (tmp_path / ".step-000013.partial").mkdir()
    checkpoint, problems = newest_valid(tmp_path)
    assert checkpoint is not None and checkpoint.folder == tmp_path / "step-000010"
    assert [problem.partition(": ")[0] for problem in problems] == [
        str(tmp_path / "step-000012" / "state.json"),
        str(tmp_path / "step-000011" / "optimizer.safetensors"),
    ]
    assert newest_valid(tmp_path / "nowhere") == (None, [])


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[]", b"null", b"[" * 100_000, b'{"a":' * 100_000]
)
def test_state_that_is_not_a_json_object_is_refused(copy: Path, content: bytes) -> None:
    replace(copy / "state.json", content)
    assert "; use another checkpoint" in refusal(copy, "state.json")


PART = {"sha256": 64 * "0", "bytes": 1}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        *[({"parts": {name: PART}}, "parts") for name in ("../x.safetensors", "/etc/a", "a b")],
        ({"parts": {}}, "model.safetensors"),
        ({"format": 1}, "format 1"),
        ({"model": {"unknown": 1}}, "unknown"),
        ({"position": {"unknown": 1}}, "unknown"),
        ({"random_states": [3]}, "random_states"),
        ({"random_states": 5}, "random_states"),
        *[({"position": {"step": step}}, "position.step") for step in STEPS],
        ({"model": {"num_classes": 3}}, "model.classes: "),
        ({"model": {"classes": {"category_ids": [1], "names": []}}}, "classes"),
        ({"model": {"classes": {"category_ids": [7], "names": ["seven"]}}}, "model.classes: "),
        ({"config": {"data": {"image_size": 128}}}, "model.image_size: "),
        ({"position": {"best_map": 5.0}}, "position.best_map: "),
        ({"position": {"best_map": float("nan")}}, "position.best_map: "),
        ({"position": {"map_here": -0.5}}, "position.map_here: "),
        ({"position": {"map_here": 0.5}}, "position.best_map: "),
        ({"position": {"map_here": 0.5, "best_map": None}}, "position.best_map: "),
        ({"position": {"images": 11}}, "position.images: "),
        ({"position": {"step": 0, "epoch": 0}}, "position.images: "),
        ({"position": {"epoch": 13}}, "position.epoch: "),
        ({"position": {"skipped_steps": 13}}, "position.skipped_steps: "),
        ({"position": {"evaluations_since_best": 13}}, "position.evaluations_since_best: "),
        ({"setup": {"ranks": 0}}, "setup.ranks: "),
        ({"setup": {"ranks": None}}, "setup.ranks: "),
        ({"setup": {"ranks": True}}, "setup.ranks: "),
        ({"setup": {"ranks": 2}}, "random_states: "),
        ({"random_states": []}, "random_states: "),
        ({"random_states": [{}]}, "random_states.0.numpy: "),
    ],
)
def test_invalid_state_is_refused(copy: Path, changes: dict[str, Any], field: str) -> None:
    state = json.loads((copy / "state.json").read_text())
    for section, content in changes.items():
        is_update = isinstance(content, dict) and section != "parts"
        state[section] = {**state[section], **content} if is_update else content
    state_with(copy, **{section: state[section] for section in changes})
    assert field in refusal(copy, "state.json")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "value"),
    [("model.safetensors", float("nan")), ("optimizer.safetensors", -float("inf"))],
)
def test_value_that_is_not_finite_is_refused_with_the_tensors_name(
    copy: Path, file: str, value: float
) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(copy / file).items()}
    name = next(name for name, tensor in reversed(tensors.items()) if tensor.dim() == 4)
    tensors[name].flatten()[-1] = value
    part_with(copy, file, save(tensors))
    assert f": {name} contains a value that is not finite" in refusal(copy, file)
    _, [problem] = newest_valid(in_checkpoints(copy))
    assert problem.startswith(f"{copy.with_name('step-000012') / file}: {name} ")


def in_checkpoints(copy: Path) -> Path:
    """Rename a copy to a checkpoint; return its parent."""
    copy.rename(copy.with_name("step-000012"))
    return copy.parent


def test_checkpoint_without_optimizer_is_not_whole(copy: Path) -> None:
    parts = json.loads((copy / "state.json").read_text())["parts"]
    state_with(copy, parts={"model.safetensors": parts["model.safetensors"]})
    _, [problem] = newest_valid(in_checkpoints(copy))
    assert "does not list optimizer.safetensors" in problem


def small_checkpoint(folder: Path, *, norm: str, ranks: int, statistics: str = "") -> Path:
    """Write a checkpoint of one weight; `statistics` names a tensor of `0`, `1` … each."""
    files = {"model.safetensors": ["a"], "optimizer.safetensors": ["a/exp_avg"]}
    if statistics:
        files["ranks.safetensors"] = statistics.split()
    folder.mkdir()
    parts = {}
    for name, tensors in files.items():
        content = save({tensor: torch.ones(2) for tensor in tensors})
        (folder / name).write_bytes(content)
        parts[name] = Part(sha256=file_digest(folder / name), bytes=len(content))
    state = dataclasses.replace(
        STATE,
        model=dataclasses.replace(DESCRIPTION, norm=norm),
        setup={"ranks": ranks},
        random_states=[random_states()] * ranks,
        parts=parts,
    )
    (folder / "state.json").write_text(state_text(state))
    return folder


@pytest.mark.parametrize(
    ("norm", "ranks", "is_whole"), [("batch", 2, False), ("batch", 1, True), ("frozen", 2, True)]
)
def test_several_ranks_whose_norms_train_need_their_statistics(
    tmp_path: Path, norm: str, ranks: int, is_whole: bool
) -> None:
    folder = small_checkpoint(tmp_path / "alone", norm=norm, ranks=ranks)
    if is_whole:
        read_checkpoint(folder).require_complete()
    else:
        message = error_message(read_checkpoint(folder).require_complete)
        assert "state.json: does not list ranks.safetensors" in message
    folder = small_checkpoint(tmp_path / "all", norm=norm, ranks=ranks, statistics="0/mean 1/mean")
    read_checkpoint(folder).require_complete()


def test_statistics_of_different_norms_are_refused(tmp_path: Path) -> None:
    folder = small_checkpoint(tmp_path / "a", norm="batch", ranks=2, statistics="0/mean 1/mean")
    assert [set(state.statistics) for state in read_checkpoint(folder).rank_states()] == [
        {"mean"},
        {"mean"},
    ]
    folder = small_checkpoint(tmp_path / "b", norm="batch", ranks=2, statistics="0/mean 1/var")
    message = error_message(read_checkpoint(folder).rank_states)
    assert message == f"{folder}/ranks.safetensors: ranks have statistics of different norms"


@pytest.mark.slow
def test_reading_keeps_no_file_mapped(copy: Path) -> None:
    model, optimizer = new_model()
    read_checkpoint(copy).require_complete()
    read_checkpoint(copy).load_training_state(model, optimizer)
    ranks = read_checkpoint(copy).rank_states()
    shutil.rmtree(copy)
    mapped = Path("/proc/self/maps").read_text()
    assert "safetensors" not in "".join(line for line in mapped.splitlines() if "copy" in line)
    assert optimizer.state_dict()["state"] and ranks


@pytest.mark.slow
def test_checkpoint_of_another_model_is_refused(saved: Saved) -> None:
    checkpoint = read_checkpoint(saved.folder)
    with pytest.raises(InputError, match=r"model\.safetensors: does not fit") as caught:
        checkpoint.load_training_state(*new_model(num_classes=5))
    assert "cls_logits" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.slow
def test_optimizer_of_other_parameters_is_refused(copy: Path) -> None:
    tensors = load_file(copy / "optimizer.safetensors")
    dropped = next(name for name in tensors if name.endswith("exp_avg_sq"))
    incomplete = {name: value for name, value in tensors.items() if name != dropped}
    part_with(copy, "optimizer.safetensors", save(incomplete))
    assert dropped in refusal(copy, "optimizer.safetensors")
    frozen = {"backbone.body.conv1.weight/exp_avg": torch.zeros(64, 3, 7, 7)}
    part_with(copy, "optimizer.safetensors", save(frozen))
    assert "backbone.body.conv1.weight does not train" in refusal(copy, "optimizer.safetensors")


def test_huge_state_is_not_read(copy: Path) -> None:
    (copy / "state.json").unlink()
    with (copy / "state.json").open("wb") as file:
        file.truncate(10**12)  # takes no room
    assert "larger than 64,000,000 bytes" in refusal(copy, "state.json")


def small_model() -> nn.Module:
    """Return convolutions in channels_last memory, as in a run; one of them is frozen."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 9, 3), nn.ReLU(), nn.Conv2d(9, 4, 1))
    model[0].requires_grad_(False)
    return model.to(memory_format=torch.channels_last)


def train(model: nn.Module, optimizer: Optimizer, *, first: int, steps: int) -> None:
    """Take steps on images that depend on the number of the step."""
    for step in range(first, first + steps):
        images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(step))
        model(images).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("name", ["adam", "adamw", "lamb", "sgd", "sgd with momentum"])
def test_training_continues_bit_for_bit_from_a_file(
    name: str, before: int, fused: bool, tmp_path: Path
) -> None:
    def start() -> tuple[nn.Module, Optimizer]:
        model = small_model()
        return model, make_optimizer(
            model,
            name=name.split(maxsplit=1)[0],
            learning_rate=0.01,
            momentum=0.9 if "momentum" in name else 0.0,
            weight_decay=0.1,
            body_parameters=2,
            body_factor=0.5 if name == "adamw" else 1.0,
            fused=fused,
        )

    file = tmp_path / "optimizer.safetensors"
    model, optimizer = start()
    train(model, optimizer, first=0, steps=before)
    tensors = copies(optimizer_tensors(model, optimizer))
    assert {key.rpartition("/")[2] for key in tensors} == (SLOTS[name] if before else set())
    assert all(key.startswith(("1.", "3.")) for key in tensors)
    save_file(tensors, file)
    other, other_optimizer = start()
    other.load_state_dict(model.state_dict())
    state = optimizer_state(load_file(file), other, source=str(file))
    groups = other_optimizer.state_dict()["param_groups"]
    other_optimizer.load_state_dict({"state": state, "param_groups": groups})
    train(model, optimizer, first=before, steps=3)
    train(other, other_optimizer, first=before, steps=3)
    assert not torch.equal(weights(model)[-1], weights(small_model())[-1])
    assert all(map(torch.equal, weights(other), weights(model)))
