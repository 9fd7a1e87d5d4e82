"""`retinanet convert`, on files as torchvision's and MLPerf's scripts save them."""

import argparse
import functools
import json
import os
import pickle
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torchvision.models import resnext50_32x4d
from torchvision.models.detection import RetinaNet as TorchvisionRetinaNet
from torchvision.models.detection import retinanet_resnet50_fpn

from common.errors import InputError
from data.annotations import UNNAMED
from data.tiling import TileOptions
from retinanet.__main__ import main
from retinanet.commands import EvaluateOptions
from retinanet.evaluation.command import evaluate
from retinanet.training.checkpoint import read_checkpoint
from retinanet.training.convert import (
    convert,
    convert_detector,
    read_class_map,
    require_free_folder,
)
from retinanet.training.detector_weights import detector_tensors, read_detector
from retinanet.training.train_state import MODEL_FILE
from retinanet.training.weight_files import unpickle_weights
from tests.support.commands import RunHere, error_line, error_message, run_program
from tests.support.random_detectors import random_detector
from tests.support.torchvision_models import old_spelling, torchvision_retinanet

OUTPUTS = 5
CATEGORIES = [{"id": 4, "name": "four"}, {"id": 1, "name": "one"}, {"id": 3, "name": "three"}]
SIZE = 64

State = dict[str, Tensor]


class Malice:
    """An object whose pickle runs code: it creates a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.folder),)


def as_scripts_save(state: State) -> dict[str, Any]:
    """Return the dict that torchvision's and MLPerf's training scripts save."""
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    parameter.sum().backward()
    optimizer.step()
    return {
        "model": state,
        "optimizer": optimizer.state_dict(),
        "lr_scheduler": torch.optim.lr_scheduler.MultiStepLR(optimizer, [16, 22]).state_dict(),
        "args": argparse.Namespace(data_path="/data", epochs=26, lr_steps=[16, 22], amp=False),
        "epoch": 25,
    }


@pytest.fixture(scope="module")
def torchvision_model() -> TorchvisionRetinaNet:
    """torchvision's own model, with random weights that give detections."""
    model = torchvision_retinanet(OUTPUTS, trainable_layers=5, fixed_size=(SIZE, SIZE)).eval()
    model.load_state_dict(
        random_detector(classes=OUTPUTS, image_size=SIZE).state_dict(), strict=False
    )
    return model


