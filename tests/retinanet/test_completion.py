"""The JSON schema of configuration files for editors, and completion in real shells."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from common.errors import InputError
from common.yaml_text import read_yaml
from retinanet.__main__ import COMMANDS, main
from retinanet.config import field_names
from retinanet.config_file import SHIPPED, load_config
from tests.support.commands import REPOSITORY, RunHere, run_program

EXAMPLES = tuple(
    f"docs/examples/{name}.yaml" for name in ("few-umbrellas", "my-photos", "profiled")
)
CONFIGURATIONS = [*sorted(SHIPPED.glob("*.yaml")), *(REPOSITORY / name for name in EXAMPLES)]


@pytest.fixture(scope="module")
def schema() -> Any:
    """Return what editors read."""
    return json.loads((SHIPPED / "schema.json").read_text(encoding="utf-8"))


def is_valid(tree: object, schema: Any) -> bool:
    from jsonschema import Draft7Validator

    return Draft7Validator(schema).is_valid(tree)


def test_shipped_schema_is_that_of_the_configuration(run_here: RunHere) -> None:
    shipped = (SHIPPED / "schema.json").read_text(encoding="utf-8")
    advice = "retinanet config schema --out configs/schema.json --overwrite"
    assert run_here(main, "config", "schema").stdout == shipped, advice


def test_schema_is_written_and_not_replaced(run_here: RunHere, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    assert run_here(main, "config", "schema", "--out", file).returncode == 0
    assert file.read_bytes() == (SHIPPED / "schema.json").read_bytes()
    again = run_here(main, "config", "schema", "--out", file)
    assert again.returncode == 2 and again.stderr.startswith(f"error: {file}: exists")
    assert run_here(main, "config", "schema", "--out", file, "--overwrite").returncode == 0


def test_schema_is_valid_and_describes_every_field(schema: Any) -> None:
    from jsonschema import Draft7Validator

    Draft7Validator.check_schema(schema)
    sections = schema["$defs"].values()
    assert all(section["additionalProperties"] is False for section in sections)
    fields = [field for section in sections for field in section["properties"].values()]
    assert len(fields) >= len(field_names())
    assert all(field["description"] for field in fields)


@pytest.mark.parametrize("file", CONFIGURATIONS, ids=lambda file: file.name)
def test_configuration_matches_the_schema(file: Path, schema: Any) -> None:
    assert is_valid(read_yaml(file.read_text(encoding="utf-8"), file.name), schema)


@pytest.mark.parametrize(
    "name", ["coco-torchvision.yaml", "coco.yaml", "demo.yaml", "openimages.yaml"]
)
def test_configuration_names_its_schema(name: str) -> None:
    first = (SHIPPED / name).read_text(encoding="utf-8").partition("\n")[0]
    match = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", first)
    assert match and (SHIPPED / match[1]).is_file()


ACCEPTED = (
    "engine: ipex",
    "engine: {name: torch, precision: float32}",
    "run: {seed: 4294967295}",
    "model: {weights: torchvision, backbone: resnet50, variant: auto}",
    "data: {workers: auto}",
    "data: {workers: 0, scenes: null}",
    "training: {beta1: 0.5, learning_rate: 1e-4}",
    "training: {beta1: auto, target_map: null}",
    "training: {optimizer: adamw, weight_decay: 0.01}",
    "checkpoint: {every: 500 steps}",
    "checkpoint: {every: epoch}",
    "distributed: {batch_split: [3, 1]}",
    "distributed: {batch_split: speed}",
    "profile: {onednn: {steps: 20-22}, trace: {steps: 20}}",
    "model: {pretrained_backbone: weights.safetensors}",
    "model: {pretrained_backbone: torchvision}",
    "model: {weights: runs/a}",
    "model: {weights: detector.safetensors}",
)
REFUSED = (
    "trainig: {epochs: 3}",
    "training: {epocks: 3}",
    "training: {epochs: 0}",
    "training: {epochs: three}",
    "training: {epochs: '3'}",
    "training: {optimizer: adamax}",
    "training: {beta1: 1}",
    "training: 3",
    "engine: ipx",
    "engine: {name: ipx}",
    "run: {name: a/b}",
    "run: {seed: 4294967296}",
    "data: {image_size: 65}",
    "data: {workers: -1}",
    "data: {workers: many}",
    "launch: {pin: 1}",
    "launch: {threads: 0}",
    "checkpoint: {every: 0 steps}",
    "checkpoint: {every: sometimes}",
    "distributed: {batch_split: []}",
    "distributed: {batch_split: [0, 1]}",
    "profile: {trace: {steps: 0}}",
    "profile: {trace: {steps: last}}",
    "model: {pretrained_backbone: weights.pth}",
    "model: {backbone: resnet18}",
    "model: {weights: model_10.pth}",
    "model: {weights: detector.onnx}",
    "model: {weights: ''}",
)


@pytest.mark.parametrize("text", [*ACCEPTED, *REFUSED])
def test_schema_and_run_agree(text: str, schema: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    try:
        load_config(str(file))
        is_accepted = True
    except InputError:
        is_accepted = False
    assert is_accepted == (text in ACCEPTED)
    assert is_valid(read_yaml(text, file.name), schema) == is_accepted


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the scripts of all shells, and files that can be completed."""
    from retinanet.completion import SHELLS, completion_script

    folder = tmp_path_factory.mktemp("completion")
    for shell in SHELLS:
        (folder / f"script.{shell}").write_text(completion_script(shell), encoding="utf-8")
    (folder / "photos").mkdir()
    (folder / "photo.jpg").touch()
    (folder / "mine.yaml").touch()
    return folder


