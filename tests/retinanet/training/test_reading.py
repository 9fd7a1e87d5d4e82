import dataclasses
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

from common.errors import InputError
from data.annotations import ClassMap
from launch.process_group import ProcessGroup
from retinanet.engine.optimizers import make_optimizer
from retinanet.model.retinanet import RetinaNet
from retinanet.training.checkpoint import (
    Checkpoint,
    file_digest,
    find_checkpoint,
    newest_whole,
    point_to,
    read_checkpoint,
    write_checkpoint,
)
from retinanet.training.checkpointer import gathered
from retinanet.training.train_state import (
    ModelDescription,
    Part,
    State,
    TrainingPosition,
    digest,
    load_rank_state_dict,
    random_states,
    read_state,
    restore_random_states,
    seed_everything,
    state_text,
)

CLASSES = ClassMap((7, 3), ("seven", "three"))
DESCRIPTION = ModelDescription(
    num_classes=2,
    norm="frozen",
    trainable_layers=0,
    image_size=64,
    precision="float32",
    classes=CLASSES.to_json(),
)
POSITION = TrainingPosition(
    step=12, epoch=2, images=4, images_per_epoch=10, map_here=None, best_map=0.25
)
STATE = State(
    model=DESCRIPTION,
    position=POSITION,
    setup={"ranks": 1},
    config={"run": {"name": "a run"}},
    random_states=[],
    parts={},
)


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
    states = random_states()
    seed_everything(5)
    model, optimizer = fresh()
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
    restore_random_states(states)
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
    """Another state, with a SHA-256 that is right: what a hostile or a newer writer leaves."""
    state = json.loads((copy / "state.json").read_text())
    del state["sha256"]
    state |= changes
    replace(copy / "state.json", json.dumps({"sha256": digest(state), **state}).encode())


def part_with(copy: Path, name: str, content: bytes) -> None:
    """Another part, with a SHA-256 that is right."""
    replace(copy / name, content)
    state = read_state(copy)
    part = Part(sha256=file_digest(copy / name), bytes=len(content))
    text = state_text(dataclasses.replace(state, parts={**state.parts, name: part}))
    replace(copy / "state.json", text.encode())


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
    states = random_states()
    checkpoint = read_checkpoint(saved.folder)
    checkpoint.load_training_state(model, optimizer)
    [own] = checkpoint.rank_states()
    load_rank_state_dict(own, model)
    drawn = torch.rand(4)
    restore_random_states(states)
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
    read_checkpoint(saved.folder).load_training_state(model, optimizer)
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
    assert (found.model, found.position) == (DESCRIPTION, POSITION)
    assert (found.state.config, found.state.setup) == (STATE.config, STATE.setup)
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


def require_refusal(copy: Path, file: str) -> None:
    """Looking at all parts is enough to see it: no model is built."""
    with pytest.raises(InputError) as caught:
        read_checkpoint(copy).require_whole()
    assert str(caught.value).startswith(f"{copy / file}: ") and "\n" not in str(caught.value)


FILES = ("model.safetensors", "optimizer.safetensors", "state.json")


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("share", [0, 1e-6, 0.3, 0.999999])
def test_a_file_cut_short_is_named(copy: Path, file: str, share: float) -> None:
    content = (copy / file).read_bytes()
    replace(copy / file, content[: min(int(len(content) * share), len(content) - 1)])
    require_refusal(copy, file)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("share", [0, 0.3, 0.7])
def test_one_flipped_bit_is_named(copy: Path, file: str, share: float) -> None:
    content = bytearray((copy / file).read_bytes())
    content[int(len(content) * share)] ^= 4
    replace(copy / file, bytes(content))
    require_refusal(copy, file)


@pytest.mark.parametrize("file", FILES[:2])
def test_a_missing_file_is_named(copy: Path, file: str) -> None:
    (copy / file).unlink()
    require_refusal(copy, file)


def test_a_part_is_not_trusted_to_be_safetensors(copy: Path) -> None:
    part_with(copy, "optimizer.safetensors", b"something else")
    assert "cannot be read as safetensors" in refusal(copy, "optimizer.safetensors")


