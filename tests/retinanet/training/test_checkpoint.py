import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

from data.classes import ClassMap
from retinanet.engine.optimizer import make_optimizer
from retinanet.errors import InputError
from retinanet.model import RetinaNet
from retinanet.training.checkpoint import (
    Checkpoint,
    ModelDescription,
    TrainingPosition,
    find_checkpoint,
    read_checkpoint,
)
from retinanet.training.checkpoint_files import point_to, remove_others, save_checkpoint
from retinanet.training.random_states import random_states, restore_random_states, seed_everything

CLASSES = ClassMap((7, 3), ("seven", "three"))
DESCRIPTION = ModelDescription(
    num_classes=2,
    norm="frozen",
    trainable_layers=0,
    image_size=64,
    precision="float32",
    classes=CLASSES.to_json(),
)
POSITION = TrainingPosition(step=12, steps_per_epoch=5, map_here=None, best_map=0.25)
CONFIG = {"run": {"name": "a run"}}


class Saved(NamedTuple):
    """A checkpoint, what it was made of, and what the generators draw after it."""

    folder: Path
    model: RetinaNet
    optimizer: Optimizer
    drawn: Tensor


def fresh(*, num_classes: int = 2, trainable_layers: int = 0) -> tuple[RetinaNet, Optimizer]:
    model = RetinaNet(num_classes=num_classes, norm="frozen", trainable_layers=trainable_layers)
    # As runs have it; the optimizer's state must come back in the same layout.
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model, make_optimizer(model, name="adam", learning_rate=1e-4)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Saved]:
    """After two steps with made-up gradients."""
    root = tmp_path_factory.mktemp("run")
    states, torch_state = random_states(), torch.get_rng_state()
    seed_everything(5)
    model, optimizer = fresh()
    for _ in range(2):
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    optimizer.zero_grad()
    folder = save_checkpoint(
        root / "checkpoints",
        model=model,
        optimizer=optimizer,
        description=DESCRIPTION,
        position=POSITION,
        config=CONFIG,
    )
    drawn = torch.rand(4)
    restore_random_states(states, torch_state)
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
    state = json.loads((copy / "state.json").read_text())
    replace(copy / "state.json", json.dumps({**state, **changes}).encode())


def refusal(copy: Path, file: str) -> str:
    """Reading everything is refused in one line that names the file."""
    with pytest.raises(InputError) as caught:
        read_checkpoint(copy).load_training_state(*fresh())
    message = str(caught.value)
    assert message.startswith(f"{copy / file}: ") and "\n" not in message
    return message


def test_weights_optimizer_and_random_states_come_back_bit_for_bit(saved: Saved) -> None:
    torch.manual_seed(99)
    model, optimizer = fresh()
    states, torch_state = random_states(), torch.get_rng_state()
    read_checkpoint(saved.folder).load_training_state(model, optimizer)
    drawn = torch.rand(4)
    restore_random_states(states, torch_state)
    expected = saved.model.state_dict()
    found = model.state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    slots = saved.optimizer.state_dict()["state"]
    found_slots = optimizer.state_dict()["state"]
    assert len(slots) == len(found_slots) > 0
    for index in slots:
        assert slots[index].keys() == found_slots[index].keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(slots[index][one], found_slots[index][one]) for one in slots[index])
    assert torch.equal(drawn, saved.drawn)


def test_the_next_step_is_the_one_that_would_have_been_taken(saved: Saved) -> None:
    model, optimizer = fresh()
    states, torch_state = random_states(), torch.get_rng_state()
    read_checkpoint(saved.folder).load_training_state(model, optimizer)
    restore_random_states(states, torch_state)
    before = {name: value.clone() for name, value in saved.model.state_dict().items()}
    slots = {
        index: {name: value.clone() for name, value in one.items()}
        for index, one in saved.optimizer.state_dict()["state"].items()
    }
    for one, its_optimizer in ((model, optimizer), (saved.model, saved.optimizer)):
        for parameter in one.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.full_like(parameter, 0.5)
        its_optimizer.step()
        its_optimizer.zero_grad()
    for found, expected in zip(model.parameters(), saved.model.parameters(), strict=True):
        assert torch.equal(found, expected)
    # Other tests compare with the checkpoint.
    saved.model.load_state_dict(before)
    groups = saved.optimizer.state_dict()["param_groups"]
    saved.optimizer.load_state_dict({"state": slots, "param_groups": groups})


def test_position_description_and_config_come_back(saved: Saved) -> None:
    found = read_checkpoint(saved.folder)
    assert (found.model, found.position, found.config) == (DESCRIPTION, POSITION, CONFIG)
    assert found.folder == saved.folder
    assert ClassMap.from_json(found.model.classes) == CLASSES