def completed_by_bash(line: str, folder: Path) -> list[str]:
    """Return bash's completions of the last word, which readline splits at `=` like others."""
    words = re.findall(r"=|[^\s=]+", line) + ([""] if line.endswith(" ") else [])
    program = (
        'compopt() { :; }; source script.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
        '_retinanet; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = run_program("bash", "-c", program, "bash", *words, cwd=folder, check=True)
    assert done.stderr == ""
    return sorted(done.stdout.split())


def completed_by_fish(line: str, folder: Path) -> list[str]:
    program = f"source script.fish; complete -C '{line}'"
    done = run_program("fish", "-c", program, cwd=folder, HOME=str(folder), check=True)
    return sorted(text.partition("\t")[0] for text in done.stdout.splitlines())


CASES = {
    "retinanet ev": ["evaluate"],
    "retinanet profile st": ["stats"],
    "retinanet mlperf rc": ["rcp"],
    "retinanet train --conf": ["--config"],
    "retinanet train --config op": ["openimages.yaml"],
    "retinanet train --config mi": ["mine.yaml"],
    "retinanet data verify --config co": ["coco-torchvision.yaml", "coco.yaml"],
    "retinanet train --config coco.yaml evaluation.o": ["evaluation.overlap="],
    "retinanet train run.seed=1 --resume training.opt": ["training.optimizer="],
    "retinanet launch plan --np 2 launch.th": ["launch.threads="],
    "retinanet evaluate --metric py": ["pycocotools"],
    "retinanet profile ablate run bf16 frozen-l": ["frozen-layers"],
    "retinanet completion z": ["zsh"],
    "retinanet predict --checkpoint photos photo.": ["photo.jpg"],
}


@pytest.mark.slow
@pytest.mark.parametrize("line", CASES)
def test_bash(line: str, scripts: Path) -> None:
    assert completed_by_bash(line, scripts) == CASES[line]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("retinanet train engine.name=", ["auto", "ipex", "torch"]),
        ("retinanet train engine.name=t", ["torch"]),
        ("retinanet train --config demo.yaml launch.pin=f", ["false"]),
        ("retinanet train data.root=photos", ["photos"]),
        ("retinanet train training.epochs=", []),
    ],
)
def test_value_of_a_setting_in_bash(line: str, values: list[str], scripts: Path) -> None:
    assert completed_by_bash(line, scripts) == values


@pytest.mark.slow
def test_bash_lists_all_commands_and_settings(scripts: Path) -> None:
    assert completed_by_bash("retinanet ", scripts) == sorted(COMMANDS)
    settings = completed_by_bash("retinanet train ", scripts)
    sections = ("data.scenes", "profile.onednn", "profile.trace")
    assert settings == sorted(f"{name}=" for name in field_names() if name not in sections)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize("line", CASES)
def test_fish(line: str, scripts: Path) -> None:
    assert CASES[line][0] in completed_by_fish(line, scripts)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_can_read_the_script(scripts: Path) -> None:
    done = run_program("zsh", "-n", scripts / "script.zsh")
    assert (done.returncode, done.stderr) == (0, "")