def test_a_part_that_the_state_does_not_name_is_missing(copy: Path) -> None:
    state_with(copy, parts={})
    assert "does not list model.safetensors" in refusal(copy, "state.json")


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "state.json", "a b"])
def test_a_part_outside_of_the_folder_is_refused(copy: Path, name: str) -> None:
    part = {"sha256": 64 * "0", "bytes": 1}
    state_with(copy, parts={name: part})
    assert "parts" in refusal(copy, "state.json")


def test_the_newest_whole_one_is_found_and_the_others_are_named(
    saved: Saved, tmp_path: Path
) -> None:
    for step in (9, 10, 11, 12):
        target = tmp_path / f"step-{step:06d}"
        shutil.copytree(saved.folder, target, copy_function=os.link)
    (tmp_path / "step-000012" / "state.json").unlink()
    replace(tmp_path / "step-000011" / "optimizer.safetensors", b"cut")
    (tmp_path / ".step-000013.partial").mkdir()
    found, problems = newest_whole(tmp_path)
    assert found is not None and found.folder == tmp_path / "step-000010"
    assert [problem.partition(": ")[0] for problem in problems] == [
        str(tmp_path / "step-000012" / "state.json"),
        str(tmp_path / "step-000011" / "optimizer.safetensors"),
    ]
    assert newest_whole(tmp_path / "nowhere") == (None, [])


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[]", b"null", b"[" * 100_000, b'{"a":' * 100_000]
)
def test_a_state_that_is_no_json_object_is_named(copy: Path, content: bytes) -> None:
    replace(copy / "state.json", content)
    assert "not a checkpoint's state" in refusal(copy, "state.json")


def test_another_format_is_refused(copy: Path) -> None:
    state_with(copy, format=1)
    assert "format 1; this version reads 2" in refusal(copy, "state.json")


@pytest.mark.parametrize("field", ["model", "position"])
def test_fields_of_another_version_are_refused(copy: Path, field: str) -> None:
    state = json.loads((copy / "state.json").read_text())
    state_with(copy, **{field: {**state[field], "unheard_of": 1}})
    assert "unheard_of" in refusal(copy, "state.json")


def test_damaged_classes_name_the_file(copy: Path) -> None:
    state = json.loads((copy / "state.json").read_text())
    state_with(copy, model={**state["model"], "classes": {"category_ids": [1], "names": []}})
    assert "classes" in refusal(copy, "state.json")


@pytest.mark.parametrize("states", [{}, [3], 5])
def test_random_states_of_another_type_name_the_file(copy: Path, states: object) -> None:
    state_with(copy, random_states=states)
    assert "random_states" in refusal(copy, "state.json")