@pytest.fixture(scope="module")
def checkpoint(
    torchvision_model: TorchvisionRetinaNet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Checkpoint that the command converted from torchvision's model."""
    folder = tmp_path_factory.mktemp("convert")
    state = torchvision_model.state_dict()
    state = {f"module.{old_spelling(key)}": value for key, value in state.items()}
    torch.save(as_scripts_save(state), folder / "model_25.pth")
    (folder / "classes.json").write_text(json.dumps({"categories": CATEGORIES}))
    with pytest.MonkeyPatch.context() as patch:
        arguments = ("--detector", folder / "model_25.pth", "--classes", folder / "classes.json")
        options = ("--out", folder / "made", "--image-size", str(SIZE), "--trust")
        patch.setattr("sys.argv", ["command", "convert", *map(str, (*arguments, *options))])
        assert main() == 0
    (folder / "model_25.pth").unlink()
    yield folder / "made"


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(3).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


@pytest.mark.slow
def test_detections_equal_torchvisions(
    checkpoint: Path,
    torchvision_model: TorchvisionRetinaNet,
    photo: Path,
    tmp_path: Path,
    run_here: RunHere,
) -> None:
    pixels = torch.from_numpy(np.array(Image.open(photo))).permute(2, 0, 1) / 255
    with torch.no_grad():
        [expected] = torchvision_model([pixels])
    file = tmp_path / "boxes.json"
    arguments = ("--checkpoint", checkpoint, photo, "--json", file, "--no-pictures")
    options = ("--score", "0.0501", "--precision", "float32")
    done = run_here(main, "predict", *arguments, *options)
    assert (done.returncode, done.stderr) == (0, "")
    boxes = json.loads(file.read_text())
    is_above = expected["scores"] > 0.0501
    assert is_above.sum() > 20 and len(boxes) == is_above.sum()
    xyxy = torch.tensor([box["bbox"] for box in boxes])
    xyxy[:, 2:] += xyxy[:, :2]
    assert torch.allclose(xyxy, expected["boxes"][is_above], atol=0.03)
    scores = torch.tensor([box["score"] for box in boxes])
    assert torch.allclose(scores, expected["scores"][is_above], atol=2e-4)
    assert [box["category_id"] for box in boxes] == expected["labels"][is_above].tolist()
    names = {entry["id"]: entry["name"] for entry in CATEGORIES}
    assert all(box["category"] == names.get(box["category_id"], UNNAMED) for box in boxes)


@pytest.mark.slow
def test_checkpoint_can_be_evaluated(
    checkpoint: Path, photo: Path, tmp_path: Path, run_here: RunHere
) -> None:
    annotations = tmp_path / "annotations.json"
    image = {"id": 1, "file_name": photo.name, "width": SIZE, "height": SIZE}
    box = {"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 2, 30, 40]}
    content = {"images": [image], "annotations": [box], "categories": CATEGORIES}
    annotations.write_text(json.dumps(content))
    options = ("--annotations", annotations, "--images", tmp_path)
    done = run_here(main, "evaluate", "--checkpoint", checkpoint, *options)
    assert (done.returncode, done.stderr) == (0, "") and "1 images" in done.stdout
    alone = run_here(main, "evaluate", "--checkpoint", checkpoint)
    assert alone.returncode == 2 and alone.stderr.count("\n") == 1
    assert "--annotations" in alone.stderr


@pytest.mark.slow
def test_only_an_earlier_conversion_is_replaced(
    checkpoint: Path, tmp_path: Path, run_here: RunHere
) -> None:
    given = tmp_path / "given.pth"
    torch.save({"model": {}}, given)
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "mine.txt").write_text("mine")
    options = ("--detector", given, "--classes", tmp_path / "no.json", "--trust")
    for out, overwrite in ((checkpoint, ()), (photos, ()), (photos, ("--overwrite",))):
        done = run_here(main, "convert", *options, "--out", out, *overwrite)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and str(out) in done.stderr
    assert (photos / "mine.txt").read_text() == "mine"
    require_free_folder(checkpoint, overwrite=True)
    source = checkpoint / MODEL_FILE
    itself = ("--detector", source, "--classes", tmp_path / "no.json", "--out", checkpoint)
    done = run_here(main, "convert", *itself, "--overwrite")
    assert f"would replace {source}, which this command reads" in error_line(done)
    assert read_checkpoint(checkpoint).model.num_classes == OUTPUTS


@pytest.mark.slow
def test_checkpoint_has_the_tensors_of_the_file(
    checkpoint: Path, torchvision_model: TorchvisionRetinaNet
) -> None:
    tensors, state = read_checkpoint(checkpoint).tensors(MODEL_FILE), torchvision_model.state_dict()
    expected = {key for key in state if not key.endswith("num_batches_tracked")}
    assert tensors.keys() == expected
    assert all(torch.equal(tensors[key], state[key]) for key in expected)


def refused(state: State) -> str:
    message = error_message(detector_tensors, state, source="a.pth")
    assert message.startswith("a.pth: ")
    return message


@pytest.mark.slow
def test_other_networks_are_refused(torchvision_model: TorchvisionRetinaNet) -> None:
    state = torchvision_model.state_dict()
    other = retinanet_resnet50_fpn(weights=None, weights_backbone=None).state_dict()
    key = "backbone.body.layer1.0.conv1.weight"
    message = refused({**other, key: torch.zeros(128, 64, 1, 1)})
    assert f"RetinaNet on resnet50: {key} has shape [128, 64, 1, 1]" in message
    assert "contains no RetinaNet" in refused(dict(resnext50_32x4d(weights=None).state_dict()))
    key = "backbone.fpn.extra_blocks.p6.weight"
    assert f"{key} has shape" in refused({**state, key: torch.zeros(256, 2048, 3, 3)})
    assert f"{key} is missing" in refused({k: v for k, v in state.items() if k != key})
    assert "extra is not known" in refused({**state, "extra": torch.zeros(1)})
    assert f"{key} holds" in refused({**state, key: torch.full((256, 256, 3, 3), torch.nan)})


def test_code_in_a_file_is_refused_and_not_run(tmp_path: Path, run_here: RunHere) -> None:
    given, folder = tmp_path / "given.pth", tmp_path / "made-by-a-pickle"
    malice = Malice(folder)
    for content in ({"model": malice}, {"args": argparse.Namespace(a=malice)}, None):
        if content is None:  # a bare pickle, without torch's archive
            given.write_bytes(pickle.dumps({"a": malice}, protocol=2))
        else:
            torch.save(content, given)
        for arguments in (
            ("--detector", given, "--classes", given, "--out", tmp_path / "made"),
            (given, "--out", tmp_path / "made.safetensors"),
        ):
            done = run_here(main, "convert", *arguments, "--trust")
            assert done.returncode == 2 and done.stderr.count("\n") == 1
            assert "cannot be read" in done.stderr and done.stderr.strip().isprintable()
            assert "�" not in done.stderr and "[1m" not in done.stderr
            assert content is None or "mkdir" in done.stderr
    assert sorted(tmp_path.iterdir()) == [given]


@pytest.mark.parametrize(
    ("content", "outputs", "expected"),
    [
        ('{"categories": [{"id": 1, "name": "a"}]}', 3, ([0, 1, 2], [UNNAMED, "a", UNNAMED])),
        ('{"categories": [{"id": 7, "name": "a"}, {"id": 2, "name": "b"}]}', 2, ([7, 2], "ab")),
        ('{"categories": [{"id": 1, "name": "a"}, {"id": 0, "name": "b"}]}', 2, ([0, 1], "ba")),
        ('["a", "b"]', 2, ([0, 1], "ab")),
        ("a\n\nb c\n", 2, ([0, 1], ["a", "b c"])),
        ("__background__\na\nN/A\nb\n", 4, ([0, 1, 2, 3], [UNNAMED, "a", UNNAMED, "b"])),
    ],
    ids=["COCO's gaps", "other ids", "out of order", "JSON list", "lines", "torchvision's list"],
)
def test_classes_are_assigned_to_outputs(
    content: str, outputs: int, expected: tuple[list[int], Any], tmp_path: Path
) -> None:
    file = tmp_path / "classes"
    file.write_text(content)
    classes = read_class_map(file, outputs=outputs)
    assert (list(classes.category_ids), list(classes.names)) == (expected[0], list(expected[1]))


@pytest.mark.parametrize(
    "content",
    [
        "a\nb\n",
        '["a", "b", "c", "d"]',
        "",
        "{}",
        "[1]",
        '{"categories": [{"id": 3, "name": "a"}]}',
        '{"categories": [{"id": 0, "name": "a"}, {"id": 0, "name": "b"}]}',
        '{"categories": [{"id": "zero", "name": "a"}]}',
        "[" * 100_000,
        None,
    ],
)
def test_classes_that_do_not_fit_are_refused(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "classes"
    if content is None:
        os.mkfifo(file)
    else:
        file.write_text(content)
    assert str(file) in error_message(read_class_map, file, outputs=3)


def test_list_without_the_background_is_not_shifted(tmp_path: Path) -> None:
    file = tmp_path / "names.txt"
    file.write_text("a\nb\n")
    assert "beginning with __background__" in error_message(read_class_map, file, outputs=3)
    file.write_text("a\n")
    message = error_message(read_class_map, file, outputs=3)
    assert "__background__" not in message and "1 names" in message


@pytest.mark.slow
def test_safetensors_of_a_detector_needs_no_trust(tmp_path: Path, run_here: RunHere) -> None:
    state = random_detector(classes=2).state_dict()
    file, classes = tmp_path / "a.safetensors", tmp_path / "names.txt"
    save_file({f"module.{old_spelling(name)}": value for name, value in state.items()}, file)
    classes.write_text("a\nb\n")
    out = tmp_path / "made"
    options = ("--classes", classes, "--out", out, "--resize", "letterbox")
    done = run_here(main, "convert", "--detector", file, *options)
    assert (done.returncode, done.stderr) == (0, "") and "safetensors, sha256" in done.stdout
    assert "images of 800×800 pixels, letterbox\n" in done.stdout
    checkpoint = read_checkpoint(out)
    assert checkpoint.model.resize == checkpoint.state.config["data"]["resize"] == "letterbox"
    assert checkpoint.model.classes["names"] == ["a", "b"]
    tensors = checkpoint.tensors("model.safetensors")
    assert all(torch.equal(tensors[name], value) for name, value in state.items())
    detector = read_detector(str(out))
    assert (detector.names, detector.step, detector.map) == (("a", "b"), None, None)


def test_missing_file_is_one_line(tmp_path: Path, run_here: RunHere) -> None:
    for name in ("none.pth", "none.safetensors"):
        arguments = ("--detector", tmp_path / name, "--classes", "c", "--out", tmp_path / "made")
        done = run_here(main, "convert", *arguments, "--trust")
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and name in done.stderr
        assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_torchscript_program_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "program.pth"
    torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2)), file)
    message = error_message(unpickle_weights, file.read_bytes(), file)
    assert message.startswith(f"{file}: is a TorchScript program")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("a.pth", "--detector", "b.pth", "--classes", "c"),
        ("--detector", "b.pth"),
        ("a.pth", "--classes", "c"),
        ("a.pth", "--resize", "letterbox"),
    ],
)
def test_contradicting_options_are_refused(arguments: tuple[str, ...], run_here: RunHere) -> None:
    done = run_here(main, "convert", *arguments, "--out", "made")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stdout == ""