def test_the_model_is_built_from_the_checkpoint_alone(saved: Saved) -> None:
    model = read_checkpoint(saved.folder).build_model()
    found, expected = model.state_dict(), saved.model.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    weight = model.backbone.body.layer1[0].conv1.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_nothing_is_pickled_and_nothing_half_written_stays(saved: Saved) -> None:
    assert saved.folder.name == "step-000012"
    names = {file.name for file in saved.folder.iterdir()}
    assert names == {"model.safetensors", "optimizer.safetensors", "state.json"}
    assert {file.name for file in saved.folder.parent.iterdir()} == {"step-000012", "last"}
    assert (saved.folder.parent / "last").resolve() == saved.folder.resolve()


def test_a_run_a_checkpoint_and_a_file_in_it_mean_the_checkpoint(
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


def test_the_best_checkpoint_of_a_run_comes_before_its_last(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    for step in (1, 2, 3):
        (checkpoints / f"step-{step}").mkdir(parents=True)
        (checkpoints / f"step-{step}" / "state.json").write_text("{}")
    point_to(checkpoints / "last", checkpoints / "step-3")
    assert find_checkpoint(tmp_path).resolve().name == "step-3"
    point_to(checkpoints / "best", checkpoints / "step-1")
    point_to(checkpoints / "best", checkpoints / "step-2")  # a link that is there is replaced
    assert find_checkpoint(tmp_path).resolve().name == "step-2"
    remove_others(checkpoints)
    names = sorted(path.name for path in checkpoints.iterdir())
    assert names == ["best", "last", "step-2", "step-3"]


def test_links_still_hold_after_the_run_has_moved(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints" / "step-1").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "step-1" / "state.json").write_text("{}")
    point_to(tmp_path / "run" / "checkpoints" / "last", tmp_path / "run" / "checkpoints" / "step-1")
    (tmp_path / "run").rename(tmp_path / "moved")
    assert find_checkpoint(tmp_path / "moved").name == "last"


def test_a_path_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    for path, reason in ((tmp_path, "holds no checkpoint"), (tmp_path / "no", "does not exist")):
        with pytest.raises(InputError, match=reason) as caught:
            read_checkpoint(path)
        assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("size", [0, 5, 1000, -1])
def test_a_truncated_file_is_named(copy: Path, file: str, size: int) -> None:
    content = (copy / file).read_bytes()
    replace(copy / file, content[:size])
    assert "cannot be read as safetensors" in refusal(copy, file)


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors"])
def test_a_missing_file_is_named(copy: Path, file: str) -> None:
    (copy / file).unlink()
    refusal(copy, file)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[]", b"{}", b'{"format": 1}', b'{"model": 3}', b"null"]
)
def test_a_damaged_state_is_named(copy: Path, content: bytes) -> None:
    replace(copy / "state.json", content)
    assert "not a checkpoint's state" in refusal(copy, "state.json")


def test_another_format_is_refused(copy: Path) -> None:
    state_with(copy, format=2)
    assert "format 2; this version reads 1" in refusal(copy, "state.json")


@pytest.mark.parametrize("field", ["model", "position"])
def test_fields_of_another_version_are_refused(copy: Path, field: str) -> None:
    state = json.loads((copy / "state.json").read_text())
    state_with(copy, **{field: {**state[field], "unheard_of": 1}})
    assert "unheard_of" in refusal(copy, "state.json")


def test_damaged_classes_name_the_file(copy: Path) -> None:
    state = json.loads((copy / "state.json").read_text())
    state_with(copy, model={**state["model"], "classes": {"category_ids": [1], "names": []}})
    assert "classes" in refusal(copy, "state.json")


@pytest.mark.parametrize("states", [{}, {"python": [3, [1], None]}, 5])
def test_damaged_random_states_name_the_file(copy: Path, states: object) -> None:
    state_with(copy, random_states=states)
    assert "random_states" in refusal(copy, "state.json")


def test_another_models_checkpoint_is_refused(saved: Saved) -> None:
    found: Checkpoint = read_checkpoint(saved.folder)
    with pytest.raises(InputError, match=r"model\.safetensors: does not fit") as caught:
        found.load_weights(fresh(num_classes=5)[0])
    assert "cls_logits" in str(caught.value) and "\n" not in str(caught.value)


def test_an_optimizer_of_other_parameters_is_refused(copy: Path, saved: Saved) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(saved.folder / "optimizer.safetensors")
    some = {name: value for name, value in tensors.items() if name.startswith("head")}
    (copy / "optimizer.safetensors").unlink()
    extra = {"backbone.body.conv1.weight/exp_avg": torch.zeros(64, 3, 7, 7)}
    save_file(some | extra, copy / "optimizer.safetensors")
    assert "backbone.body.conv1.weight does not train" in refusal(copy, "optimizer.safetensors")


def test_an_optimizer_that_lacks_parameters_is_refused(copy: Path, saved: Saved) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(saved.folder / "optimizer.safetensors")
    dropped = next(name for name in tensors if name.endswith("exp_avg_sq"))
    del tensors[dropped]
    (copy / "optimizer.safetensors").unlink()
    save_file(tensors, copy / "optimizer.safetensors")
    assert dropped in refusal(copy, "optimizer.safetensors")