@pytest.mark.parametrize("step", [-1, 2**70, 1.5, "7", None, True])
def test_a_position_that_cannot_be_is_refused(copy: Path, step: object) -> None:
    state_with(copy, position={**dataclasses.asdict(POSITION), "step": step})
    assert "position.step" in refusal(copy, "state.json")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": {"num_classes": 3}}, "model.classes"),
        ({"model": {"classes": {"category_ids": [7], "names": ["seven"]}}}, "model.classes"),
        ({"config": {"data": {"image_size": 128}}}, "model.image_size"),
        ({"position": {"best_map": 5.0}}, "position.best_map"),
        ({"position": {"best_map": float("nan")}}, "position.best_map"),
        ({"position": {"map_here": -0.5}}, "position.map_here"),
        ({"position": {"map_here": 0.5}}, "position.best_map"),
        ({"position": {"map_here": 0.5, "best_map": None}}, "position.best_map"),
        ({"position": {"images": 11}}, "position.images"),
        ({"position": {"step": 0, "epoch": 0}}, "position.images"),
        ({"position": {"epoch": 13}}, "position.epoch"),
        ({"position": {"skipped_steps": 13}}, "position.skipped_steps"),
        ({"setup": {"ranks": 0}}, "setup.ranks"),
        ({"setup": {"ranks": None}}, "setup.ranks"),
        ({"setup": {"ranks": True}}, "setup.ranks"),
        ({"setup": {"ranks": 2}}, "random_states"),
        ({"random_states": []}, "random_states"),
        ({"random_states": [{}]}, "random_states.0.numpy"),
    ],
)
def test_a_state_that_contradicts_itself_is_refused(
    copy: Path, changes: dict[str, Any], field: str
) -> None:
    state = json.loads((copy / "state.json").read_text())
    for section, content in changes.items():
        is_part = isinstance(content, dict)
        state[section] = {**state[section], **content} if is_part else content
    state_with(copy, **{section: state[section] for section in changes})
    assert refusal(copy, "state.json").startswith(
        f"{copy / 'state.json'}: not a checkpoint's state: {field}: "
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors"])
def test_a_value_that_is_not_finite_is_refused_with_the_tensors_name(
    copy: Path, file: str, value: float
) -> None:
    from safetensors.torch import load_file, save

    tensors = {name: tensor.clone() for name, tensor in load_file(copy / file).items()}
    name = next(name for name, one in reversed(tensors.items()) if one.dim() == 4)
    tensors[name].flatten()[-1] = value
    part_with(copy, file, save(tensors))
    assert f": {name} holds a value that is not finite" in refusal(copy, file)
    _, [problem] = newest_whole(in_place_of_a_run(copy))
    assert problem.startswith(f"{copy.with_name('step-000012') / file}: {name} ")


def in_place_of_a_run(copy: Path) -> Path:
    """The folder of checkpoints in which a copy is the only one."""
    copy.rename(copy.with_name("step-000012"))
    return copy.parent


def test_a_checkpoint_without_an_optimizer_is_not_whole(copy: Path) -> None:
    parts = json.loads((copy / "state.json").read_text())["parts"]
    state_with(copy, parts={"model.safetensors": parts["model.safetensors"]})
    _, [problem] = newest_whole(in_place_of_a_run(copy))
    assert "does not list optimizer.safetensors" in problem


def test_reading_keeps_no_file_mapped(copy: Path) -> None:
    model, optimizer = fresh()
    read_checkpoint(copy).load_training_state(model, optimizer)
    states = read_checkpoint(copy).rank_states()
    shutil.rmtree(copy)
    mapped = Path("/proc/self/maps").read_text()
    assert "safetensors" not in "".join(line for line in mapped.splitlines() if "copy" in line)
    assert optimizer.state_dict()["state"] and states


def test_another_models_checkpoint_is_refused(saved: Saved) -> None:
    found: Checkpoint = read_checkpoint(saved.folder)
    with pytest.raises(InputError, match=r"model\.safetensors: does not fit") as caught:
        found.load_weights(fresh(num_classes=5)[0])
    assert "cls_logits" in str(caught.value) and "\n" not in str(caught.value)


def test_an_optimizer_of_other_parameters_is_refused(copy: Path, saved: Saved) -> None:
    from safetensors.torch import load_file, save

    tensors = load_file(saved.folder / "optimizer.safetensors")
    some = {name: value for name, value in tensors.items() if name.startswith("head")}
    extra = {"backbone.body.conv1.weight/exp_avg": torch.zeros(64, 3, 7, 7)}
    part_with(copy, "optimizer.safetensors", save(some | extra))
    assert "backbone.body.conv1.weight does not train" in refusal(copy, "optimizer.safetensors")


def test_an_optimizer_that_lacks_parameters_is_refused(copy: Path, saved: Saved) -> None:
    from safetensors.torch import load_file, save

    tensors = load_file(saved.folder / "optimizer.safetensors")
    dropped = next(name for name in tensors if name.endswith("exp_avg_sq"))
    del tensors[dropped]
    part_with(copy, "optimizer.safetensors", save(tensors))
    assert dropped in refusal(copy, "optimizer.safetensors")


def test_a_state_of_any_length_is_not_read(copy: Path) -> None:
    (copy / "state.json").unlink()
    with (copy / "state.json").open("wb") as file:
        file.truncate(10**12)  # takes no room
    assert "larger than 64000000 bytes" in refusal(copy, "state.json")