WEIGHTS = {"conv1.weight": torch.arange(6.0).reshape(2, 3), "bn1.running_mean": torch.ones(2)}


def saved(content: object, folder: Path) -> Path:
    file = folder / "given.pth"
    torch.save(content, file)
    return file


def convert_error(file: Path, out: Path, *, trust: bool = True) -> str:
    before = sorted(file.parent.iterdir())
    message = error_message(convert, file=file, out=out, trust=trust, overwrite=False)
    assert sorted(file.parent.iterdir()) == before
    return message


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (WEIGHTS, []),
        ({"model": WEIGHTS, "epoch": 3, "optimizer": {"state": {}}}, ["epoch, optimizer"]),
        ({"state_dict": {**WEIGHTS, "note": "x"}, "args": {}}, ["args, note"]),
        ({f"module.{name}": value for name, value in WEIGHTS.items()}, ["renamed: 2 tensors"]),
        ({f"_orig_mod.{name}": value for name, value in WEIGHTS.items()}, ["renamed: 2 tensors"]),
        (
            {"state_dict": {f"model._orig_mod.{name}": WEIGHTS[name] for name in WEIGHTS}},
            ["renamed: 2 tensors"],
        ),
        ({"model_state_dict": WEIGHTS, "loss": 0.5}, ["dropped, not tensors: loss"]),
        ({"model": WEIGHTS, "model_ema": WEIGHTS}, ["not taken: model_ema, a moving average"]),
        (
            {"model_ema": {"n_averaged": torch.tensor(3)} | WEIGHTS},
            ["taken: model_ema, a moving average of the weights", "n_averaged"],
        ),
        (
            {"ema": WEIGHTS, "state_dict": WEIGHTS, "ema_model": {}},
            ["not taken: ema, a moving", "not taken: ema_model, a moving"],
        ),
        ({"ema_model": WEIGHTS, "step": 7}, ["taken: ema_model, a moving average of the weights"]),
    ],
    ids=[
        "bare",
        "as MLPerf saves it",
        "state_dict",
        "of DistributedDataParallel",
        "of torch.compile",
        "of Lightning",
        "of tutorials",
        "with average",
        "average",
        "with other trainers' averages",
        "another trainer's average",
    ],
)
def test_tensors_are_written_and_other_entries_are_listed(
    content: object, parts: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made.safetensors"
    assert convert(file=saved(content, tmp_path), out=out, trust=True, overwrite=False) == 0
    tensors = load_file(out)
    assert tensors.keys() == WEIGHTS.keys()
    assert all(torch.equal(tensors[name], value) for name, value in WEIGHTS.items())
    output = capsys.readouterr().out
    assert all(part in output for part in (*parts, "2 tensors", "because of --trust"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["given.pth", "made.safetensors"]


def test_tensors_that_share_memory_are_copied(tmp_path: Path) -> None:
    values = torch.arange(4.0)
    views = {"a": values, "b": values, "c": values[1:3], "d": values.reshape(2, 2).T}
    file = saved(views, tmp_path)
    out = tmp_path / "made.safetensors"
    convert(file=file, out=out, trust=True, overwrite=False)
    assert load_file(out)["d"].tolist() == [[0, 2], [1, 3]]


def test_nothing_is_read_without_trust(tmp_path: Path) -> None:
    message = convert_error(saved(WEIGHTS, tmp_path), tmp_path / "a.safetensors", trust=False)
    assert "CVE-2026-24747" in message and "--trust" in message


def in_torchs_format(content: object, *, archive: bool = True) -> bytes:
    stream = BytesIO()
    torch.save(content, stream, _use_new_zipfile_serialization=archive)
    return stream.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04 cut",
        b"\x80\x02garbage",
        b"hello" * 9,
        b"<!DOCTYPE html><html>",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 3\n",
        in_torchs_format(WEIGHTS)[:-40],
        in_torchs_format(WEIGHTS, archive=False)[:-4],
    ],
)
def test_broken_file_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "broken.pth"
    file.write_bytes(content)
    assert convert_error(file, tmp_path / "out.safetensors") == (
        f"{file}: cannot be read: is not a file of torch.save, or is truncated or damaged; "
        "download it again"
    )


def test_complete_file_with_other_objects_is_not_called_damaged(tmp_path: Path) -> None:
    file = saved({"model": WEIGHTS, "schedule": functools.partial(print)}, tmp_path)
    message = convert_error(file, tmp_path / "out.safetensors")
    assert "neither a tensor nor a plain container" in message and "state_dict() alone" in message
    file.write_bytes(in_torchs_format(WEIGHTS).replace(b"torch._utils", b"torch._utilz"))
    assert "torch._utilz" in convert_error(file, tmp_path / "out.safetensors")


def test_folder_is_named_as_what_it_is(detector: Path, tmp_path: Path) -> None:
    for folder, problem in (
        (detector, "is a checkpoint or a run already; evaluate, predict"),
        (detector.parent.parent, "is a checkpoint or a run already; evaluate, predict"),
        (tmp_path, "is a folder; give a .pth file"),
    ):
        message = error_message(
            convert_detector,
            detector=folder, classes=tmp_path / "names.txt", out=tmp_path / "made",
            trust=True, overwrite=False,
        )  # fmt: skip
        assert message.startswith(f"{folder}: {problem}")


@pytest.mark.parametrize("content", ["a\nb\na\n", '["a", "N/A", "a"]'])
def test_name_of_two_outputs_is_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "names"
    file.write_text(content)
    message = error_message(read_class_map, file, outputs=3)
    assert message.startswith(f'{file}: "a" is the name of output 0 and of output 2; ')
    file.write_text("N/A\nN/A\na\n")
    assert read_class_map(file, outputs=3).names == ("N/A", "N/A", "a")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ([1, 2], "no state_dict"),
        ({"a": 1}, "no state_dict"),
        ({"model": {}}, "no state_dict"),
        ({1: torch.zeros(3)}, "no state_dict"),
        (torch.zeros(3), "no state_dict"),
        ({"a": torch.eye(3).to_sparse()}, "a: not a dense tensor"),
        ({"a": torch.zeros(1).expand(10**15)}, "a: its declared size exceeds the file"),
    ],
    ids=["list", "number", "empty", "number as a name", "tensor", "sparse", "larger than the file"],
)
def test_file_without_weights_is_refused(content: object, problem: str, tmp_path: Path) -> None:
    assert problem in convert_error(saved(content, tmp_path), tmp_path / "out.safetensors")


