import io
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from common.errors import InputError
from retinanet.evaluation.command import evaluate
from retinanet.training.build import is_imagenet_file
from retinanet.training.convert import convert

WEIGHTS = {"conv1.weight": torch.arange(6.0).reshape(2, 3), "bn1.running_mean": torch.ones(2)}


class Malice:
    """What a file from the network might carry."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.victim),)


def written(content: object, folder: Path) -> Path:
    file = folder / "given.pth"
    torch.save(content, file)
    return file


def refusal_of(file: Path, out: Path, *, trust: bool = True) -> str:
    before = sorted(file.parent.iterdir())
    with pytest.raises(InputError) as caught:
        convert(file=file, out=out, trust=trust, overwrite=False)
    assert sorted(file.parent.iterdir()) == before
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (WEIGHTS, []),
        ({"model": WEIGHTS, "epoch": 3, "optimizer": {"state": {}}}, ["epoch, optimizer"]),
        ({"state_dict": {**WEIGHTS, "note": "x"}, "args": {}}, ["args, note"]),
        ({f"module.{name}": value for name, value in WEIGHTS.items()}, ["renamed: 2 tensors"]),
    ],
    ids=["bare", "as MLPerf saves it", "state_dict", "of DistributedDataParallel"],
)
def test_tensors_are_written_and_what_is_none_is_named(
    content: object, told: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made.safetensors"
    assert convert(file=written(content, tmp_path), out=out, trust=True, overwrite=False) == 0
    found = load_file(out)
    assert found.keys() == WEIGHTS.keys()
    assert all(torch.equal(found[name], value) for name, value in WEIGHTS.items())
    said = capsys.readouterr().out
    assert all(part in said for part in (*told, "2 tensors", "because of --trust"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["given.pth", "made.safetensors"]


def test_tensors_that_share_memory_are_written_each(tmp_path: Path) -> None:
    one = torch.arange(4.0)
    file = written({"a": one, "b": one, "c": one[1:3], "d": one.reshape(2, 2).T}, tmp_path)
    out = tmp_path / "made.safetensors"
    convert(file=file, out=out, trust=True, overwrite=False)
    assert load_file(out)["d"].tolist() == [[0, 2], [1, 3]]


def test_nothing_is_read_without_trust(tmp_path: Path) -> None:
    message = refusal_of(written(WEIGHTS, tmp_path), tmp_path / "a.safetensors", trust=False)
    assert "CVE-2026-24747" in message and "--trust" in message


def test_only_torchvisions_own_bytes_are_known() -> None:
    assert not is_imagenet_file(b"") and not is_imagenet_file(b"resnext50_32x4d-7cdf4587")


def test_code_in_a_file_is_refused_and_not_run_even_with_trust(tmp_path: Path) -> None:
    victim = tmp_path / "made"
    for content in (pickle.dumps({"a": Malice(victim)}, protocol=2), None):
        file = written({"a": Malice(victim)}, tmp_path)
        if content:
            file.write_bytes(content)
        assert "cannot be read" in refusal_of(file, tmp_path / "out.safetensors")
    assert not victim.exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"\x80\x02garbage", b"hello" * 9])
def test_a_broken_file_is_named(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "broken.pth"
    file.write_bytes(content)
    assert f"{file}: cannot be read" in refusal_of(file, tmp_path / "out.safetensors")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ([1, 2], "no state_dict"),
        ({"a": 1}, "no state_dict"),
        ({"model": {}}, "no state_dict"),
        ({1: torch.zeros(3)}, "no state_dict"),
        (torch.zeros(3), "no state_dict"),
        ({"a": torch.eye(3).to_sparse()}, "a: not a dense tensor"),
        ({"a": torch.zeros(1).expand(10**15)}, "a: claims to be larger than the file"),
    ],
    ids=["list", "number", "empty", "number as a name", "tensor", "sparse", "larger than the file"],
)
def test_what_holds_no_weights_is_refused(content: object, told: str, tmp_path: Path) -> None:
    assert told in refusal_of(written(content, tmp_path), tmp_path / "out.safetensors")


def inflating(folder: Path) -> Path:
    """A file of torch's, compressed: 200 MB of zeros in 900 kB."""
    stored = io.BytesIO()
    torch.save({"a": torch.zeros(50_000_000)}, stored)
    file = folder / "given.pth"
    with (
        zipfile.ZipFile(stored) as source,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target,
    ):
        for member in source.infolist():
            target.writestr(member.filename, source.read(member))
    return file


def shared(folder: Path) -> Path:
    """A file whose 400 tensors share the memory of one, 1 MB."""
    one = torch.zeros(250_000)
    return written({str(number): one for number in range(400)}, folder)


@pytest.mark.parametrize("make", [inflating, shared])
def test_what_takes_far_more_memory_than_the_file_is_refused_first(
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
    words = [sys.executable, "-c", program, str(file), str(out)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.stderr.startswith(f"error: {file}: ") and ended.stderr.count("\n") == 1
    status, kilobytes = map(int, ended.stdout.split())
    assert status == 2 and kilobytes < 100_000 and not out.exists()


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    file, out = written(WEIGHTS, tmp_path), tmp_path / "a.safetensors"
    out.write_text("mine")
    assert f"{out}: exists" in refusal_of(file, out)
    assert out.read_text() == "mine"
    assert convert(file=file, out=out, trust=True, overwrite=True) == 0
    assert "ends in .safetensors" in refusal_of(file, tmp_path / "weights.pth")
    assert "cannot be read: No such file" in refusal_of(
        tmp_path / "no.pth", tmp_path / "b.safetensors"
    )


def test_evaluating_a_pth_names_the_command_that_converts_it(tmp_path: Path) -> None:
    file = written(WEIGHTS, tmp_path)
    with pytest.raises(InputError, match=r"python -m retinanet convert .*given\.safetensors"):
        evaluate(
            checkpoint=file,
            annotations=None,
            images=None,
            batch_size=1,
            metric="faster-coco-eval",
            out=None,
            pictures=0,
            json_file=None,
            overwrite=False,
        )