def torch_archive(pickled: bytes, folder: Path) -> Path:
    """Write a pickle in torch's format."""
    file = folder / "given.pth"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", "3\n")
    return file


def twice_in_the_next(levels: int) -> bytes:
    """Return opcodes that build tuples, each of which has the one before two times."""
    return b")" + b"".join(b"q%ch%c\x86" % (level, level) for level in range(levels))


@pytest.mark.parametrize(
    "key",
    [b")" + b"\x85" * 100_000, twice_in_the_next(60)],
    ids=["a recursion that ends the process", "a hash that takes a thousand years"],
)
def test_tuples_that_cannot_be_hashed_are_refused(key: bytes, tmp_path: Path) -> None:
    pickled = b"\x80\x02}" + key + b"K\x01s."
    file = torch_archive(pickled, tmp_path)
    expected = f"{file}: has more than 1,000,000 values, or 10,000 in tuples; save the "
    assert convert_error(file, tmp_path / "out.safetensors").startswith(expected)
    # The older format has three short pickles before that of the weights.
    file.write_bytes(3 * b"\x80\x02K\x01." + pickled)
    assert convert_error(file, tmp_path / "out.safetensors").startswith(expected)


@pytest.mark.slow
def test_a_million_lists_within_each_other_are_refused(tmp_path: Path) -> None:
    file = torch_archive(b"\x80\x02" + b"]" * 10**6 + b"a" * (10**6 - 1) + b".", tmp_path)
    message = convert_error(file, tmp_path / "out.safetensors")
    assert message.startswith(f"{file}: has more than 1,000,000 values, or 10,000 in tuples; ")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (bytearray(b"abc"), ".bytearray, which is neither a tensor"),
        (b"abc", "_codecs.encode, which is neither a tensor"),
    ],
    ids=["bytearray of any size", "any encoding of any text"],
)
def test_functions_that_work_without_limit_are_not_called(
    content: object, named: str, tmp_path: Path
) -> None:
    file = saved(WEIGHTS | {"content": content}, tmp_path)
    assert named in convert_error(file, tmp_path / "out.safetensors")


def test_keys_of_any_type_are_listed_as_dropped(tmp_path: Path) -> None:
    key: tuple[Any, ...] = ()
    for _ in range(200):
        key = (key,)
    file = saved({"model": WEIGHTS, 7: 1, key: 2, "epoch": 3}, tmp_path)
    assert unpickle_weights(file.read_bytes(), file).dropped == ("7", "tuple", "epoch")


def inflating(folder: Path) -> Path:
    """Write a compressed file: 80 MB of zeros in 400 kB."""
    stored = BytesIO()
    torch.save({"a": torch.zeros(20_000_000)}, stored)
    file = folder / "given.pth"
    with (
        zipfile.ZipFile(stored) as source,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target,
    ):
        for member in source.infolist():
            target.writestr(member.filename, source.read(member))
    return file


def shared(folder: Path) -> Path:
    """Write 400 tensors that share 1 MB of memory."""
    values = torch.zeros(250_000)
    return saved({str(number): values for number in range(400)}, folder)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(inflating, marks=pytest.mark.slow),
        pytest.param(shared, marks=pytest.mark.exhaustive),
    ],
)
def test_file_that_needs_far_more_memory_than_its_size_is_refused_first(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    file, out = make(tmp_path), tmp_path / "out.safetensors"
    program = (
        "import re, sys\n"
        "from pathlib import Path\n"
        "from common.cli import run_command\n"
        "from retinanet.training.convert import convert\n"
        "file, out = map(Path, sys.argv[1:])\n"
        "def peak():\n"
        "    return int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])\n"
        "before = peak()\n"
        "run = lambda: convert(file=file, out=out, trust=True, overwrite=False)\n"
        "status = run_command(run)\n"
        "print(status, peak() - before)\n"
    )
    done = run_program(sys.executable, "-c", program, file, out)
    assert done.stderr.startswith(f"error: {file}: ") and done.stderr.count("\n") == 1
    status, kilobytes = map(int, done.stdout.split())
    assert status == 2 and kilobytes < 40_000 and not out.exists()


def test_existing_file_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    file, out = saved(WEIGHTS, tmp_path), tmp_path / "a.safetensors"
    out.write_text("mine")
    assert f"{out}: exists" in convert_error(file, out)
    assert out.read_text() == "mine"
    assert convert(file=file, out=out, trust=True, overwrite=True) == 0
    assert "ends in .safetensors" in convert_error(file, tmp_path / "weights.pth")
    assert "cannot be read: No such file" in convert_error(
        tmp_path / "no.pth", tmp_path / "b.safetensors"
    )


def test_evaluating_a_pth_names_the_convert_command(tmp_path: Path) -> None:
    file = saved(WEIGHTS, tmp_path)
    with pytest.raises(InputError, match=r"retinanet convert .*given\.safetensors"):
        evaluate(EvaluateOptions(checkpoint=file, tiles=TileOptions()))
